"""An entry as it is stored, and the checksum that chains it to the entry before it.

The leader's offset and time go into the batch header here, on every replica in the same way, so that all of them hold
the same bytes. A header that already has them stays as it is.
"""

import struct
from dataclasses import dataclass
from typing import Any

import msgpack
from crc32c import crc32c

from broker.raft.configuration import GroupConfiguration, MemberId
from broker.raft.entry import Body, Kind, LogEntry, LogStart, Stamp
from myqueue.protocol import batch as batches
from myqueue.protocol.batch import HEADER_BYTES, NO_PRODUCER, Header
from myqueue.protocol.dedup_records import DedupRecord, decode_dedup_records
from myqueue.protocol.errors import InvalidRequest

NO_KEY = bytes(16)  # a dedup record that names the producer only
_PLACE = struct.Struct("<QQ")
_PLACE_AT = 24  # of base offset and append time in the batch header
_SIZE = struct.Struct("<I")
_SIZE_AT = 52
_BODY_CRC_AT = 56
_CRC_AT = 60
CHAINED = struct.Struct("<QQBQIQIIII")


class Corrupted(Exception):
    """What is stored is not what was written."""


@dataclass(slots=True)
class Entry:
    """Of a batch, header and body are apart: what identifies it is read without its body.

    Never changed, but not frozen: a frozen one takes three times as long to make, and one is made for every entry read.
    """

    index: int
    term: int
    kind: int
    base_offset: int
    count: int
    append_time: int
    head: bytes  # the batch's header; empty for entries without messages
    dedup_records: bytes
    body: bytes | memoryview  # the batch's body, or the value of another kind of entry; empty when read without it
    body_bytes: int  # its length, also when it was not read
    body_crc: int  # CRC32C of the body; of a batch it is the one in its header, made by the client

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.count

    @property
    def size_bytes(self) -> int:
        return len(self.head) + len(self.dedup_records) + self.body_bytes

    @property
    def data(self) -> bytes:
        """The batch with its dedup records, as it travels."""
        return b"".join((self.head, self.body, self.dedup_records))


def chained_crc(previous: int, entry: Entry) -> int:
    """Covers the entry but its body, the CRC of its body and, through `previous`, everything before it.

    The lengths are covered too: else bytes could move from one part to the next unnoticed.
    """
    fields = CHAINED.pack(
        entry.index,
        entry.term,
        entry.kind,
        entry.base_offset,
        entry.count,
        entry.append_time,
        len(entry.head),
        len(entry.dedup_records),
        entry.body_bytes,
        entry.body_crc,
    )
    crc: int = crc32c(entry.dedup_records, crc32c(entry.head, crc32c(fields, previous)))
    return crc


@dataclass(frozen=True, slots=True)
class Tail:
    """Where the next entry of a log goes."""

    next_index: int
    end_offset: int
    append_time: int
    end_bytes: int  # of all entries up to here since the log began, by `Entry.size_bytes`
    crc: int

    def after(self, entry: Entry) -> "Tail":
        return Tail(
            next_index=entry.index + 1,
            end_offset=entry.end_offset,
            append_time=entry.append_time,
            end_bytes=self.end_bytes + entry.size_bytes,
            crc=chained_crc(self.crc, entry),
        )


def entry_of(entry: LogEntry) -> Entry:
    """As the disk keeps it."""
    fixed = (entry.index, entry.term, int(entry.kind), entry.base_offset, entry.count, entry.append_time)
    body = entry.body
    if isinstance(body, bytes):
        size = _SIZE.unpack_from(body, _SIZE_AT)[0]
        end = HEADER_BYTES + size
        head = _placed(body, entry.base_offset, entry.append_time)
        crc = _SIZE.unpack_from(body, _BODY_CRC_AT)[0]
        return Entry(*fixed, head, body[end:], memoryview(body)[HEADER_BYTES:end], size, crc)
    value = b""
    if isinstance(body, GroupConfiguration):
        value = _packed(configuration_values(body))
    elif isinstance(body, LogStart):
        value = _packed((body.start_index, body.start_offset))
    return Entry(*fixed, b"", b"", value, len(value), crc32c(value))


def _placed(batch: bytes, base_offset: int, append_time: int) -> bytes:
    head = bytearray(batch[:HEADER_BYTES])
    _PLACE.pack_into(head, _PLACE_AT, base_offset, append_time)
    _SIZE.pack_into(head, _CRC_AT, crc32c(head[:_CRC_AT]))
    return bytes(head)


def log_entry_of(entry: Entry) -> LogEntry:
    """As the core uses it; without its batch when the entry was read without its body."""
    try:
        kind = Kind(entry.kind)
        stamp: Stamp | None = None
        records: tuple[DedupRecord, ...] = ()
        body: Body = None
        if kind is Kind.MESSAGES:
            stamp = stamp_of(batches.decode_header(entry.head))
            records = keyed(decode_dedup_records(entry.dedup_records, entry.count))
            body = entry.data
        elif kind is Kind.CONFIGURATION:
            body = configuration_of(msgpack.unpackb(entry.body))
        elif kind is Kind.TRUNCATE:
            body = LogStart(*msgpack.unpackb(entry.body))
    except (InvalidRequest, ValueError, TypeError, struct.error, msgpack.UnpackException) as error:
        raise Corrupted(f"entry {entry.index} is not readable: {error}") from error
    return LogEntry(
        entry.index, entry.term, kind, entry.base_offset, entry.append_time, entry.count, stamp, records, body
    )


def stamp_of(header: Header) -> Stamp | None:
    if header.producer_id == NO_PRODUCER:
        return None
    return Stamp(header.producer_id, header.producer_epoch, header.sequence, header.body_crc)


def keyed(records: list[DedupRecord]) -> tuple[DedupRecord, ...]:
    return tuple(record for record in records if record.key != NO_KEY)


def configuration_values(configuration: GroupConfiguration) -> tuple[tuple[MemberId, ...], tuple[MemberId, ...]]:
    return configuration.voters, configuration.learners


def configuration_of(values: Any) -> GroupConfiguration:
    voters, learners = values
    return GroupConfiguration(
        tuple(MemberId(*member) for member in voters), tuple(MemberId(*member) for member in learners)
    )


def _packed(value: object) -> bytes:
    packed: bytes = msgpack.packb(value)
    return packed
