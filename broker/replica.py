"""A partition as the API sees it: append, fetch, offsets. The Raft driver tells it how its group stands."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Protocol
from uuid import UUID

from broker import slices
from broker.appending import Draft
from broker.raft import events
from broker.raft.effects import Applied, Dropped, Role, RoleChanged
from broker.raft.entry import Entry
from broker.raft.events import Committed, Event, Judged, Outcome, Propose
from broker.raft.identity import GroupId, Member
from broker.storage.cache import Decoded, ReadCache
from broker.storage.groups import Corrupted
from broker.storage.log import Log
from broker.storage.records import BadRecord, spoken, stamp_of
from myqueue.protocol import errors
from myqueue.protocol.batch import Header
from myqueue.protocol.internal import AppendAnswer
from myqueue.protocol.marks import encode_marks

_LOOK_AGAIN_S = 0.1


@dataclass(frozen=True, slots=True)
class View:
    """What this replica knows of its group; everything up to the end is committed and on this disk."""

    role: Role = Role.FOLLOWER
    term: int = 0
    leader: Member | None = None
    ready: bool = False
    applied: int = 0
    end_offset: int = 0
    start_offset: int = 0


@dataclass(frozen=True, slots=True)
class Bounds:
    start_offset: int
    end_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Patience:
    leader_s: float = 1.2  # for a group to find its leader
    answer_s: float = 1.8  # in all


class Group(Protocol):
    """What stands behind a replica: the Raft driver."""

    def request(self, group_id: GroupId, make: Callable[[int], Event]) -> "Future[Outcome]": ...

    def transfer(self, group_id: GroupId, broker_id: int | None) -> None: ...


class Replica:
    def __init__(
        self,
        log: Log,
        me: Member,
        group: Group,
        cache: ReadCache,
        check_room: Callable[[int], None],
        patience: Patience,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.log = log
        self.me = me
        self.name = GroupId(log.group.topic_id, log.group.partition_id)
        self._group = group
        self._cache = cache
        self._check_room = check_room
        self._patience = patience
        self._clock_ms = clock_ms
        self.view = View(term=log.group.hard.term, start_offset=log.group.start_offset)
        self._changed = threading.Condition()
        self.damage: str | None = None
        self._dropped = False

    @property
    def topic_id(self) -> UUID:
        return self.name.topic

    @property
    def partition_id(self) -> int:
        return self.name.partition

    @property
    def topic(self) -> str:
        return self.log.group.settings.topic

    # Told by the driver, on its loop

    def role_changed(self, change: RoleChanged) -> None:
        with self._changed:
            self.view = replace(self.view, role=change.role, term=change.term, leader=change.leader, ready=change.ready)
            self._changed.notify_all()

    def applied(self, applied: Applied) -> None:
        self.view = replace(self.view, applied=applied.last, end_offset=applied.end_offset)

    def dropped(self, dropped: Dropped) -> None:
        end_offset = max(self.view.end_offset, dropped.start_offset)
        self.view = replace(self.view, start_offset=dropped.start_offset, end_offset=end_offset)

    def read_entries(self, first_index: int, max_bytes: int) -> tuple[Entry, ...] | None:
        """For a follower that needs what has left memory; empty when it was cut, None when it is damaged."""
        try:
            return tuple(spoken(entry) for entry in self.log.from_index(first_index, max_bytes))
        except (Corrupted, BadRecord) as error:
            self.found_damage(str(error))
            return None

    # Requests

    def append(self, header: Header, draft: Draft) -> AppendAnswer:
        """The batch is validated already."""
        started_s = time.monotonic()
        append_time = 0
        while draft.open:
            data, count, marks = draft.proposal()
            self._check_served()
            self._check_room(len(data))
            wall_ms = self._clock_ms()
            outcome = self._asked(
                lambda number, data=data, count=count, marks=marks, wall_ms=wall_ms: Propose(  # type: ignore[misc]
                    number, data, count, wall_ms, stamp_of(header), marks
                ),
                started_s,
            )
            if isinstance(outcome, Judged):
                draft.judged(outcome)
            else:
                assert isinstance(outcome, Committed)
                append_time = outcome.append_time
                draft.committed(outcome.base_offset)
        return {
            "status": "success",
            "results": draft.results(),
            "append_time": append_time or self._clock_ms(),
            "end_offset": self.view.end_offset,
        }

    def ask(self, make: Callable[[int], Event]) -> Outcome:
        """What only the leader may answer or decide."""
        return self._asked(make, time.monotonic())

    def _asked(self, make: Callable[[int], Event], started_s: float) -> Outcome:
        while True:
            self._check_served()
            seen = self.view
            try:
                outcome = self._group.request(self.name, make).result(
                    max(0.0, started_s + self._patience.answer_s - time.monotonic())
                )
            except TimeoutError:
                raise errors.Unavailable("the partition's replicas took too long", outcome="unknown") from None
            if isinstance(outcome, events.NotLeader):
                leader = outcome.leader
                if leader is not None and leader.broker_id != self.me.broker_id:
                    raise errors.NotLeader(details={"leader": leader.broker_id})
            elif isinstance(outcome, events.Lost):
                raise errors.Unavailable("the partition's leader was replaced meanwhile", outcome="unknown")
            elif isinstance(outcome, events.Overloaded):
                raise errors.Overloaded("too many appends wait for the partition's replicas", retry_after_s=1)
            elif isinstance(outcome, events.Refused):
                raise errors.RegistrationConflict(outcome.reason)
            elif not isinstance(outcome, events.NotReady):
                return outcome
            self._await_change(seen, started_s + self._patience.leader_s)

    def _await_change(self, seen: View, until_s: float) -> None:
        """A leader may show itself in a moment."""
        with self._changed:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                raise errors.NoLeader(outcome="not_written", retry_after_s=1)
            self._changed.wait_for(lambda: _who(self.view) != _who(seen), min(left_s, _LOOK_AGAIN_S))

    def start(self, make: Callable[[int], Event]) -> "Future[Outcome]":
        """Asks once, whoever leads, and does not wait."""
        self._check_served()
        return self._group.request(self.name, make)

    def hand_over(self, broker_id: int | None) -> None:
        """Waits until somebody else leads; who, is for the group to say."""
        if self.view.role is not Role.LEADER:
            leader = self.view.leader
            raise errors.NotLeader(details={} if leader is None else {"leader": leader.broker_id})
        if broker_id == self.me.broker_id:
            return
        self._group.transfer(self.name, broker_id)
        with self._changed:
            if not self._changed.wait_for(lambda: self.view.role is not Role.LEADER, self._patience.answer_s):
                raise errors.Unavailable("nobody took the lead", outcome="unknown")

    # Reads

    def fetch(self, offset: int, limit: int) -> bytes | None:
        """At most `limit` messages from `offset` on, as a batch and its marks, all of one entry; None at the end."""
        self._check_served()
        view = self.view
        if offset >= view.end_offset and offset >= view.start_offset:
            return None
        decoded = self._read(offset) if offset >= view.start_offset else None
        if decoded is None:
            raise errors.OffsetOutOfRange(details={"beginning_offset": self.view.start_offset})
        entry = decoded.entry
        first = offset - entry.base_offset
        count = min(limit, entry.end_offset - offset)
        if count == entry.count:
            return entry.data
        part = slices.slice_of(decoded.header, decoded.record_batch, first, count)
        return part + encode_marks(slices.marks_in(decoded.marks, first, count))

    def _read(self, offset: int) -> Decoded | None:
        group_id = self.log.group.group_id
        found = self._cache.find(group_id, offset)
        if found is not None:
            return found
        try:
            entry = self.log.at_offset(offset)
        except Corrupted as error:
            raise self._damaged(str(error)) from error
        if entry is None:
            return None
        found = Decoded(entry)
        self._cache.put(group_id, found)
        return found

    def offset_at(self, timestamp: int) -> int:
        """The first offset appended at or after `timestamp`; the end when there is none."""
        self._check_served()
        view = self.view
        try:
            index = self.log.first_appended_since(timestamp, view.applied + 1)
            return view.end_offset if index > view.applied else self.log.fields(index)[2]
        except Corrupted as error:
            raise self._damaged(str(error)) from error

    def bounds(self) -> Bounds:
        view = self.view
        size_bytes = max(0, self.log.tail.end_bytes - self.log.group.start_bytes)
        return Bounds(view.start_offset, view.end_offset, size_bytes)

    # The end

    def drop(self) -> None:
        self._dropped = True

    def found_damage(self, what: str) -> None:
        """Not served from here on; it is made again from the other replicas."""
        self.damage = self.damage or what

    def _damaged(self, what: str) -> errors.MyQueueError:
        self.found_damage(what)
        return errors.Unavailable(
            f"the stored log of the partition is damaged on this broker: {what}", outcome="not_written"
        )

    def _check_served(self) -> None:
        if self._dropped:
            raise errors.PartitionNotFound()
        if self.damage is not None:
            raise self._damaged(self.damage)


def _who(view: View) -> tuple[Role, int, Member | None, bool]:
    return view.role, view.term, view.leader, view.ready
