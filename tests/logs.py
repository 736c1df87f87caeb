"""A partition's log without a broker around it: entries, and what a journal would say after a start."""

from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

from crc32c import crc32c

from broker.raft.entry import Kind
from broker.raft.snapshot import HardState
from broker.storage.disk import Disk
from broker.storage.entry import Entry, Tail
from broker.storage.group import Group, LogPosition, Settings, SnapshotState
from broker.storage.log_view import LogView
from broker.storage.open_files import OpenFiles
from broker.storage.partition_log import PartitionLog
from broker.storage.record import entry_record

GROUP = Group(7, UUID(int=1), 0, 1, Settings("topic"), HardState(1, None, 0))
_HEAD_BYTES = 64


def messages(tail: Tail, body: bytes, *, count: int = 1, term: int = 1, time: int = 0, dedup: bytes = b"") -> Entry:
    """An entry that follows the tail."""
    head = bytes([body[0] if body else 0]) * _HEAD_BYTES
    return Entry(
        tail.next_index,
        term,
        int(Kind.MESSAGES),
        tail.end_offset,
        count,
        max(time, tail.append_time),
        head,
        dedup,
        body,
        len(body),
        crc32c(body),
    )


def noop(tail: Tail, *, term: int = 1, time: int = 0) -> Entry:
    time = max(time, tail.append_time)
    return Entry(tail.next_index, term, int(Kind.NOOP), tail.end_offset, 0, time, b"", b"", b"", 0, crc32c(b""))


def write(log: PartitionLog, entries: Sequence[Entry], segment: int = 1) -> None:
    """As the writer does when the journal has them."""
    tail = log.tail_before(entries[0].index)
    records = []
    for entry in entries:
        tail = tail.after(entry)
        records.append(entry_record(log.group.group_id, entry, tail.crc))
    log.written(entries, records, tail, segment)


def append(
    log: PartitionLog, bodies: Sequence[bytes], *, segment: int = 1, term: int = 1, time: int = 0
) -> list[Entry]:
    """In one round."""
    tail = log.tail
    entries = []
    for body in bodies:
        entries.append(messages(tail, body, term=term, time=time))
        tail = tail.after(entries[-1])
    write(log, entries, segment)
    return entries


def cut_before(log: PartitionLog, index: int) -> None:
    """Retention: the log starts with `index`."""
    tail = log.tail_at(index - 1)
    group = replace(
        log.group,
        first_index=index,
        start_offset=tail.end_offset,
        start_bytes=tail.end_bytes,
        start_crc=tail.crc,
        snapshot=SnapshotState(index=index - 1),
    )
    log.set_group(group)


def plain(entry: Entry | None) -> Entry | None:
    """With a body that compares and that keeps no buffer."""
    return None if entry is None else replace(entry, body=bytes(entry.body))


def plain_all(entries: Sequence[Entry]) -> list[Entry]:
    return [replace(entry, body=bytes(entry.body)) for entry in entries]


class JournaledLog:
    """A log with what the journal would have of it: a position in its head, and the entries of its segments."""

    def __init__(self, disk: Disk, *, segment_bytes: int = 1000, group: Group = GROUP) -> None:
        self.disk = disk
        self._segment_bytes = segment_bytes
        self._group = group
        self._position: LogPosition | None = LogPosition(0, 0, group.start, ())
        self._journal: list[tuple[int, list[Entry]]] = []  # segment, entries
        self.segment = 1
        self.start()

    def start(self) -> None:
        """After a stop of any kind. What was not closed stays open: a killed process does not close either."""
        replayed: list[Entry] = []
        for _, entries in self._journal:
            replayed = [entry for entry in replayed if entry.index < entries[0].index] + entries
        self.files = OpenFiles(self.disk, limit=4)
        self.log = PartitionLog(self.files, self._group, segment_bytes=self._segment_bytes)
        first = self.log.recover(self._position, replayed[0].index if replayed else None)
        needed = [entry for entry in replayed if entry.index >= first]
        if needed:
            write(self.log, needed, self._journal[0][0])

    def write(self, entries: list[Entry]) -> None:
        self._journal.append((self.segment, entries))
        write(self.log, entries, self.segment)

    def cut_before(self, index: int) -> None:
        cut_before(self.log, index)
        self._group = self.log.group

    def next_segment(self) -> None:
        """The journal begins another segment: the head has the position, what needs no replay is released."""
        self._position = self.log.position
        self.segment += 1
        oldest = self.log.unsynced_segment
        self._journal = [part for part in self._journal if oldest is not None and part[0] >= oldest]


def use_view_once(log: PartitionLog, view: LogView) -> None:
    """The next read begins with what the log was then, as if it had been interrupted since."""
    fresh = log._view

    def view_once() -> LogView:
        log._view = fresh  # type: ignore[method-assign]
        return view

    log._view = view_once  # type: ignore[method-assign]
