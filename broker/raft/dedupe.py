"""Idempotent produce, decided inside the replicated log.

Applied state is a function of the log alone: every replica that has applied the same entries holds the same table, and
eviction goes by position in the log, never by a clock. The leader also looks at entries it has taken and not yet
applied (`Pending`), so two copies of a request that meet in flight become one entry.

Two ways to name a message: a batch's stamp (producer, epoch, sequence), where sequences are gapless and wrap at 2^32;
and a mark's key, for messages that came alone. A repeat counts as one only if CRC (and for a batch the count) agree.
"""

from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from broker.raft.entry import Entry, Stamp
from myqueue.protocol.dedup_records import DedupRecord

_SEQUENCES = 1 << 32


class Problem(Enum):
    CONFLICT = "conflict"  # the name was used before for other content
    GAP = "gap"  # sequences were left out
    FENCED = "fenced"  # a newer epoch of this producer has written
    UNKNOWN_PRODUCER = "unknown_producer"  # nothing is remembered and this is not its first sequence
    FORGOTTEN = "forgotten"  # written before, too long ago to say where


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


class SeenKey(NamedTuple):
    crc: int
    offset: int


class Repeat(NamedTuple):
    """Written before, at this offset."""

    offset: int


Verdict = Repeat | Problem | None  # None: not seen before


@dataclass(frozen=True, slots=True)
class DedupeRecord:
    """The table as it travels and rests, oldest first."""

    keys: tuple[tuple[bytes, SeenKey], ...] = ()
    producers: tuple[tuple[int, Producer], ...] = ()


NOTHING_SEEN = DedupeRecord()


def judge_stamp(known: Producer | None, stamp: Stamp, count: int) -> Verdict:
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


def advanced(known: Producer | None, entry: Entry, window: int) -> Producer:
    """The producer after this entry. Never refuses: what is in the log has happened."""
    stamp = entry.stamp
    assert stamp is not None
    seen = SeenBatch(stamp.sequence, entry.count, stamp.crc, entry.base_offset)
    if known is None or known.epoch != stamp.epoch:
        return Producer(stamp.epoch, (seen,))
    return Producer(stamp.epoch, (*known.batches, seen)[-window:])


class Dedupe:
    """The applied table."""

    __slots__ = ("batches_window", "keys", "keys_window", "producers", "producers_window")

    def __init__(self, keys_window: int, producers_window: int, batches_window: int) -> None:
        self.keys_window = keys_window
        self.producers_window = producers_window
        self.batches_window = batches_window
        self.keys: OrderedDict[bytes, SeenKey] = OrderedDict()  # in log order; a dict would make eviction O(n)
        self.producers: OrderedDict[int, Producer] = OrderedDict()

    def apply(self, entry: Entry) -> None:
        for mark in entry.marks:
            self.keys[mark.key] = SeenKey(mark.crc, entry.base_offset + mark.position)
            self.keys.move_to_end(mark.key)
        while len(self.keys) > self.keys_window:
            self.keys.popitem(last=False)
        if entry.stamp is not None:
            producer_id = entry.stamp.producer_id
            self.producers[producer_id] = advanced(self.producers.get(producer_id), entry, self.batches_window)
            self.producers.move_to_end(producer_id)
            while len(self.producers) > self.producers_window:
                self.producers.popitem(last=False)

    def record(self) -> DedupeRecord:
        return DedupeRecord(tuple(self.keys.items()), tuple(self.producers.items()))

    def load(self, record: DedupeRecord) -> None:
        self.keys = OrderedDict(record.keys)
        self.producers = OrderedDict(record.producers)


class Pending:
    """What the leader has taken and not yet applied, on top of the applied table."""

    __slots__ = ("applied", "keys", "producers")

    def __init__(self, applied: Dedupe) -> None:
        self.applied = applied
        self.keys: dict[bytes, SeenKey] = {}
        self.producers: dict[int, tuple[Producer, int]] = {}  # with the index of its last entry

    def add(self, entry: Entry) -> None:
        for mark in entry.marks:
            self.keys[mark.key] = SeenKey(mark.crc, entry.base_offset + mark.position)
        if entry.stamp is not None:
            producer_id = entry.stamp.producer_id
            known = self._producer(producer_id)
            self.producers[producer_id] = (advanced(known, entry, self.applied.batches_window), entry.index)

    def settle(self, entry: Entry) -> None:
        """The entry is applied: the table knows it now."""
        for mark in entry.marks:
            self.keys.pop(mark.key, None)
        if entry.stamp is not None:
            kept = self.producers.get(entry.stamp.producer_id)
            if kept is not None and kept[1] == entry.index:
                del self.producers[entry.stamp.producer_id]

    def judge(
        self, stamp: Stamp | None, count: int, marks: tuple[DedupRecord, ...]
    ) -> tuple[Verdict, tuple[Verdict, ...]]:
        """One verdict for the batch by its stamp, one for each mark by its key."""
        whole = None if stamp is None else judge_stamp(self._producer(stamp.producer_id), stamp, count)
        if not marks:
            return whole, ()
        here: set[bytes] = set()
        verdicts = []
        for mark in marks:
            # A key twice in one batch has no earlier offset to answer with: the caller folds such messages.
            verdicts.append(Problem.CONFLICT if mark.key in here else self._judge_key(mark))
            here.add(mark.key)
        return whole, tuple(verdicts)

    def _judge_key(self, mark: DedupRecord) -> Verdict:
        seen = self.keys.get(mark.key) or self.applied.keys.get(mark.key)
        if seen is None:
            return None
        return Repeat(seen.offset) if seen.crc == mark.crc else Problem.CONFLICT

    def _producer(self, producer_id: int) -> Producer | None:
        kept = self.producers.get(producer_id)
        return kept[0] if kept is not None else self.applied.producers.get(producer_id)
