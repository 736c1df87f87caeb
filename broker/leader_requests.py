"""Requests that only the leader of a partition can answer or decide, sent to the Raft group through the driver.

A request that finds no leader waits a moment for one; the driver resolves every request exactly once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from broker.batch_dedupe import Draft
from broker.driver import Driver
from broker.raft.configuration import MemberId
from broker.raft.effects import Role
from broker.raft.events import (
    DedupeOutcome,
    EntryCommitted,
    Event,
    LeadershipLost,
    NotGroupLeader,
    NotReady,
    Outcome,
    PendingFull,
    Propose,
    QuorumFull,
    Read,
    ReadAt,
    RequestRefused,
)
from broker.storage.entry import stamp_of
from myqueue.protocol import errors
from myqueue.protocol.batch import Header

if TYPE_CHECKING:
    from broker.replica import Replica, ReplicaView

_LOOK_AGAIN_S = 0.1


class Appended(NamedTuple):
    append_time: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class RequestTimeouts:
    leader_s: float = 1.2  # for a group to elect its leader
    answer_s: float = 1.8  # in all


class LeaderRequests:
    def __init__(
        self,
        replica: Replica,
        driver: Driver,
        check_disk_space: Callable[[int], None],
        timeouts: RequestTimeouts,
        clock_ms: Callable[[], int],
    ) -> None:
        self._replica = replica
        self._driver = driver
        self._check_disk_space = check_disk_space
        self._timeouts = timeouts
        self._clock_ms = clock_ms
        self._role_changes: set[asyncio.Future[None]] = set()

    def role_changed(self) -> None:
        for waiting in self._role_changes:
            if not waiting.done():
                waiting.set_result(None)

    async def append(self, header: Header, draft: Draft) -> Appended:
        """The batch is validated already."""
        started_s = time.monotonic()
        stamp = stamp_of(header)
        append_time = 0
        while draft.open:
            data, count, records = draft.proposal()
            self._replica.check_served()
            self._check_disk_space(len(data))
            wall_ms = self._clock_ms()
            outcome = await self._resolved(
                lambda number, data=data, count=count, records=records, wall_ms=wall_ms: Propose(  # type: ignore[misc]
                    number, data, count, wall_ms, stamp, records
                ),
                started_s,
            )
            if isinstance(outcome, DedupeOutcome):
                draft.checked(outcome)
            else:
                assert isinstance(outcome, EntryCommitted)
                append_time = outcome.append_time
                draft.committed(outcome.base_offset)
        return Appended(append_time or self._clock_ms(), self._replica.view.end_offset)

    def check_may_lead(self) -> None:
        """Refuse an append for another broker's partition before any work is done for it."""
        leader = self._replica.view.leader
        if leader is not None and leader.broker_id != self._replica.me.broker_id:
            raise errors.NotLeader(details={"leader": leader.broker_id})

    async def request(self, make: Callable[[int], Event]) -> Outcome:
        """Wait for the outcome; errors are raised."""
        return await self._resolved(make, time.monotonic())

    async def _resolved(self, make: Callable[[int], Event], started_s: float) -> Outcome:
        while True:
            self._replica.check_served()
            seen = self._replica.view
            left_s = started_s + self._timeouts.answer_s - time.monotonic()
            try:
                outcome = await self._driver.propose(self._replica.name, make, left_s)
            except TimeoutError:
                raise errors.Unavailable("the partition's replicas took too long", outcome="unknown") from None
            if isinstance(outcome, NotGroupLeader):
                leader = outcome.leader
                if leader is not None and leader.broker_id != self._replica.me.broker_id:
                    raise errors.NotLeader(details={"leader": leader.broker_id})
            elif isinstance(outcome, LeadershipLost):
                raise errors.Unavailable("the partition's leader was replaced meanwhile", outcome="unknown")
            elif isinstance(outcome, PendingFull):
                raise errors.Overloaded("too many appends wait for the partition's replicas", retry_after_s=1)
            elif isinstance(outcome, QuorumFull):
                raise errors.DiskFull("the disks of too many of the partition's replicas are almost full")
            elif isinstance(outcome, RequestRefused):
                raise errors.RegistrationConflict(outcome.reason)
            elif not isinstance(outcome, NotReady):
                return outcome
            left_s = started_s + self._timeouts.leader_s - time.monotonic()
            if left_s <= 0:
                raise errors.NoLeader(outcome="not_written", retry_after_s=1)
            # A leader may be elected in a moment.
            await self._changed(
                lambda seen=seen: _leadership(self._replica.view) != _leadership(seen),  # type: ignore[misc]
                min(left_s, _LOOK_AGAIN_S),
            )

    async def _changed(self, wanted: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until the role changes as wanted; False when the time is up."""
        deadline_s = time.monotonic() + timeout_s
        while not wanted() and (left_s := deadline_s - time.monotonic()) > 0:
            changed = asyncio.get_running_loop().create_future()
            self._role_changes.add(changed)
            try:
                async with asyncio.timeout(left_s):
                    await changed
            except TimeoutError:
                break
            finally:
                self._role_changes.discard(changed)
        return wanted()

    def send(self, make: Callable[[int], Event]) -> None:
        """From any thread: send it once and do not wait for the outcome."""
        self._replica.check_served()
        self._driver.request(self._replica.name, make)

    async def confirm_end(self, timeout_s: float) -> ReadAt | None:
        """The end of the partition for the whole group; None unless it leads and a majority confirms in time."""
        self._replica.check_served()
        try:
            outcome = await self._driver.propose(self._replica.name, Read, timeout_s)
        except TimeoutError:
            return None
        return outcome if isinstance(outcome, ReadAt) else None

    async def transfer_leadership(self, broker_id: int | None) -> None:
        """Wait until another broker leads; the group decides which."""
        if self._replica.view.role is not Role.LEADER:
            leader = self._replica.view.leader
            raise errors.NotLeader(details={} if leader is None else {"leader": leader.broker_id})
        if broker_id == self._replica.me.broker_id:
            return
        self._driver.transfer(self._replica.name, broker_id)
        if not await self._changed(lambda: self._replica.view.role is not Role.LEADER, self._timeouts.answer_s):
            raise errors.Unavailable("no other broker took the lead", outcome="unknown")


def _leadership(view: ReplicaView) -> tuple[Role, int, MemberId | None, bool]:
    return view.role, view.term, view.leader, view.ready
