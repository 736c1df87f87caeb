"""Who is alive, judged by when it was last heard of on this process's monotonic clock. Values in, decision out."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", int, str)

# Heartbeats must be more frequent than this share of the time to live: then a pause that is shorter than it makes
# nobody who sends them look dead.
STALL_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Verdict(Generic[K]):
    died: tuple[K, ...]
    heard_s: dict[K, float]  # of all others: when they count as heard of


def judge(heard_s: Mapping[K, float], now_s: float, last_sweep_s: float, ttl_s: float) -> Verdict[K]:
    """`heard_s` has those that count as alive, `last_sweep_s` is when they were judged last.

    A process that was paused has not read the heartbeats that came meanwhile: silence during the pause says nothing.
    Everybody gets a fresh time to live then.
    """
    if now_s - last_sweep_s > ttl_s * STALL_SHARE:
        return Verdict((), dict.fromkeys(heard_s, now_s))
    died = tuple(sorted(member for member, last_s in heard_s.items() if now_s - last_s > ttl_s))
    return Verdict(died, {member: last_s for member, last_s in heard_s.items() if member not in died})
