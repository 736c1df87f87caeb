"""Entries, configurations and snapshot records as values for msgpack."""

import struct
from typing import Any, Final

from broker.peers.msgpack_values import BadFrame, array, array_of, number, octets
from broker.raft.configuration import GroupConfiguration, MemberId
from broker.raft.dedupe import DedupeSnapshot, Producer, SeenBatch, SeenKey
from broker.raft.entry import Kind, LogEntry, LogStart, Stamp
from broker.raft.snapshot import Snapshot
from myqueue.protocol.dedup_records import decode_dedup_records, encode_dedup_records
from myqueue.protocol.errors import InvalidRequest

KEY_BYTES: Final = 16

_SEEN_KEY = struct.Struct(f"<{KEY_BYTES}sIQ")
_SEEN_BATCH = struct.Struct("<IIIQ")
_KINDS = {int(kind): kind for kind in Kind}


class Batches:
    """The bytes behind the head of a frame, taken one batch at a time."""

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._at = 0

    def take(self, length: int) -> bytes:
        end = self._at + length
        if end > len(self._view):
            raise BadFrame("a batch is cut off")
        batch = bytes(self._view[self._at : end])
        self._at = end
        return batch

    def finish(self) -> None:
        if self._at != len(self._view):
            raise BadFrame("bytes after the last batch")


def entry_values(entry: LogEntry, batches: list[bytes]) -> tuple[Any, ...]:
    stamp = entry.stamp
    if any(len(record.key) != KEY_BYTES for record in entry.dedup_records):
        raise ValueError("a dedup record's key has not 16 bytes")
    return (
        entry.index,
        entry.term,
        int(entry.kind),
        entry.base_offset,
        entry.append_time,
        entry.count,
        None if stamp is None else (stamp.producer_id, stamp.epoch, stamp.sequence, stamp.crc),
        encode_dedup_records(entry.dedup_records),
        _body_values(entry, batches),
    )


def _body_values(entry: LogEntry, batches: list[bytes]) -> Any:
    """Refuses an entry without its batch: the follower would store it without one."""
    body = entry.body
    if entry.kind is Kind.MESSAGES and isinstance(body, bytes):
        batches.append(body)
        return len(body)
    if entry.kind is Kind.CONFIGURATION and isinstance(body, GroupConfiguration):
        return configuration_values(body)
    if entry.kind is Kind.TRUNCATE and isinstance(body, LogStart):
        return body.start_index, body.start_offset
    if entry.kind is Kind.NOOP and body is None:
        return None
    raise ValueError(f"entry {entry.index} of kind {entry.kind.name} with a body of {type(body).__name__}")


def entry_of(values: Any, batches: Batches) -> LogEntry:
    index, term, kind_number, base_offset, append_time, count, stamp, dedup_records, body = array_of(values, 9)
    kind = _KINDS.get(number(kind_number))
    if kind is None:
        raise BadFrame("an unknown kind of entry")
    count = number(count)
    try:
        records = tuple(decode_dedup_records(octets(dedup_records), count))
    except InvalidRequest as error:
        raise BadFrame(error.message) from error
    content: bytes | GroupConfiguration | LogStart | None
    if kind is Kind.MESSAGES:
        content = batches.take(number(body))
    elif kind is Kind.CONFIGURATION:
        content = configuration_of(body)
    elif kind is Kind.TRUNCATE:
        start_index, start_offset = array_of(body, 2)
        content = LogStart(number(start_index), number(start_offset))
    elif body is None:
        content = None
    else:
        raise BadFrame("an entry without messages has some")
    return LogEntry(
        number(index),
        number(term),
        kind,
        number(base_offset),
        number(append_time),
        count,
        None if stamp is None else Stamp(*map(number, array_of(stamp, 4))),
        records,
        content,
    )


def configuration_values(configuration: GroupConfiguration) -> tuple[Any, ...]:
    return configuration.voters, configuration.learners  # a member is a tuple of two numbers


def configuration_of(values: Any) -> GroupConfiguration:
    voters, learners = array_of(values, 2)
    return GroupConfiguration(tuple(map(_member, array(voters))), tuple(map(_member, array(learners))))


def _member(values: Any) -> MemberId:
    broker_id, incarnation = array_of(values, 2)
    return MemberId(number(broker_id), number(incarnation))


def snapshot_values(snapshot: Snapshot) -> tuple[Any, ...]:
    """A full dedupe table has 100,000 keys: fixed records, because msgpack would take several times as long."""
    if any(len(key) != KEY_BYTES for key, _ in snapshot.dedupe.keys):
        raise ValueError("a key of the dedupe table has not 16 bytes")
    return (
        snapshot.start_index,
        snapshot.start_offset,
        snapshot.previous_term,
        snapshot.index,
        configuration_values(snapshot.configuration),
        snapshot.configuration_index,
        b"".join([_SEEN_KEY.pack(key, crc, offset) for key, (crc, offset) in snapshot.dedupe.keys]),
        [
            (producer_id, producer.epoch, b"".join([_SEEN_BATCH.pack(*seen) for seen in producer.batches]))
            for producer_id, producer in snapshot.dedupe.producers
        ],
    )


def snapshot_of(values: Any) -> Snapshot:
    start_index, start_offset, previous_term, index, configuration, configuration_index, keys, producers = array_of(
        values, 8
    )
    if len(octets(keys)) % _SEEN_KEY.size:
        raise BadFrame("the dedupe table is cut off")
    return Snapshot(
        number(start_index),
        number(start_offset),
        number(previous_term),
        number(index),
        configuration_of(configuration),
        number(configuration_index),
        DedupeSnapshot(
            tuple([(key, SeenKey(crc, offset)) for key, crc, offset in _SEEN_KEY.iter_unpack(keys)]),
            tuple(map(_producer, array(producers))),
        ),
    )


def _producer(values: Any) -> tuple[int, Producer]:
    producer_id, epoch, batches = array_of(values, 3)
    if not octets(batches) or len(batches) % _SEEN_BATCH.size:
        raise BadFrame("a producer without its last batches")
    seen = tuple([SeenBatch(*fields) for fields in _SEEN_BATCH.iter_unpack(batches)])
    return number(producer_id), Producer(number(epoch), seen)
