"""Idempotent produce, decided inside the replicated log.

Applied state is a function of the log alone: every replica that has applied the same entries holds the same table, and
eviction goes by position in the log, never by a clock. The leader also checks entries it has appended and not yet
applied (`PendingDedupe`), so two copies of a request that are in flight together become one entry.

Two ways to name a message: a batch's stamp (producer, epoch, sequence), where sequences are gapless and wrap at 2^32;
and the key of a dedup record, for messages produced alone. A repeat counts as one only if CRC (and for a
batch the count) agree.
"""

import struct
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from broker.raft.entry import LogEntry, Stamp
from broker.raft.key_table import KeyTable, SeenKey
from myqueue.protocol.dedup_records import DedupRecord

_SEQUENCES = 1 << 32
_PRODUCER = struct.Struct("<QQH")  # id, epoch, count of the batches that follow
_BATCH = struct.Struct("<IIIQ")


class Problem(Enum):
    CONFLICT = "conflict"  # the name was used before for other content
    GAP = "gap"  # sequences are missing
    FENCED = "fenced"  # a newer epoch of this producer has written
    UNKNOWN_PRODUCER = "unknown_producer"  # not in the window, and this is not its first sequence
    FORGOTTEN = "forgotten"  # written before, but its offset has left the window


class SeenBatch(NamedTuple):
    sequence: int
    messages: int
    crc: int
    base_offset: int


class Producer(NamedTuple):
    epoch: int
    batches: tuple[SeenBatch, ...]  # the last ones, oldest first, never empty

    @property
    def expected(self) -> int:
        last = self.batches[-1]
        return (last.sequence + last.messages) % _SEQUENCES


class Repeat(NamedTuple):
    """Written before, at this offset."""

    offset: int


DedupeResult = Repeat | Problem | None  # None: not seen before


@dataclass(frozen=True, slots=True)
class DedupeSnapshot:
    """The table in a snapshot record, as packed records, oldest first. See `KeyTable.packed` and `pack_producers`."""

    keys: bytes = b""
    producers: bytes = b""


NOTHING_SEEN = DedupeSnapshot()


def pack_producers(producers: Iterable[tuple[int, Producer]]) -> bytes:
    parts = []
    for producer_id, producer in producers:
        parts.append(_PRODUCER.pack(producer_id, producer.epoch, len(producer.batches)))
        parts.append(pack_batches(producer.batches))
    return b"".join(parts)


def unpack_producers(packed: bytes) -> list[tuple[int, Producer]]:
    producers = []
    view = memoryview(packed)
    at = 0
    while at < len(view):
        start = at + _PRODUCER.size
        if start > len(view):
            raise ValueError("the last producer is cut off")
        producer_id, epoch, count = _PRODUCER.unpack_from(view, at)
        at = start + count * _BATCH.size
        if at > len(view):
            raise ValueError("the last producer is cut off")
        producers.append((producer_id, Producer(epoch, unpack_batches(view[start:at]))))
    return producers


def pack_batches(batches: Iterable[SeenBatch]) -> bytes:
    return b"".join([_BATCH.pack(*batch) for batch in batches])


def unpack_batches(packed: bytes | memoryview) -> tuple[SeenBatch, ...]:
    if not len(packed) or len(packed) % _BATCH.size:
        raise ValueError("a producer without its last batches")
    return tuple([SeenBatch(*fields) for fields in _BATCH.iter_unpack(packed)])


def check_stamp(known: Producer | None, stamp: Stamp, count: int) -> DedupeResult:
    if known is None:
        return None if stamp.sequence == 0 else Problem.UNKNOWN_PRODUCER
    if stamp.epoch < known.epoch:
        return Problem.FENCED
    if stamp.epoch > known.epoch:
        return None if stamp.sequence == 0 else Problem.GAP
    if stamp.sequence == known.expected:
        return None
    for seen in known.batches:
        if seen.sequence == stamp.sequence:
            same = seen.crc == stamp.crc and seen.messages == count
            return Repeat(seen.base_offset) if same else Problem.CONFLICT
    ahead = (stamp.sequence - known.expected) % _SEQUENCES
    if ahead < _SEQUENCES // 2:
        return Problem.GAP
    behind_oldest = (known.batches[0].sequence - stamp.sequence) % _SEQUENCES
    return Problem.FORGOTTEN if behind_oldest < _SEQUENCES // 2 else Problem.CONFLICT


def advanced(known: Producer | None, entry: LogEntry, window: int) -> Producer:
    """The producer after this entry. Never refuses: an entry of the log has happened."""
    stamp = entry.stamp
    assert stamp is not None
    seen = SeenBatch(stamp.sequence, entry.count, stamp.crc, entry.base_offset)
    if known is None or known.epoch != stamp.epoch:
        return Producer(stamp.epoch, (seen,))
    return Producer(stamp.epoch, (*known.batches, seen)[-window:])


class AppliedDedupe:
    """The applied table."""

    __slots__ = ("batches_window", "keys", "producers", "producers_window")

    def __init__(self, keys_window: int, producers_window: int, batches_window: int) -> None:
        self.producers_window = producers_window
        self.batches_window = batches_window
        self.keys = KeyTable(keys_window)
        self.producers: OrderedDict[int, Producer] = OrderedDict()  # in log order; a dict would make eviction O(n)

    def apply(self, entry: LogEntry) -> None:
        for record in entry.dedup_records:
            self.keys.put(record.key, record.crc, entry.base_offset + record.position)
        if entry.stamp is not None:
            producer_id = entry.stamp.producer_id
            self.producers[producer_id] = advanced(self.producers.get(producer_id), entry, self.batches_window)
            self.producers.move_to_end(producer_id)
            while len(self.producers) > self.producers_window:
                self.producers.popitem(last=False)

    def snapshot(self) -> DedupeSnapshot:
        return DedupeSnapshot(self.keys.packed(), pack_producers(self.producers.items()))

    def load(self, snapshot: DedupeSnapshot) -> None:
        self.keys.load(snapshot.keys)
        self.producers = OrderedDict(unpack_producers(snapshot.producers))


class PendingDedupe:
    """Entries that the leader has appended and not yet applied, on top of the applied table."""

    __slots__ = ("applied", "keys", "producers")

    def __init__(self, applied: AppliedDedupe) -> None:
        self.applied = applied
        self.keys: dict[bytes, SeenKey] = {}
        self.producers: dict[int, tuple[Producer, int]] = {}  # with the index of its last entry

    def add(self, entry: LogEntry) -> None:
        for record in entry.dedup_records:
            self.keys[record.key] = SeenKey(record.crc, entry.base_offset + record.position)
        if entry.stamp is not None:
            producer_id = entry.stamp.producer_id
            known = self._producer(producer_id)
            self.producers[producer_id] = (advanced(known, entry, self.applied.batches_window), entry.index)

    def settle(self, entry: LogEntry) -> None:
        """The entry is applied, the table holds it now."""
        for record in entry.dedup_records:
            self.keys.pop(record.key, None)
        if entry.stamp is not None:
            kept = self.producers.get(entry.stamp.producer_id)
            if kept is not None and kept[1] == entry.index:
                del self.producers[entry.stamp.producer_id]

    def check(
        self, stamp: Stamp | None, count: int, records: tuple[DedupRecord, ...]
    ) -> tuple[DedupeResult, tuple[DedupeResult, ...]]:
        """One result for the batch by its stamp, one for each dedup record by its key."""
        whole = None if stamp is None else check_stamp(self._producer(stamp.producer_id), stamp, count)
        if not records:
            return whole, ()
        here: set[bytes] = set()
        results = []
        for record in records:
            # A key twice in one batch has no earlier offset to answer with: the caller folds such messages.
            results.append(Problem.CONFLICT if record.key in here else self._check_key(record))
            here.add(record.key)
        return whole, tuple(results)

    def _check_key(self, record: DedupRecord) -> DedupeResult:
        seen = self.keys.get(record.key) or self.applied.keys.get(record.key)
        if seen is None:
            return None
        return Repeat(seen.offset) if seen.crc == record.crc else Problem.CONFLICT

    def _producer(self, producer_id: int) -> Producer | None:
        kept = self.producers.get(producer_id)
        return kept[0] if kept is not None else self.applied.producers.get(producer_id)
