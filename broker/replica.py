"""A partition as the API sees it: reads, appends, and questions to its leader. The Raft driver tells how it stands."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from broker.appending import Draft
from broker.raft.configuration import GroupId, MemberId
from broker.raft.effects import Applied, Dropped, Role, RoleChanged
from broker.raft.entry import LogEntry
from broker.raft.events import (
    DedupeVerdicts,
    EntryCommitted,
    Event,
    LeadershipLost,
    NotGroupLeader,
    NotReady,
    Outcome,
    PendingFull,
    Propose,
    Read,
    ReadAt,
    RequestRefused,
)
from broker.reading import Readable, View
from broker.recent import RecentBatches
from broker.storage.cache import ReadCache
from broker.storage.groups import Corrupted
from broker.storage.log import Log
from broker.storage.records import BadRecord, spoken, stamp_of
from myqueue.protocol import errors
from myqueue.protocol.batch import Header

_LOOK_AGAIN_S = 0.1


class Appended(NamedTuple):
    append_time: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class Patience:
    leader_s: float = 1.2  # for a group to find its leader
    answer_s: float = 1.8  # in all


class Group(Protocol):
    """What stands behind a replica: the Raft driver."""

    def request(self, group_id: GroupId, make: Callable[[int], Event]) -> object: ...

    def propose(self, group_id: GroupId, make: Callable[[int], Event]) -> "asyncio.Future[Outcome]": ...

    def transfer(self, group_id: GroupId, broker_id: int | None) -> None: ...


class Replica(Readable):
    def __init__(
        self,
        log: Log,
        me: MemberId,
        group: Group,
        cache: ReadCache,
        recent: RecentBatches,
        check_room: Callable[[int], None],
        patience: Patience,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        super().__init__(log, cache, recent)
        self.me = me
        self._group = group
        self._check_room = check_room
        self._patience = patience
        self._clock_ms = clock_ms
        self._role_changes: set[asyncio.Future[None]] = set()

    # Told by the driver, on its loop

    def role_changed(self, change: RoleChanged) -> None:
        self.view = replace(self.view, role=change.role, term=change.term, leader=change.leader, ready=change.ready)
        for waiting in self._role_changes:
            if not waiting.done():
                waiting.set_result(None)

    def applied(self, applied: Applied) -> None:
        self.view = replace(self.view, applied=applied.last, end_offset=applied.end_offset)
        group_id = self.log.group.group_id
        for entry in applied.entries:
            self._recent.put(group_id, entry)
        self.waiters.grown(applied.end_offset)

    def dropped(self, dropped: Dropped) -> None:
        end_offset = max(self.view.end_offset, dropped.start_offset)
        self.view = replace(self.view, start_offset=dropped.start_offset, end_offset=end_offset)

    def closed(self) -> None:
        self.waiters.release()

    def read_entries(self, first_index: int, max_bytes: int) -> tuple[LogEntry, ...] | None:
        """For a follower that needs what has left memory; empty when it was cut, None when it is damaged."""
        try:
            return tuple(spoken(entry) for entry in self.log.from_index(first_index, max_bytes))
        except (Corrupted, BadRecord) as error:
            self.found_damage(str(error))
            return None

    # Requests

    async def append(self, header: Header, draft: Draft) -> Appended:
        """The batch is validated already."""
        started_s = time.monotonic()
        stamp = stamp_of(header)
        append_time = 0
        while draft.open:
            data, count, marks = draft.proposal()
            self.check_served()
            self._check_room(len(data))
            wall_ms = self._clock_ms()
            outcome = await self._asked(
                lambda number, data=data, count=count, marks=marks, wall_ms=wall_ms: Propose(  # type: ignore[misc]
                    number, data, count, wall_ms, stamp, marks
                ),
                started_s,
            )
            if isinstance(outcome, DedupeVerdicts):
                draft.judged(outcome)
            else:
                assert isinstance(outcome, EntryCommitted)
                append_time = outcome.append_time
                draft.committed(outcome.base_offset)
        return Appended(append_time or self._clock_ms(), self.view.end_offset)

    def check_may_lead(self) -> None:
        """Refuses what another broker leads before any work is done for it."""
        leader = self.view.leader
        if leader is not None and leader.broker_id != self.me.broker_id:
            raise errors.NotLeader(details={"leader": leader.broker_id})

    async def ask(self, make: Callable[[int], Event]) -> Outcome:
        """What only the leader may answer or decide."""
        return await self._asked(make, time.monotonic())

    async def _asked(self, make: Callable[[int], Event], started_s: float) -> Outcome:
        while True:
            self.check_served()
            seen = self.view
            left_s = started_s + self._patience.answer_s - time.monotonic()
            try:
                async with asyncio.timeout(max(0.0, left_s)):
                    outcome = await self._group.propose(self.name, make)
            except TimeoutError:
                raise errors.Unavailable("the partition's replicas took too long", outcome="unknown") from None
            if isinstance(outcome, NotGroupLeader):
                leader = outcome.leader
                if leader is not None and leader.broker_id != self.me.broker_id:
                    raise errors.NotLeader(details={"leader": leader.broker_id})
            elif isinstance(outcome, LeadershipLost):
                raise errors.Unavailable("the partition's leader was replaced meanwhile", outcome="unknown")
            elif isinstance(outcome, PendingFull):
                raise errors.Overloaded("too many appends wait for the partition's replicas", retry_after_s=1)
            elif isinstance(outcome, RequestRefused):
                raise errors.RegistrationConflict(outcome.reason)
            elif not isinstance(outcome, NotReady):
                return outcome
            left_s = started_s + self._patience.leader_s - time.monotonic()
            if left_s <= 0:
                raise errors.NoLeader(outcome="not_written", retry_after_s=1)
            # A leader may show itself in a moment.
            await self._changed(lambda seen=seen: _who(self.view) != _who(seen), min(left_s, _LOOK_AGAIN_S))  # type: ignore[misc]

    async def _changed(self, wanted: Callable[[], bool], timeout_s: float) -> bool:
        """Waits until the role is another one."""
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

    def start(self, make: Callable[[int], Event]) -> None:
        """From any thread: asks once, whoever leads, and does not wait for an answer."""
        self.check_served()
        self._group.request(self.name, make)

    async def confirm_end(self, timeout_s: float) -> ReadAt | None:
        """Where the partition ends for the whole group; None when this is not its leader, or nobody can say in time."""
        self.check_served()
        try:
            async with asyncio.timeout(timeout_s):
                outcome = await self._group.propose(self.name, Read)
        except TimeoutError:
            return None
        return outcome if isinstance(outcome, ReadAt) else None

    async def hand_over(self, broker_id: int | None) -> None:
        """Waits until somebody else leads; who, is for the group to say."""
        if self.view.role is not Role.LEADER:
            leader = self.view.leader
            raise errors.NotLeader(details={} if leader is None else {"leader": leader.broker_id})
        if broker_id == self.me.broker_id:
            return
        self._group.transfer(self.name, broker_id)
        if not await self._changed(lambda: self.view.role is not Role.LEADER, self._patience.answer_s):
            raise errors.Unavailable("nobody took the lead", outcome="unknown")


def _who(view: View) -> tuple[Role, int, MemberId | None, bool]:
    return view.role, view.term, view.leader, view.ready
