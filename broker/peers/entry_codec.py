"""Entries, configurations and snapshot records as values for msgpack."""

from collections.abc import Sequence
from typing import Any

from broker.peers.handshake import OLDEST_VERSION
from broker.peers.msgpack_values import BadFrame, array, array_of, number, octets
from broker.raft.configuration import GroupConfiguration, MemberId
from broker.raft.dedupe import (
    DedupeSnapshot,
    Producer,
    pack_batches,
    pack_producers,
    unpack_batches,
    unpack_producers,
)
from broker.raft.dedupe_codec import decode_dedupe, encode_dedupe
from broker.raft.entry import Kind, LogEntry, LogStart, Stamp
from broker.raft.key_table import KEY_BYTES, KEY_RECORD_BYTES
from broker.raft.snapshot import Snapshot
from myqueue.protocol.dedup_records import DedupRecord, decode_dedup_records, encode_dedup_records
from myqueue.protocol.errors import InvalidRequest

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
    stamp, records = entry.stamp, entry.dedup_records
    if records and any(len(record.key) != KEY_BYTES for record in records):
        raise ValueError("a dedup record's key has not 16 bytes")
    return (
        entry.index,
        entry.term,
        int(entry.kind),
        entry.base_offset,
        entry.append_time,
        entry.count,
        None if stamp is None else (stamp.producer_id, stamp.epoch, stamp.sequence, stamp.crc),
        encode_dedup_records(records) if records else b"",
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
    records: tuple[DedupRecord, ...] = ()
    if octets(dedup_records):
        try:
            records = tuple(decode_dedup_records(dedup_records, count))
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


def snapshot_values(snapshot: Snapshot, version: int) -> tuple[Any, ...]:
    return (
        snapshot.start_index,
        snapshot.start_offset,
        snapshot.previous_term,
        snapshot.index,
        configuration_values(snapshot.configuration),
        snapshot.configuration_index,
        *_dedupe_values(snapshot.dedupe, version),
    )


def snapshot_of(values: Any, version: int) -> Snapshot:
    start_index, start_offset, previous_term, index, configuration, configuration_index, *dedupe = array_of(
        values, 8 if version == OLDEST_VERSION else 7
    )
    try:
        seen = _dedupe_of(dedupe, version)
    except ValueError as error:
        raise BadFrame(str(error)) from error
    return Snapshot(
        number(start_index),
        number(start_offset),
        number(previous_term),
        number(index),
        configuration_of(configuration),
        number(configuration_index),
        seen,
    )


# The oldest version has the same records of keys, and an array for the producers.


def _dedupe_values(dedupe: DedupeSnapshot, version: int) -> tuple[Any, ...]:
    if version > OLDEST_VERSION:
        return (encode_dedupe(dedupe),)
    producers = unpack_producers(dedupe.producers)
    return dedupe.keys, [(name, known.epoch, pack_batches(known.batches)) for name, known in producers]


def _dedupe_of(values: Sequence[Any], version: int) -> DedupeSnapshot:
    if version > OLDEST_VERSION:
        return decode_dedupe(octets(values[0]))
    keys, producers = values
    if len(octets(keys)) % KEY_RECORD_BYTES:
        raise BadFrame("the dedupe table is cut off")
    return DedupeSnapshot(keys, pack_producers(map(_producer, array(producers))))


def _producer(values: Any) -> tuple[int, Producer]:
    producer_id, epoch, batches = array_of(values, 3)
    return number(producer_id), Producer(number(epoch), unpack_batches(octets(batches)))
