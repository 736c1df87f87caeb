"""One segment of a partition's log: a header, then the records of its entries back to back; beside it a sparse index.

    magic           8
    group           4
    reserved        4
    first index     8    of the first record; this and the following are the state of the log before it
    base offset     8
    append time     8
    end bytes       8
    previous term   8
    chain           4
    CRC             4    of the above

Every record that is read is checked against the chain of the one before it, from a place that the index or the header
gives; of what is returned with its body, the body too.
"""

import struct
from collections.abc import Callable, Generator
from typing import NamedTuple

from crc32c import crc32c

from broker.raft.entry import Kind
from broker.storage.disk import DiskFile
from broker.storage.entry import CHAINED, Corrupted, Entry, Tail
from broker.storage.open_files import OpenFiles
from broker.storage.record import (
    MAX_BODY_BYTES,
    MAX_DEDUP_BYTES,
    MAX_HEAD_BYTES,
    RECORD,
    RECORD_BYTES,
    Buffer,
    Record,
    RecordKind,
)
from broker.storage.sparse_index import GAP_BYTES, IndexEntry, SparseIndex, index_entry_bytes

FILE_HEADER = struct.Struct("<8sIIQQQQQII")
FILE_HEADER_BYTES = FILE_HEADER.size
NO_BODIES = 1 << 63  # above every index and offset
_MAGIC = b"MQPART\x00\x01"
_JOINED_BYTES = 4 << 10  # smaller pieces are copied together: cheaper than a piece of the write each
_FIRST_READ_BYTES = 64 << 10
_MAX_READ_BYTES = 1 << 20
_ENTRY, _MESSAGES = int(RecordKind.ENTRY), int(Kind.MESSAGES)
_CHAIN_AT = RECORD_BYTES - 8
_U32 = struct.Struct("<I")

Raw = tuple[int, ...]  # the fixed part of a record, as in `ParsedRecord`; a tuple because replay makes millions


class FileStart(NamedTuple):
    """The state of the log before the first record of a file."""

    tail: Tail
    term: int


class Place(NamedTuple):
    """Where a record begins, and the state of the log before it."""

    at: int
    entry_index: int
    chain: int
    end_bytes: int


class StoredRecord(NamedTuple):
    """A checked record in a buffer that was read from position `base` of the file."""

    data: memoryview
    base: int
    at: int  # in the buffer
    raw: Raw
    end_bytes: int  # of the log after it

    @property
    def tail(self) -> Tail:
        raw = self.raw
        return Tail(raw[4] + 1, raw[6] + raw[8], raw[7], self.end_bytes, raw[12])

    @property
    def size_bytes(self) -> int:
        """As `Entry.size_bytes`."""
        raw = self.raw
        return raw[2] + raw[9] + raw[10]

    @property
    def end_at(self) -> int:
        """In the file."""
        return self.base + self.at + RECORD_BYTES + self.size_bytes

    def entry(self, *, with_body: bool) -> Entry:
        raw, data = self.raw, self.data
        head_at = self.at + RECORD_BYTES
        dedup_at = head_at + raw[2]
        body_at = dedup_at + raw[9]
        return Entry(
            raw[4],
            raw[5],
            raw[1],
            raw[6],
            raw[8],
            raw[7],
            bytes(data[head_at:dedup_at]),
            bytes(data[dedup_at:body_at]),
            data[body_at : body_at + raw[10]] if with_body else b"",
            raw[10],
            raw[11],
        )


Records = Generator[StoredRecord, None, None]


class BadBody(Corrupted):
    """The record is the right one, its body is not."""


def file_header(group: int, start: FileStart) -> bytes:
    tail = start.tail
    packed = FILE_HEADER.pack(
        _MAGIC,
        group,
        0,
        tail.next_index,
        tail.end_offset,
        tail.append_time,
        tail.end_bytes,
        start.term,
        tail.crc,
        0,
    )
    return packed[:-4] + _U32.pack(crc32c(packed[:-4]))


def file_start_of(header: bytes, group: int, first_index: int) -> FileStart:
    if len(header) < FILE_HEADER_BYTES:
        raise Corrupted("the header of a segment is cut short")
    magic, of, _, index, offset, append_time, end_bytes, term, chain, crc = FILE_HEADER.unpack_from(header)
    if magic != _MAGIC or crc32c(header[: FILE_HEADER_BYTES - 4]) != crc:
        raise Corrupted("the header of a segment does not match its checksum")
    if of != group or index != first_index:
        raise Corrupted(f"a segment of group {of} from {index} on lies where group {group} from {first_index} should")
    return FileStart(Tail(index, offset, append_time, end_bytes, chain), term)


def walk(
    file: DiskFile,
    group: int,
    place: Place,
    end_at: int,
    *,
    end_index: int = NO_BODIES,
    bodies_from: int = NO_BODIES,
    bodies_from_offset: int = NO_BODIES,
    read_bytes: int | None = None,
) -> Records:
    """The records from a place to a position or index, each checked; bodies only of those from an index or offset on.

    Bodies of other kinds than messages are always there. With `read_bytes` reads that much in one piece and ends where
    the piece ends, but not before one of the wanted bodies was found.
    """
    unpack_from, pack = RECORD.unpack_from, CHAINED.pack
    at, index, chain, end_bytes = place
    once, size = read_bytes is not None, read_bytes or _FIRST_READ_BYTES
    needed = 0
    while at < end_at and index < end_index:
        base = at
        asked = min(max(size, needed), end_at - base)
        data = memoryview(file.read(base, asked))
        length, position = len(data), 0
        found = False
        while position + RECORD_BYTES <= length:
            raw = unpack_from(data, position)
            kind, entry_kind, head, of, number, term, offset, time, count, dedup, body, body_crc, stored, reserved = raw
            if (
                kind != _ENTRY
                or of != group
                or number != index
                or reserved
                or head > MAX_HEAD_BYTES
                or dedup > MAX_DEDUP_BYTES
                or body > MAX_BODY_BYTES
            ):
                raise Corrupted(f"entry {index} is not where it should be")
            head_at = position + RECORD_BYTES
            body_at = head_at + head + dedup
            record_end = body_at + body
            is_wanted = entry_kind != _MESSAGES or index >= bodies_from or offset + count > bodies_from_offset
            if body_at > length or (is_wanted and record_end > length):
                needed = (record_end if is_wanted else body_at) - position
                break
            chain = crc32c(pack(number, term, entry_kind, offset, count, time, head, dedup, body, body_crc), chain)
            if body_at != head_at:
                chain = crc32c(data[head_at:body_at], chain)
            if chain != stored:
                raise Corrupted(f"entry {index} does not match its checksum")
            if is_wanted:
                if crc32c(data[body_at:record_end]) != body_crc:
                    raise BadBody(f"the body of entry {index} does not match its checksum")
                found = found or entry_kind == _MESSAGES or index >= bodies_from
            end_bytes += head + dedup + body
            yield StoredRecord(data, base, position, raw, end_bytes)
            index += 1
            position = record_end
            if index >= end_index:
                return
        else:
            needed = RECORD_BYTES
        at = base + position
        if once and found:
            return
        if (length < asked and position <= length) or needed > end_at - at > 0:
            raise Corrupted(f"entry {index} is cut short")
        size = _FIRST_READ_BYTES if position > length else min(2 * size, _MAX_READ_BYTES)
    if at > end_at:
        raise Corrupted(f"entry {index - 1} goes beyond the end of its segment")


class Addition:
    """Records that are to be appended to a segment, collected for one write, with the index entries they need."""

    def __init__(self, at: int, indexed_at: int, end_bytes: int, chain: int) -> None:
        self.at = at
        self.next_at = at
        self.index_entries = bytearray()
        self.last: Entry | None = None
        self._indexed_at = indexed_at  # position of the last record that is indexed; negative: none is
        self._end_bytes = end_bytes
        self._chain = chain
        self._parts: list[Buffer] = []
        self._small: list[Buffer] = []

    def add_header(self, header: bytes) -> None:
        self._small.append(header)
        self.next_at += len(header)

    def add(self, entry: Entry, record: Record) -> None:
        header, body = record.header, record.body
        body_bytes = len(body)
        size = len(header) + body_bytes
        at = self.next_at
        if size >= GAP_BYTES or self._indexed_at < 0 or at - self._indexed_at >= GAP_BYTES:
            self._indexed_at = at
            self.index_entries += index_entry_bytes(
                IndexEntry(
                    entry.index, entry.term, entry.base_offset, entry.append_time, self._end_bytes, at, self._chain
                )
            )
        small = self._small
        small.append(header)
        if body_bytes < _JOINED_BYTES:
            small.append(body)
        else:
            self._parts.append(b"".join(small))
            self._parts.append(body)
            small.clear()
        self.next_at = at + size
        self._end_bytes += entry.size_bytes
        self._chain = _U32.unpack_from(header, _CHAIN_AT)[0]
        self.last = entry

    @property
    def tail(self) -> Tail:
        assert self.last is not None
        last = self.last
        return Tail(last.index + 1, last.end_offset, last.append_time, self._end_bytes, self._chain)

    def parts(self) -> list[Buffer]:
        if self._small:
            self._parts.append(b"".join(self._small))
            self._small = []
        return self._parts


class PartitionFile:
    """A segment. Changed by the upkeep thread only: it grows at its end, a cut makes another object."""

    def __init__(self, files: OpenFiles, folder: str, group: int, base_offset: int, first_index: int) -> None:
        self.name = f"{folder}/{base_offset:020d}-{first_index}.log"
        self.index_name = self.name.removesuffix(".log") + ".idx"
        self.group = group
        self.base_offset = base_offset
        self.first_index = first_index
        self.size = -1  # bytes that count; negative: the whole file, which is sealed and was not looked at yet
        self.index: SparseIndex | None = None  # in memory as long as it is not stored as a whole
        self.index_stored = 0  # bytes of the index that are in its file
        self.index_synced = 0
        self.is_dirty = False
        self.dropped_at = 0  # up to here the kernel was asked to forget the pages
        self._files = files
        self._start: FileStart | None = None

    def start(self) -> FileStart:
        if self._start is None:
            with self._files.pinned(self.name) as file:
                header = file.read(0, FILE_HEADER_BYTES)
            self._start = file_start_of(header, self.group, self.first_index)
            if self._start.tail.end_offset != self.base_offset:
                raise Corrupted("a segment does not begin with the offset in its name")
        return self._start

    def set_start(self, start: FileStart) -> None:
        self._start = start

    def first_place(self) -> Place:
        tail = self.start().tail
        return Place(FILE_HEADER_BYTES, self.first_index, tail.crc, tail.end_bytes)

    def records(
        self,
        choose: Callable[[SparseIndex], int],
        *,
        end_index: int = NO_BODIES,
        bodies_from: int = NO_BODIES,
        bodies_from_offset: int = NO_BODIES,
        max_bytes: int | None = None,
        from_disk: bool = False,
    ) -> Records:
        """From the record on whose index entry is chosen; -1 or less: from the first. To the end, or about `max_bytes`.

        The file stays pinned until the iteration ends.
        """
        with self._files.pinned(self.name) as file:
            if self.size < 0:
                self.size = file.size_bytes
            end_at = self.size
            for is_last in (False, True):
                index = self.sparse_index(file) if not is_last else self._rebuilt(file)
                try:
                    number = choose(index)
                    place, read_bytes = self._plan(index, number, end_at, max_bytes)
                    if from_disk:
                        file.drop_cache(place.at, read_bytes or end_at - place.at)
                    found = walk(
                        file,
                        self.group,
                        place,
                        end_at,
                        end_index=end_index,
                        bodies_from=bodies_from,
                        bodies_from_offset=bodies_from_offset,
                        read_bytes=read_bytes,
                    )
                    first = next(found, None)
                except BadBody:
                    raise
                except Corrupted:
                    if is_last:
                        raise
                    continue  # the index may be what is wrong
                if first is not None:
                    yield first
                    yield from found
                return

    def _plan(self, index: SparseIndex, number: int, end_at: int, max_bytes: int | None) -> tuple[Place, int | None]:
        """Where to begin, and how much to read so that no record is read in part if the index can tell."""
        place = self.first_place() if number < 0 else place_of(index.entry(number))
        if max_bytes is None:
            return place, None
        following = number + 1 if number >= 0 else 1
        gap_end = index.entry(following).position if following < len(index) else end_at
        wanted = gap_end + max_bytes + max_bytes // 16
        if wanted < end_at:
            last = index.last_up_to_position(wanted)
            wanted = max(gap_end, index.entry(last).position) if last >= 0 else gap_end
        return place, max(min(wanted, end_at) - place.at, RECORD_BYTES)

    def sparse_index(self, file: DiskFile) -> SparseIndex:
        if self.index is not None:
            return self.index
        found = self._files.indexes.find(self.index_name)
        if found is None:
            found = self.completed(file, stored_index(self._files, self.index_name), file.size_bytes)
            self._files.indexes.put(self.index_name, found)
        return found

    def completed(self, file: DiskFile, index: SparseIndex, end_at: int) -> SparseIndex:
        """With entries for what lies behind the last one, if there is more than one gap of it."""
        try:
            last = index.entry(len(index) - 1) if len(index) else None
        except Corrupted:
            return self._rebuilt(file)
        if last is None or end_at - last.position > 2 * GAP_BYTES:
            self._extend(file, index, place_of(last) if last is not None else self.first_place(), end_at)
        return index

    def _rebuilt(self, file: DiskFile) -> SparseIndex:
        index = SparseIndex()
        self._extend(file, index, self.first_place(), self.size if self.size >= 0 else file.size_bytes)
        self.index, self.index_stored, self.is_dirty = index, 0, True  # stored by the next sync
        return index

    def _extend(self, file: DiskFile, index: SparseIndex, place: Place, end_at: int) -> None:
        """Up to the end or to damage: what lies before that is readable, and who reads further meets it."""
        indexed_at = place.at if len(index) else -1
        end_bytes, chain = place.end_bytes, place.chain
        try:
            for stored in walk(file, self.group, place, end_at):
                raw, at = stored.raw, stored.base + stored.at
                if at != indexed_at and (
                    indexed_at < 0 or at - indexed_at >= GAP_BYTES or stored.end_at - at >= GAP_BYTES
                ):
                    indexed_at = at
                    index.add(index_entry_bytes(IndexEntry(raw[4], raw[5], raw[6], raw[7], end_bytes, at, chain)))
                end_bytes, chain = stored.end_bytes, raw[12]
        except Corrupted:
            return


def place_of(entry: IndexEntry) -> Place:
    return Place(entry.position, entry.entry_index, entry.chain, entry.end_bytes)


def stored_index(files: OpenFiles, name: str) -> SparseIndex:
    """As the file has it; empty when there is none."""
    try:
        with files.pinned(name) as file:
            return SparseIndex(file.read(0, file.size_bytes))
    except FileNotFoundError:
        return SparseIndex()
