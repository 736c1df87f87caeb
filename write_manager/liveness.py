"""Liveness, decided by the last heartbeat on this process's monotonic clock. No IO; `now_s` is an argument."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", int, str)

# Heartbeats must be more frequent than this share of the time to live: then a shorter pause of this process expires
# none of their senders.
STALL_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Liveness(Generic[K]):
    expired: tuple[K, ...]
    last_heartbeats_s: dict[K, float]  # of all others, as they count from now on


def check_liveness(
    last_heartbeats_s: Mapping[K, float], now_s: float, last_sweep_s: float, ttl_s: float
) -> Liveness[K]:
    """`last_heartbeats_s` has those that count as alive; `last_sweep_s` is when they were checked last.

    A process that was paused has not read the heartbeats that arrived meanwhile: a missing
    heartbeat means nothing then, so every TTL is renewed.
    """
    if now_s - last_sweep_s > ttl_s * STALL_SHARE:
        return Liveness((), dict.fromkeys(last_heartbeats_s, now_s))
    expired = tuple(sorted(key for key, last_s in last_heartbeats_s.items() if now_s - last_s > ttl_s))
    return Liveness(expired, {key: last_s for key, last_s in last_heartbeats_s.items() if key not in expired})
