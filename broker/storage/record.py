"""The layout of a record: the same bytes in a frame of the journal and in a partition's file.

    kind            1    ENTRY, GROUP, DROP, META or SYNCED; only entries are in a partition's file
    entry kind      1
    head length     2    of the batch header
    group           4    number of the group the record is about
    index           8
    term            8
    base offset     8
    append time     8
    count           4
    dedup length    4
    body length     4
    body CRC        4    CRC32C of the body, not seeded: of a batch it is the client's
    chain           4    of an entry: chained to the entry before it, see `entry.chained_crc`; else 0
    reserved        4
    head, dedup records, body

Everything but the body is the record's header: it says what the record is about and is checked without the body.
"""

import struct
from enum import IntEnum
from typing import NamedTuple

from crc32c import crc32c

from broker.storage.entry import Corrupted, Entry

RECORD = struct.Struct("<BBHIQQQQIIIIII")
RECORD_BYTES = RECORD.size
MAX_HEAD_BYTES = 64
MAX_DEDUP_BYTES = 8 << 20
MAX_BODY_BYTES = 8 << 20

Buffer = bytes | bytearray | memoryview


class RecordKind(IntEnum):
    ENTRY = 1
    GROUP = 2  # state of a group: everything but its log
    DROP = 3  # the group is gone
    META = 4  # values of the broker as a whole
    SYNCED = 5  # in the head of a segment: how far a partition's file is synced


class Record(NamedTuple):
    """A record to write, or as read: `header` and `body` one after the other are its bytes."""

    kind: RecordKind
    group: int
    header: Buffer  # fixed part, batch header, dedup records
    body: Buffer

    @property
    def size_bytes(self) -> int:
        return len(self.header) + len(self.body)


def entry_record(group: int, entry: Entry, chain: int) -> Record:
    """`chain` is the checksum of the log up to and with this entry."""
    fixed = RECORD.pack(
        RecordKind.ENTRY,
        entry.kind,
        len(entry.head),
        group,
        entry.index,
        entry.term,
        entry.base_offset,
        entry.append_time,
        entry.count,
        len(entry.dedup_records),
        entry.body_bytes,
        entry.body_crc,
        chain,
        0,
    )
    return Record(RecordKind.ENTRY, group, b"".join((fixed, entry.head, entry.dedup_records)), entry.body)


def value_record(kind: RecordKind, group: int, value: bytes) -> Record:
    """A record that is no entry: its body is a msgpack value.

    It has no CRC of its own at its end: the CRC of anything with its CRC behind it is a constant, and that of the
    frame, which covers the headers of all records, would not tell two of them apart.
    """
    fixed = RECORD.pack(kind, 0, 0, group, 0, 0, 0, 0, 0, 0, len(value), crc32c(value), 0, 0)
    return Record(kind, group, fixed, value)


class ParsedRecord(NamedTuple):
    """The fixed part of a record at some place of a buffer."""

    kind: int
    entry_kind: int
    head_bytes: int
    group: int
    entry_index: int
    term: int
    base_offset: int
    append_time: int
    messages: int
    dedup_bytes: int
    body_bytes: int
    body_crc: int
    chain: int
    reserved: int

    @property
    def header_bytes(self) -> int:
        return RECORD_BYTES + self.head_bytes + self.dedup_bytes

    @property
    def size_bytes(self) -> int:
        return RECORD_BYTES + self.head_bytes + self.dedup_bytes + self.body_bytes


def parse(data: Buffer, at: int) -> ParsedRecord:
    """Checks only that the lengths are possible. Raises Corrupted; struct.error cannot happen if 64 bytes are there."""
    parsed = ParsedRecord._make(RECORD.unpack_from(data, at))
    if (
        not RecordKind.ENTRY <= parsed.kind <= RecordKind.SYNCED
        or parsed.head_bytes > MAX_HEAD_BYTES
        or parsed.dedup_bytes > MAX_DEDUP_BYTES
        or parsed.body_bytes > MAX_BODY_BYTES
        or parsed.reserved
    ):
        raise Corrupted("no record begins here")
    return parsed


def entry_at(data: memoryview, at: int, parsed: ParsedRecord, *, with_body: bool) -> Entry:
    """The entry of a record that begins at `at`. Nothing is checked here. The body is a view of `data`."""
    head_at = at + RECORD_BYTES
    dedup_at = head_at + parsed.head_bytes
    body_at = dedup_at + parsed.dedup_bytes
    return Entry(
        parsed.entry_index,
        parsed.term,
        parsed.entry_kind,
        parsed.base_offset,
        parsed.messages,
        parsed.append_time,
        bytes(data[head_at:dedup_at]),
        bytes(data[dedup_at:body_at]),
        data[body_at : body_at + parsed.body_bytes] if with_body else b"",
        parsed.body_bytes,
        parsed.body_crc,
    )
