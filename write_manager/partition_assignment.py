"""Partition assignment: which member of a consumer reads which partitions. No IO, no clock; one caller at a time.

A member is a process that polls. Its leases last as long as it keeps polling, at most `ttl_s` after the last poll. The
partitions are spread evenly and move as little as possible. A rebalance is cooperative: a partition that has to move is
first marked as revoking, and its holder finishes, commits and releases it. It moves without that when the holder stops
polling, or takes longer than twice the time to live after the revocation.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from myqueue.protocol.errors import StaleLease, TooManyRequests

REVOKE_TTLS = 2
MAX_MEMBERS = 1000  # far more than partitions; every poll goes through all of them


@dataclass(slots=True)
class PartitionLease:
    member: str
    generation: int
    revoke_requested_s: float | None = None  # when a poll first answered that it is revoking


@dataclass(frozen=True, slots=True)
class HeldLease:
    partition_id: int
    generation: int
    revoking: bool


class PartitionLeases:
    def __init__(
        self,
        partitions: Sequence[int],
        next_generation: Callable[[], int],
        *,
        ttl_s: float,
        not_before_s: float = 0.0,
    ) -> None:
        """Before `not_before_s` nothing is leased: members of an earlier write manager may still hold leases."""
        self._partitions = sorted(partitions)
        self._next_generation = next_generation
        self._ttl_s = ttl_s
        self._not_before_s = not_before_s
        self._last_poll_s: dict[str, float] = {}  # members in the order in which they joined
        self._leases: dict[int, PartitionLease] = {}

    def poll(self, member: str, now_s: float, released: Iterable[int] = ()) -> list[HeldLease]:
        """Renew the member's leases, rebalance, and return the leases that it holds from now on."""
        self._expire(now_s)
        if member not in self._last_poll_s and len(self._last_poll_s) >= MAX_MEMBERS:
            raise TooManyRequests(f"the consumer has {MAX_MEMBERS} members already")
        self._last_poll_s[member] = now_s
        for partition_id in released:
            lease = self._leases.get(partition_id)
            if lease is not None and lease.member == member:
                del self._leases[partition_id]
        quota = self._quotas()[member]
        if now_s >= self._not_before_s:
            self._grant(member, quota)
        self._revoke(member, quota, now_s)
        return [
            HeldLease(partition_id, lease.generation, lease.revoke_requested_s is not None)
            for partition_id, lease in sorted(self._leases.items())
            if lease.member == member
        ]

    def leave(self, member: str, now_s: float) -> None:
        self._expire(now_s)
        self._last_poll_s.pop(member, None)
        self._drop([p for p, lease in self._leases.items() if lease.member == member])

    def holders(self, now_s: float) -> dict[int, str]:
        """The member of each leased partition."""
        self._expire(now_s)
        return {partition_id: lease.member for partition_id, lease in self._leases.items()}

    def check(self, partition_id: int, member: str, generation: int | None, now_s: float) -> None:
        """Raise unless the member may commit: no other member has the partition, and the generation is current."""
        self._expire(now_s)
        lease = self._leases.get(partition_id)
        if lease is None and generation is None:
            return
        if lease is None or lease.member != member or generation not in (None, lease.generation):
            raise StaleLease(
                f"partition {partition_id} is not leased to this member in this generation; poll again",
                details={"partition_id": partition_id},
            )

    def renew(self, partition_id: int) -> int:
        """A new generation, after a seek: offsets read before it must not be committed any more."""
        generation = self._next_generation()
        lease = self._leases.get(partition_id)
        if lease is not None:
            lease.generation = generation
        return generation

    def idle(self, now_s: float) -> bool:
        """True when no member is left."""
        self._expire(now_s)
        return not self._last_poll_s

    def _expire(self, now_s: float) -> None:
        silent = [member for member, last_s in self._last_poll_s.items() if now_s - last_s >= self._ttl_s]
        for member in silent:
            del self._last_poll_s[member]
        self._drop(
            [
                partition_id
                for partition_id, lease in self._leases.items()
                if lease.member in silent
                or (
                    lease.revoke_requested_s is not None
                    and now_s - lease.revoke_requested_s >= REVOKE_TTLS * self._ttl_s
                )
            ]
        )

    def _drop(self, partitions: Iterable[int]) -> None:
        for partition_id in partitions:
            del self._leases[partition_id]

    def _quotas(self) -> dict[str, int]:
        """How many partitions each member is to have: they differ by one at most, and those with more keep more."""
        held = dict.fromkeys(self._last_poll_s, 0)
        for lease in self._leases.values():
            held[lease.member] += 1
        each, left_over = divmod(len(self._partitions), len(held))
        by_size = sorted(held, key=lambda member: -held[member])  # stable: equal ones in the order they joined
        return {member: each + (place < left_over) for place, member in enumerate(by_size)}

    def _grant(self, member: str, quota: int) -> None:
        held = sum(lease.member == member for lease in self._leases.values())
        free = [partition_id for partition_id in self._partitions if partition_id not in self._leases]
        for partition_id in free[: max(0, quota - held)]:
            self._leases[partition_id] = PartitionLease(member, self._next_generation())

    def _revoke(self, member: str, quota: int, now_s: float) -> None:
        """Revoke the same partitions until they are released; a revocation that is not needed any more is withdrawn."""
        held = [(p, lease) for p, lease in self._leases.items() if lease.member == member]
        held.sort(key=lambda pair: (pair[1].revoke_requested_s is not None, pair[0]))
        for place, (_, lease) in enumerate(held):
            if place < quota:
                lease.revoke_requested_s = None
            elif lease.revoke_requested_s is None:
                lease.revoke_requested_s = now_s
