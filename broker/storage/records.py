"""What the Raft core says, as bytes for the disk, and back.

The leader's offset and time go into the batch header here, on every replica in the same way, so that all of them hold
the same bytes. A header that already has them stays as it is.
"""

import struct
from typing import Any

import msgpack
from crc32c import crc32c

from broker.raft.configuration import GroupConfiguration, MemberId
from broker.raft.dedupe_codec import decode_dedupe, encode_dedupe
from broker.raft.entry import Body, Kind, LogEntry, LogStart, Stamp
from broker.raft.snapshot import Snapshot
from broker.storage.entry import Entry
from myqueue.protocol import batch as batches
from myqueue.protocol.batch import HEADER_BYTES, NO_PRODUCER, Header
from myqueue.protocol.dedup_records import DedupRecord, decode_dedup_records
from myqueue.protocol.errors import InvalidRequest

NO_KEY = bytes(16)  # a mark that names the producer only
_PLACE = struct.Struct("<QQ")
_PLACE_AT = 24  # of base offset and append time in the batch header
_SIZE = struct.Struct("<I")
_SIZE_AT = 52
_CRC_AT = 60
_MEMBER = struct.Struct("<IQ")


class BadRecord(Exception):
    """Bytes that are not what they should be."""


def stored(entry: LogEntry) -> Entry:
    fixed = (entry.index, entry.term, int(entry.kind), entry.base_offset, entry.count, entry.append_time)
    body = entry.body
    if isinstance(body, bytes):
        end = HEADER_BYTES + _SIZE.unpack_from(body, _SIZE_AT)[0]
        head = _placed(body, entry.base_offset, entry.append_time)
        return Entry(*fixed, head, body[end:], memoryview(body)[HEADER_BYTES:end])
    if isinstance(body, GroupConfiguration):
        return Entry(*fixed, b"", b"", _packed(_configuration_fields(body)))
    if isinstance(body, LogStart):
        return Entry(*fixed, b"", b"", _packed([body.start_index, body.start_offset]))
    return Entry(*fixed, b"", b"", b"")


def _placed(batch: bytes, base_offset: int, append_time: int) -> bytes:
    head = bytearray(batch[:HEADER_BYTES])
    _PLACE.pack_into(head, _PLACE_AT, base_offset, append_time)
    _SIZE.pack_into(head, _CRC_AT, crc32c(head[:_CRC_AT]))
    return bytes(head)


def spoken(entry: Entry) -> LogEntry:
    """As the core knows it; without its batch when the stored entry came without its body."""
    try:
        kind = Kind(entry.kind)
        stamp: Stamp | None = None
        marks: tuple[DedupRecord, ...] = ()
        body: Body = None
        if kind is Kind.MESSAGES:
            stamp = stamp_of(batches.decode_header(entry.head))
            marks = keyed(decode_dedup_records(entry.marks, entry.count))
            body = entry.data
        elif kind is Kind.CONFIGURATION:
            body = _configuration(msgpack.unpackb(entry.body))
        elif kind is Kind.TRUNCATE:
            body = LogStart(*msgpack.unpackb(entry.body))
    except (InvalidRequest, ValueError, TypeError, struct.error, msgpack.UnpackException) as error:
        raise BadRecord(f"entry {entry.index} is not readable: {error}") from error
    return LogEntry(
        entry.index, entry.term, kind, entry.base_offset, entry.append_time, entry.count, stamp, marks, body
    )


def stamp_of(header: Header) -> Stamp | None:
    if header.producer_id == NO_PRODUCER:
        return None
    return Stamp(header.producer_id, header.producer_epoch, header.sequence, header.body_crc)


def keyed(marks: list[DedupRecord]) -> tuple[DedupRecord, ...]:
    return tuple(mark for mark in marks if mark.key != NO_KEY)


def member_bytes(member: MemberId | None) -> bytes | None:
    return None if member is None else _MEMBER.pack(*member)


def member_of(data: bytes | None) -> MemberId | None:
    return None if data is None else MemberId(*_MEMBER.unpack(data))


def snapshot_bytes(snapshot: Snapshot) -> bytes:
    return _packed(
        [
            snapshot.start_index,
            snapshot.start_offset,
            snapshot.previous_term,
            snapshot.index,
            _configuration_fields(snapshot.configuration),
            snapshot.configuration_index,
            encode_dedupe(snapshot.dedupe),
        ]
    )


def snapshot_of(data: bytes) -> Snapshot:
    try:
        start_index, start_offset, term, index, configuration, configuration_index, dedupe = msgpack.unpackb(data)
        seen = decode_dedupe(dedupe)
        members = _configuration(configuration)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise BadRecord(f"the snapshot record is not readable: {error}") from error
    return Snapshot(start_index, start_offset, term, index, members, configuration_index, seen)


def _configuration_fields(configuration: GroupConfiguration) -> list[Any]:
    return [configuration.voters, configuration.learners]


def _configuration(fields: Any) -> GroupConfiguration:
    voters, learners = fields
    return GroupConfiguration(
        tuple(MemberId(*member) for member in voters), tuple(MemberId(*member) for member in learners)
    )


def _packed(value: object) -> bytes:
    packed: bytes = msgpack.packb(value)
    return packed
