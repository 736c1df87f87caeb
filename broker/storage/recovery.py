"""The start of a broker on what its disk holds: the journal is replayed, and every partition's file ends where it does.

After it everything is in the partitions' files and synced, and a new segment of the journal begins: nothing that an
unsynced page showed is relied on, and nothing that was torn can come back.
"""

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import msgpack
from crc32c import crc32c

from broker.storage.disk import Disk, NoSpace, StorageRefused
from broker.storage.entry import Corrupted, Entry, chained_crc
from broker.storage.group import DroppedGroup, Group, LogPosition, dropped_of, group_of, position_of
from broker.storage.journal import Journal
from broker.storage.open_files import OpenFiles
from broker.storage.partition_log import PartitionLog
from broker.storage.record import ParsedRecord, Record, RecordKind, entry_at, parse
from broker.storage.snapshot_files import group_folder, remove_old_snapshots
from broker.storage.store import ASIDE, BROKER_ID, Store, remove_dropped, sync_aside, with_incarnation
from service.logs import Log as Logger


@dataclass(slots=True)
class ReplayedLog:
    """Entries of one group in the journal, in order of their indexes; a later one replaces all from its index on."""

    first: int = 0
    records: list[tuple[Record, ParsedRecord, int]] = field(default_factory=list)  # with the segment it lies in

    def add(self, record: Record, parsed: ParsedRecord, segment: int) -> None:
        if not self.records or parsed.entry_index <= self.first:
            self.first = parsed.entry_index
            self.records.clear()
        kept = parsed.entry_index - self.first
        if kept > len(self.records):
            raise Corrupted(f"entry {parsed.entry_index} is in the journal, the one before it is not")
        del self.records[kept:]
        self.records.append((record, parsed, segment))

    def drop_stored(self, position: LogPosition) -> None:
        """Leave out what the partition's files hold already: up to there both have the same chain."""
        last = position.tail.next_index - 1
        place = last - self.first
        if 0 <= place < len(self.records) and self.records[place][1].chain == position.tail.crc:
            del self.records[: place + 1]
            self.first = last + 1


@dataclass(slots=True)
class ReplayedState:
    values: dict[str, str] = field(default_factory=dict)
    former: set[tuple[bytes, int]] = field(default_factory=set)
    groups: dict[int, Group] = field(default_factory=dict)
    positions: dict[int, LogPosition] = field(default_factory=dict)
    entries: dict[int, ReplayedLog] = field(default_factory=dict)
    damaged: dict[int, str] = field(default_factory=dict)
    aside: dict[int, DroppedGroup] = field(default_factory=dict)  # whose files may not have been moved yet

    def apply(self, record: Record, segment: int, *, is_first_head: bool) -> None:
        group_id = record.group
        if record.kind is RecordKind.ENTRY:
            try:
                self.entries.setdefault(group_id, ReplayedLog()).add(record, parse(record.header, 0), segment)
            except Corrupted as error:
                self.damaged.setdefault(group_id, str(error))
            return
        if crc32c(record.body) != parse(record.header, 0).body_crc:
            raise Corrupted("a state record of the journal does not match its checksum")
        if record.kind is RecordKind.GROUP:
            self.groups[group_id] = group_of(bytes(record.body))
        elif record.kind is RecordKind.SYNCED:
            self.positions[group_id] = position_of(bytes(record.body))
        elif record.kind is RecordKind.DROP:
            self._drop(dropped_of(group_id, bytes(record.body)))
        else:
            self._set_values(msgpack.unpackb(record.body), is_first_head)

    def _drop(self, dropped: DroppedGroup) -> None:
        for held in (self.groups, self.positions, self.entries, self.damaged):
            held.pop(dropped.group_id, None)
        if dropped.former is not None:
            self.former.add(dropped.former)
        if dropped.aside is not None:
            self.aside[dropped.group_id] = dropped

    def _set_values(self, value: Any, is_first_head: bool) -> None:
        values, former = value
        self.values.update(values)
        if former is not None and is_first_head:
            self.former = {(topic_id, partition_id) for topic_id, partition_id in former}


def open_store(
    disk: Disk, journal: Journal, logger: Logger, *, broker_id: int | None, segment_bytes: int, open_files: int = 512
) -> Store:
    """`broker_id`: the configured one, stored here at the first start.

    Raises StorageRefused when the folder is another broker's, and DiskError when the disk cannot be read: that is no
    reason to distrust what it holds. Nothing has been written then.
    """
    recovery = journal.recover()
    state = ReplayedState()
    damage: str | None = None
    is_first = True
    try:
        for frame in recovery.frames:
            for record in frame.records:
                state.apply(record, frame.segment, is_first_head=is_first)
            is_first = False
    except Corrupted as error:
        damage = str(error)
    damage = damage or recovery.damage
    if damage is not None:
        logger.error("the journal is damaged: the replicas of this broker do not vote", damage=damage)
    values = _with_broker_id(state.values, broker_id)
    files = OpenFiles(disk, open_files)
    logs = [_opened(state, group, files, logger, segment_bytes, damage) for group in state.groups.values()]
    store = Store(
        disk,
        journal,
        files,
        segment_bytes=segment_bytes,
        values=with_incarnation(values, renew=damage is not None),
        former=state.former,
        logs=logs,
        found_sequence=recovery.sequence,
    )
    store.wrote([log for log in logs if log.unflushed_bytes], sum(log.unflushed_bytes for log in logs))
    if damage is not None or recovery.empty:
        _set_unknown_aside(disk, state, recovery.starts)
    else:
        _remove_unknown(disk, state)
    sync_aside(disk)  # also what a process did that was killed: the head of the new segment does not mention it
    lost = [log for log in logs if log.group.suspect != state.groups[log.group.group_id].suspect]
    journal.begin(
        recovery.starts + 1,
        store.head,
        replay_from=store.replay_from,
        keeps_segments=any(log.group.group_id in state.entries for log in lost),
    )
    return store


def _with_broker_id(values: dict[str, str], broker_id: int | None) -> dict[str, str]:
    """A folder belongs to one broker: under another id it would answer for partitions it does not hold."""
    stored = values.get(BROKER_ID)
    if broker_id is None or stored == str(broker_id):
        return values
    if stored is not None:
        raise StorageRefused(f"the data folder belongs to broker {stored}, not to broker {broker_id}")
    return {**values, BROKER_ID: str(broker_id)}


def _opened(
    state: ReplayedState, group: Group, files: OpenFiles, logger: Logger, segment_bytes: int, damage: str | None
) -> PartitionLog:
    log = PartitionLog(files, group, segment_bytes=segment_bytes)
    position, replayed = state.positions.get(group.group_id), state.entries.get(group.group_id)
    reason = damage or state.damaged.get(group.group_id) or group.suspect
    if reason is None:
        try:
            _replay(log, position, replayed)
        except Corrupted as error:
            reason = str(error)
    if reason is not None:
        _salvage(log, replayed)
        if group.suspect is None:
            logger.error("replica is suspect", topic=group.settings.topic, partition=group.partition_id, why=reason)
            log.set_group(replace(log.group, suspect=reason))
    return log


def _replay(log: PartitionLog, position: LogPosition | None, replayed: ReplayedLog | None) -> None:
    if replayed is not None and position is not None:
        replayed.drop_stored(position)
    if replayed is None or not replayed.records:
        log.recover(position, None)
        return
    if bad := _first_bad_body(replayed.records):  # before the files are cut: they may hold a sound copy
        raise Corrupted(f"the body of entry {bad.entry_index} in the journal does not match its checksum")
    following = log.recover(position, replayed.first)
    if following < replayed.first:
        raise Corrupted(f"the log ends before entry {following}, the journal goes on at {replayed.first}")
    # What is left out is below the start: retention has passed it and its files are gone.
    _write_replayed(log, replayed.records[following - replayed.first :])


def _salvage(log: PartitionLog, replayed: ReplayedLog | None) -> None:
    """As much as is sound stays readable: files as they are, and behind them what only the journal holds."""
    log.salvage()
    with suppress(NoSpace):
        log.sync()  # their segments of the journal will be used again
    if replayed is None or not replayed.first <= log.tail.next_index < replayed.first + len(replayed.records):
        return
    with suppress(Corrupted):  # a bad body is refused when it is read; those behind it are sound
        _write_replayed(log, replayed.records[log.tail.next_index - replayed.first :])


def _first_bad_body(records: list[tuple[Record, ParsedRecord, int]]) -> ParsedRecord | None:
    return next((parsed for record, parsed, _ in records if crc32c(record.body) != parsed.body_crc), None)


def _write_replayed(log: PartitionLog, replayed: list[tuple[Record, ParsedRecord, int]]) -> None:
    """Raises Corrupted at the first entry that does not match; those before it are written."""
    tail = log.tail
    entries: list[Entry] = []
    records: list[Record] = []
    try:
        for record, parsed, _ in replayed:
            data = memoryview(bytes(record.header))
            entry = replace(entry_at(data, 0, parsed, with_body=False), body=memoryview(record.body))
            if chained_crc(tail.crc, entry) != parsed.chain:
                raise Corrupted(f"entry {entry.index} in the journal does not match the chain")
            tail = tail.after(entry)
            entries.append(entry)
            records.append(record)
    finally:
        if entries:
            log.written(entries, records, tail, replayed[0][2])
            with suppress(NoSpace):  # they stay in memory and in the journal until there is room
                log.sync()


def _unknown(disk: Disk, state: ReplayedState) -> list[str]:
    return [name for name in disk.names("partitions") if not name.isdigit() or int(name) not in state.groups]


def _set_unknown_aside(disk: Disk, state: ReplayedState, starts: int) -> None:
    """The journal that would name them is damaged or gone: they may be all that is left of a partition."""
    for name in _unknown(disk, state):
        disk.rename(f"partitions/{name}", f"{ASIDE}/unknown-{starts}-{name}")


def _remove_unknown(disk: Disk, state: ReplayedState) -> None:
    """Files of groups that the journal does not name: dropped before a crash, or never made known."""
    for name in _unknown(disk, state):
        if name.isdigit() and int(name) in state.aside:
            remove_dropped(disk, state.aside[int(name)])
        else:
            disk.remove(f"partitions/{name}")
    for group in state.groups.values():
        if disk.names(group_folder(group.group_id)):
            remove_old_snapshots(disk, group)
