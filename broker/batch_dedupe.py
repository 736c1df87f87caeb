"""Idempotent append of one batch: which messages are still to be written, and the result of each. No IO.

The replicated log decides about keys and sequences; this folds repeats inside one batch, applies the log's results,
and keeps the results in order.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import pyarrow as pa

from broker import batch_slices
from broker.raft.dedupe import DedupeResult, Problem, Repeat
from broker.raft.events import DedupeOutcome
from broker.storage.entry import keyed
from myqueue.protocol import errors
from myqueue.protocol.batch import NO_PRODUCER, Header
from myqueue.protocol.dedup_records import DedupRecord, encode_dedup_records
from myqueue.protocol.message_calls import (
    AppendResult,
)

MAX_DEDUP_RECORDS = 1 << 14  # they travel beside the batch, which has its own limit

_ERRORS: dict[Problem, tuple[type[errors.MyQueueError], str]] = {
    Problem.CONFLICT: (errors.IdempotencyConflict, "its sequence was used before with other content"),
    Problem.GAP: (errors.SequenceGap, "sequences before it are missing"),
    Problem.FENCED: (errors.ProducerFenced, "a newer epoch of this producer has written"),
    Problem.UNKNOWN_PRODUCER: (errors.UnknownProducer, "nothing is remembered of this producer"),
    Problem.FORGOTTEN: (errors.UnknownProducer, "it was written before, too long ago to say where"),
}


class Proposal(NamedTuple):
    data: bytes  # batch and dedup records
    messages: int
    dedup_records: tuple[DedupRecord, ...]  # those with a key


class Draft(Protocol):
    """A validated batch on its way into the log."""

    @property
    def open(self) -> bool:
        """Whether something is still to be written."""
        ...

    def proposal(self) -> Proposal: ...

    def committed(self, base_offset: int) -> None: ...

    def checked(self, outcome: DedupeOutcome) -> None:
        """Nothing was appended, because something is not new."""
        ...


def _error(problem: Problem) -> errors.MyQueueError:
    error, why = _ERRORS[problem]
    # A batch that has left the window has been written, so "not_written" would make the producer write it twice.
    outcome: errors.Outcome = "unknown" if problem is Problem.FORGOTTEN else "not_written"
    return error(f"the batch is refused: {why}", outcome=outcome)


class WholeBatch:
    """Without dedup records: it is appended or refused as one, without work for each message."""

    def __init__(self, header: Header, data: bytes) -> None:
        self._proposal = Proposal(data, header.count, ())
        self.base_offset = 0
        self.duplicate = False
        self.open = True

    def proposal(self) -> Proposal:
        return self._proposal

    def committed(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self.open = False

    def checked(self, outcome: DedupeOutcome) -> None:
        whole = outcome.whole
        if not isinstance(whole, Repeat):
            assert whole is not None
            raise _error(whole)
        self.base_offset = whole.offset
        self.duplicate = True
        self.open = False


class KeyedBatch:
    """Each message has a result of its own. `batch` is the decoded body."""

    def __init__(self, header: Header, data: bytes, batch: pa.RecordBatch, records: list[DedupRecord]) -> None:
        if len(records) > MAX_DEDUP_RECORDS:
            raise errors.TooLarge(f"a batch may carry at most {MAX_DEDUP_RECORDS} dedup records")
        if records and header.producer_id != NO_PRODUCER:
            raise errors.InvalidRequest("a batch has a producer's sequence or dedup records, not both")
        self._header = header
        self._data = data
        self._batch = batch
        self._records = records
        self._keyed = keyed(records)
        self._results: list[AppendResult] = [{} for _ in range(header.count)]
        self._offsets: range | None = None  # of all messages, when none is a repeat or refused
        self._later: dict[int, int] = {}  # position of a repeated key -> where it came first in this batch
        self._crcs: dict[int, int] = {}
        if len({record.key for record in self._keyed}) < len(self._keyed):
            self._find_repeated()
        self._rows: Sequence[int] = [position for position in range(header.count) if position not in self._later]

    def _find_repeated(self) -> None:
        self._crcs = {record.position: record.crc for record in self._records}
        first_at: dict[bytes, int] = {}
        for record in self._keyed:
            first = first_at.setdefault(record.key, record.position)
            if first != record.position:
                self._later[record.position] = first

    @property
    def open(self) -> bool:
        return bool(self._rows)

    def proposal(self) -> Proposal:
        """The bytes as they came, unless some messages are not to be written."""
        if len(self._rows) == self._header.count:
            return Proposal(self._data, self._header.count, self._keyed)
        header, body = batch_slices.rows_of(self._header, self._batch, self._rows)
        records = batch_slices.dedup_records_of(self._records, self._rows)
        return Proposal(b"".join((header.pack(), body, encode_dedup_records(records))), len(self._rows), keyed(records))

    def committed(self, base_offset: int) -> None:
        if len(self._rows) == self._header.count:
            self._offsets, self._rows = range(base_offset, base_offset + self._header.count), ()
            return
        for place, position in enumerate(self._rows):
            self._results[position] = {"offset": base_offset + place}
        self._rows = self._decide_later()

    def checked(self, outcome: DedupeOutcome) -> None:
        """Messages that are not new get their result; the rest is proposed again."""
        if isinstance(outcome.whole, Repeat):
            self._results = [
                {"offset": outcome.whole.offset + position, "duplicate": True} for position in range(self._header.count)
            ]
            self._rows = []
            return
        if outcome.whole is not None:
            raise _error(outcome.whole)
        rows = set(self._rows)
        proposed = [record.position for record in self._keyed if record.position in rows]
        done = set()
        for position, result in zip(proposed, outcome.dedup_records, strict=True):
            if result is not None:
                self._answer(position, result)
                done.add(position)
        self._rows = sorted([row for row in self._rows if row not in done] + self._decide_later())

    def _decide_later(self) -> list[int]:
        """Decide messages that repeat a decided one of this batch; returns the rows to be written after all."""
        again: dict[int, int] = {}
        for position, first in list(self._later.items()):
            if not self._results[first]:
                continue
            del self._later[position]
            found, same = self._results[first], self._crcs[first] == self._crcs[position]
            if "offset" in found:
                self._answer(position, Repeat(found["offset"]) if same else Problem.CONFLICT)
            elif same:
                self._refuse(position)
            else:  # the first one misuses the key; this one may be the message the key was first used for
                candidate = again.setdefault(first, position)
                if candidate != position:
                    self._later[position] = candidate
        return list(again.values())

    def _answer(self, position: int, result: DedupeResult) -> None:
        if isinstance(result, Repeat):
            self._results[position] = {"offset": result.offset, "duplicate": True}
        else:
            self._refuse(position)

    def _refuse(self, position: int) -> None:
        self._results[position] = {"error_code": errors.IdempotencyConflict.error_code}

    def results(self) -> list[AppendResult]:
        return self._results if self._offsets is None else [{"offset": offset} for offset in self._offsets]

    def offsets(self) -> Sequence[int]:
        """Of each message, or minus the error code that refused it; a range when all are new."""
        if self._offsets is not None:
            return self._offsets
        return [result["offset"] if "offset" in result else -result["error_code"] for result in self._results]

    def count_duplicates(self) -> int:
        return 0 if self._offsets is not None else sum("duplicate" in result for result in self._results)

    def count_refused(self) -> int:
        return 0 if self._offsets is not None else sum("error_code" in result for result in self._results)
