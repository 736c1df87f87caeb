"""Who is alive, judged by when it was last heard of on this process's monotonic clock."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verdict:
    died: tuple[int, ...]
    revived: tuple[int, ...]


def judge(last_heard_s: Mapping[int, float], active: Mapping[int, bool], now_s: float, ttl_s: float) -> Verdict:
    """Changes only. Whoever was never heard of since the start counts from the start: `last_heard_s` has it."""
    alive = {member: now_s - heard <= ttl_s for member, heard in last_heard_s.items()}
    died = tuple(sorted(member for member, is_alive in alive.items() if active.get(member) and not is_alive))
    revived = tuple(sorted(member for member, is_alive in alive.items() if not active.get(member) and is_alive))
    return Verdict(died, revived)
