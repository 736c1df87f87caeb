"""Partition assignment: which member of a consumer reads which partitions. No IO, no clock; one caller at a time.

A member is a process that polls. Its leases last as long as it keeps polling, at most `ttl_s` after the last poll. The
partitions are spread evenly and move as little as possible. A rebalance is cooperative: a partition that has to move is
first marked as revoking, and its holder finishes, commits and releases it. It moves without that when the holder stops
polling, or takes longer than twice the time to live after the revocation. A poll decides for its own member only;
`to_notify` lists the members that should poll now instead of at their next interval.

While all polls are refused nothing expires, and after that every lease has a whole lifetime again: members read on.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

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


class MemberClient(NamedTuple):
    """Which process a member is, in its own words. Shown to people; decides nothing."""

    client_id: str | None = None
    host: str | None = None


NO_CLIENT = MemberClient()


class PartitionLeases:
    def __init__(
        self,
        partitions: Sequence[int],
        next_generation: Callable[[], int],
        *,
        ttl_s: float,
        not_before_s: float = 0.0,
        decides_since_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Before `not_before_s` nothing is leased: members of an earlier write manager may still hold leases. What they
        say that they hold is theirs again then, so that a new write manager moves nothing. `decides_since_s`: since
        when polls have been accepted; infinite while they are refused."""
        self._partitions = sorted(partitions)
        self._next_generation = next_generation
        self._ttl_s = ttl_s
        self._not_before_s = not_before_s
        self._decides_since_s = decides_since_s
        self._last_poll_s: dict[str, float] = {}  # members in the order in which they joined
        self._clients: dict[str, MemberClient] = {}
        self._leases: dict[int, PartitionLease] = {}
        self._earlier: dict[int, str] = {}  # holders under the earlier write manager, by their own word
        self._quotas: dict[str, int] | None = None  # None: to be computed again
        self._settled = True  # nothing has changed since `to_notify` was last called
        self._next_expiry_s = math.inf  # nothing expires before this
        self._outdated: set[str] = set()  # members whose last answer has a lease of an older generation, or a lost one
        self._notified: set[str] = set()  # since their last poll

    def poll(
        self,
        member: str,
        now_s: float,
        released: Iterable[int] = (),
        *,
        held: Iterable[int] = (),
        may_join: bool = True,
        client: MemberClient = NO_CLIENT,
    ) -> list[HeldLease]:
        """Renew the member's leases, rebalance, and return the leases that it holds from now on. `held` are those that
        it believes to hold."""
        self._expire(now_s)
        if member not in self._last_poll_s:
            if not may_join:
                return []
            if len(self._last_poll_s) >= MAX_MEMBERS:
                raise TooManyRequests(f"the consumer has {MAX_MEMBERS} members already")
            self._unsettle()
        self._last_poll_s[member] = now_s
        if client != NO_CLIENT:
            self._clients[member] = client
        self._next_expiry_s = min(self._next_expiry_s, now_s + self._ttl_s)
        self._notified.discard(member)
        self._outdated.discard(member)
        if now_s < self._not_before_s:
            for partition_id in held:
                self._earlier.setdefault(partition_id, member)
            self._quotas = None
        for partition_id in released:
            lease = self._leases.get(partition_id)
            if lease is not None and lease.member == member:
                self._drop([partition_id])
        quota = self._current_quotas()[member]
        if now_s >= self._not_before_s:
            self._grant(member, quota)
        self._revoke(member, quota, now_s)
        return [
            HeldLease(partition_id, lease.generation, lease.revoke_requested_s is not None)
            for partition_id, lease in sorted(self._leases.items())
            if lease.member == member
        ]

    def to_notify(self, now_s: float) -> list[str]:
        """Members to which a poll would now answer other leases than their last one did; each once until it polls."""
        self._expire(now_s)
        if self._settled:
            return []
        self._settled = True
        held = Counter(lease.member for lease in self._leases.values())
        revoking = Counter(lease.member for lease in self._leases.values() if lease.revoke_requested_s is not None)
        any_free = len(self._leases) < len(self._partitions) and now_s >= self._not_before_s
        outdated = [
            member
            for member, quota in self._current_quotas().items()
            if member in self._outdated
            or (any_free and held[member] < quota)
            or revoking[member] != max(0, held[member] - quota)
        ]
        self._outdated.clear()
        found = [member for member in outdated if member not in self._notified]
        self._notified.update(found)
        return found

    def leave(self, member: str, now_s: float) -> None:
        self._expire(now_s)
        self._forget(member)
        self._drop([p for p, lease in self._leases.items() if lease.member == member])

    def holders(self, now_s: float) -> dict[int, str]:
        """The member of each leased partition."""
        self._expire(now_s)
        return {partition_id: lease.member for partition_id, lease in self._leases.items()}

    def revoking(self) -> set[int]:
        """Partitions that their members have to give up."""
        return {partition_id for partition_id, lease in self._leases.items() if lease.revoke_requested_s is not None}

    def client(self, member: str | None) -> MemberClient:
        return NO_CLIENT if member is None else self._clients.get(member, NO_CLIENT)

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
            self._outdated.add(lease.member)
            self._settled = False
        return generation

    def idle(self, now_s: float) -> bool:
        """True when no member is left."""
        self._expire(now_s)
        return not self._last_poll_s

    def _expire(self, now_s: float) -> None:
        since_s = self._decides_since_s()
        if now_s < max(self._next_expiry_s, since_s + self._ttl_s):
            return
        for member in [member for member, last_s in self._last_poll_s.items() if last_s + self._ttl_s <= now_s]:
            self._forget(member)
        expired = []
        for partition_id, lease in self._leases.items():
            if lease.member not in self._last_poll_s:
                expired.append(partition_id)
            elif (
                lease.revoke_requested_s is not None
                and self._revoke_end_s(max(lease.revoke_requested_s, since_s)) <= now_s
            ):
                expired.append(partition_id)
                self._outdated.add(lease.member)
        self._drop(expired)
        ends_s = [last_s + self._ttl_s for last_s in self._last_poll_s.values()]
        ends_s += [
            self._revoke_end_s(lease.revoke_requested_s)
            for lease in self._leases.values()
            if lease.revoke_requested_s is not None
        ]
        self._next_expiry_s = min(ends_s, default=math.inf)

    def _revoke_end_s(self, requested_s: float) -> float:
        return requested_s + REVOKE_TTLS * self._ttl_s

    def _forget(self, member: str) -> None:
        if self._last_poll_s.pop(member, None) is not None:
            self._unsettle()
        self._clients.pop(member, None)
        self._notified.discard(member)
        self._outdated.discard(member)

    def _drop(self, partitions: Iterable[int]) -> None:
        for partition_id in partitions:
            del self._leases[partition_id]
            self._unsettle()

    def _unsettle(self) -> None:
        """Members or leases have changed."""
        self._quotas = None
        self._settled = False

    def _current_quotas(self) -> dict[str, int]:
        """How many partitions each member is to have: they differ by one at most, and those with more keep more."""
        if self._quotas is None:
            held = Counter(lease.member for lease in self._leases.values())
            held.update(member for partition_id, member in self._earlier.items() if partition_id not in self._leases)
            each, left_over = divmod(len(self._partitions), max(1, len(self._last_poll_s)))
            # Stable: equal ones in the order in which they joined.
            by_size = sorted(self._last_poll_s, key=lambda member: -held[member])
            self._quotas = {member: each + (place < left_over) for place, member in enumerate(by_size)}
        return self._quotas

    def _grant(self, member: str, quota: int) -> None:
        held = sum(lease.member == member for lease in self._leases.values())
        free = [partition_id for partition_id in self._partitions if partition_id not in self._leases]
        free.sort(key=lambda partition_id: self._earlier.get(partition_id, "") not in (member, ""))
        free.sort(key=lambda partition_id: self._earlier.get(partition_id) != member)  # its own, nobody's, others'
        for partition_id in free[: max(0, quota - held)]:
            self._earlier.pop(partition_id, None)
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
                self._next_expiry_s = min(self._next_expiry_s, self._revoke_end_s(now_s))
