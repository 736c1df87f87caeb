"""What one round writes: records in order, each with its effect once it is durable."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import msgpack

from broker.raft.effects import Persist
from broker.raft.entry import LogEntry
from broker.raft.snapshot import HardState, Snapshot
from broker.storage.entry import Entry, Tail, entry_of
from broker.storage.group import DroppedGroup, Group, SnapshotState, dropped_value, group_value
from broker.storage.partition_log import PartitionLog
from broker.storage.record import Record, RecordKind, entry_record, value_record

_STALE_ENTRIES = 256
_STALE_BYTES = 8 << 20


@dataclass(slots=True)
class Written:
    """Entries of one log that are durable together."""

    log: PartitionLog
    entries: list[Entry] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    tail: Tail | None = None

    def take_effect(self, segment: int) -> None:
        assert self.tail is not None
        self.log.written(self.entries, self.records, self.tail, segment)


class Item(NamedTuple):
    """A record, and what it does: an entry of a log, or a call after it is durable."""

    record: Record
    log: PartitionLog | None
    entry: Entry | None
    tail: Tail | None
    effect: Callable[[], None] | None
    with_next: bool = False  # in one frame with the record after it


class SnapshotRequest(NamedTuple):
    """A snapshot that is to be written beside the rounds: the log starts there only when it is durable."""

    log: PartitionLog
    snapshot: Snapshot


class Installs(Protocol):
    """Logs that start anew from a snapshot of their leader."""

    def install(self, snapshot: Snapshot) -> tuple[int, SnapshotState]:
        """A new group id, and what the snapshot's files are, which are durable by then. May raise NoSpace."""
        ...

    def installed(self, log: PartitionLog, old_id: int, group: Group) -> None: ...

    def abandoned(self, group_id: int) -> None:
        """The files of that one are not needed: the round will not be written."""
        ...


class Round:
    """Built on the writing thread from all jobs that wait; effects happen in the order of the records."""

    def __init__(self, installs: Installs) -> None:
        self._installs = installs
        self.items: list[Item] = []
        self.snapshots: list[SnapshotRequest] = []
        self._tails: dict[PartitionLog, Tail] = {}
        self._groups: dict[PartitionLog, Group] = {}
        self._dropped: set[PartitionLog] = set()
        self._installed: list[int] = []
        self._begun: dict[PartitionLog, int] = {}  # logs that start anew: how many items were before

    def abandon(self) -> None:
        """It will not be written."""
        for group_id in self._installed:
            self._installs.abandoned(group_id)

    def group_of(self, log: PartitionLog) -> Group:
        return self._groups.get(log, log.group)

    def append(self, log: PartitionLog, entry: Entry) -> None:
        before = self._tails.get(log)
        if before is None or before.next_index != entry.index:
            before = self._tail_before(log, entry.index)
        tail = self._tails[log] = before.after(entry)
        record = entry_record(self.group_of(log).group_id, entry, tail.crc)
        self.items.append(Item(record, log, entry, tail, None))

    def _tail_before(self, log: PartitionLog, index: int) -> Tail:
        begun = self._begun.get(log, 0)
        for item in reversed(self.items[begun:]):  # a suffix that this very round replaces
            if item.log is log and item.tail is not None and item.tail.next_index == index:
                return item.tail
        return self.group_of(log).start if begun else log.tail_before(index)

    def holds(self, log: PartitionLog) -> bool:
        """Nothing may be written about a log that was dropped: a start would find it again."""
        return not log.is_dropped and log not in self._dropped

    def set_group(self, log: PartitionLog, group: Group) -> None:
        if not self.holds(log):
            return
        self._groups[log] = group
        self._add(RecordKind.GROUP, group.group_id, group_value(group), lambda: log.set_group(group))

    def open(self, group: Group, effect: Callable[[], None]) -> None:
        self._add(RecordKind.GROUP, group.group_id, group_value(group), effect)

    def drop(self, log: PartitionLog, dropped: DroppedGroup, effect: Callable[[], None]) -> None:
        self._dropped.add(log)
        self._add(RecordKind.DROP, dropped.group_id, dropped_value(dropped), effect)

    def set_values(self, values: dict[str, str], effect: Callable[[], None]) -> None:
        self._add(RecordKind.META, 0, meta_value(values, None), effect)

    def _add(self, kind: RecordKind, group_id: int, value: bytes, effect: Callable[[], None]) -> None:
        self.items.append(Item(value_record(kind, group_id, value), None, None, None, effect))

    def persist(self, log: PartitionLog, persist: Persist) -> None:
        """What the core owes the disk for one group."""
        if not self.holds(log):
            return
        group = self.group_of(log)
        if persist.snapshot is not None:
            if persist.truncate_from == 0:
                self._start_anew(log, group, persist.snapshot, persist.hard, persist.entries)
                return
            self.snapshots.append(SnapshotRequest(log, persist.snapshot))
        entries = persist.entries
        hard, old = persist.hard, group.hard
        # The commit index alone is stored now and then: it only says how far a restart may go without asking.
        stale = hard.commit - old.commit >= _STALE_ENTRIES or log.unsaved_bytes >= _STALE_BYTES
        if stale or (hard.term, hard.vote) != (old.term, old.vote):
            self.set_group(log, replace(group, hard=_covered(hard, entries)))
            log.unsaved_bytes = 0
        self._append_all(log, entries)

    def _append_all(self, log: PartitionLog, entries: Sequence[LogEntry]) -> None:
        for entry in entries:
            kept = entry_of(entry)
            self.append(log, kept)
            log.unsaved_bytes += kept.size_bytes

    def _start_anew(
        self, log: PartitionLog, group: Group, snapshot: Snapshot, hard: HardState, entries: Sequence[LogEntry]
    ) -> None:
        """A snapshot of the leader replaces the log: it goes on, empty, in files of its own."""
        old_id = group.group_id
        new_id, state = self._installs.install(snapshot)
        again = replace(
            group,
            group_id=new_id,
            hard=_covered(hard, entries),
            first_index=snapshot.start_index,
            start_offset=snapshot.start_offset,
            start_bytes=0,
            start_crc=0,
            previous_term=snapshot.previous_term,
            snapshot=state,
        )
        self._groups[log] = again
        self._tails[log] = again.start
        dropped = value_record(RecordKind.DROP, old_id, dropped_value(DroppedGroup(old_id)))
        self.items.append(Item(dropped, None, None, None, lambda: None, with_next=True))
        self._begun[log] = len(self.items)
        self._installed.append(new_id)
        self._add(RecordKind.GROUP, new_id, group_value(again), lambda: self._installs.installed(log, old_id, again))
        self._append_all(log, entries)


def _covered(hard: HardState, entries: Sequence[LogEntry]) -> HardState:
    """A round may reach the disk in part, and this record comes first: it must not name entries that follow it."""
    if entries and hard.commit >= entries[0].index:
        return replace(hard, commit=entries[0].index - 1)
    return hard


def meta_value(values: dict[str, str], former: Sequence[tuple[bytes, int]] | None) -> bytes:
    packed: bytes = msgpack.packb((values, former))
    return packed
