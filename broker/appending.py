"""Which messages of a batch are still to be written, and what is answered for each of them.

Nothing in here does IO. What is known about keys and sequences is decided by the replicated log; this only folds
repeats inside one batch, takes the log's verdicts, and keeps the answers in order.
"""

from typing import NamedTuple, Protocol

import pyarrow as pa

from broker import slices
from broker.raft.dedupe import Problem, Repeat, Verdict
from broker.raft.events import DedupeVerdicts
from broker.storage.records import keyed
from myqueue.protocol import errors
from myqueue.protocol.batch import NO_PRODUCER, Header
from myqueue.protocol.dedup_records import DedupRecord, encode_dedup_records
from myqueue.protocol.internal import AppendResult

MAX_MARKS = 1 << 14  # they travel beside the batch, which has its own limit

_REFUSALS: dict[Problem, tuple[type[errors.MyQueueError], str]] = {
    Problem.CONFLICT: (errors.IdempotencyConflict, "its sequence was used before with other content"),
    Problem.GAP: (errors.SequenceGap, "sequences before it are missing"),
    Problem.FENCED: (errors.ProducerFenced, "a newer epoch of this producer has written"),
    Problem.UNKNOWN_PRODUCER: (errors.UnknownProducer, "nothing is remembered of this producer"),
    Problem.FORGOTTEN: (errors.UnknownProducer, "it was written before, too long ago to say where"),
}


class Proposal(NamedTuple):
    data: bytes  # batch and marks
    messages: int
    marks: tuple[DedupRecord, ...]  # those with a key


class Draft(Protocol):
    """A batch on its way into the log; it is validated already."""

    @property
    def open(self) -> bool:
        """Whether something is still to be written."""
        ...

    def proposal(self) -> Proposal: ...

    def committed(self, base_offset: int) -> None: ...

    def judged(self, judged: DedupeVerdicts) -> None:
        """Nothing was appended, because something is not new."""
        ...


def _refused(problem: Problem) -> errors.MyQueueError:
    refusal, why = _REFUSALS[problem]
    # What was written too long ago to say where is written: a new epoch would write it twice.
    outcome: errors.Outcome = "unknown" if problem is Problem.FORGOTTEN else "not_written"
    return refusal(f"the batch is refused: {why}", outcome=outcome)


class WholeBatch:
    """Without marks: it is appended or refused as one, and nothing is done for each message."""

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

    def judged(self, judged: DedupeVerdicts) -> None:
        whole = judged.whole
        if not isinstance(whole, Repeat):
            assert whole is not None
            raise _refused(whole)
        self.base_offset = whole.offset
        self.duplicate = True
        self.open = False


class MarkedBatch:
    """Every message has its own fate. `batch` is the decoded body."""

    def __init__(self, header: Header, data: bytes, batch: pa.RecordBatch, marks: list[DedupRecord]) -> None:
        if len(marks) > MAX_MARKS:
            raise errors.TooLarge(f"a batch may carry at most {MAX_MARKS} marks")
        if marks and header.producer_id != NO_PRODUCER:
            raise errors.InvalidRequest("a batch is named by its producer's sequence or by marks, not by both")
        self._header = header
        self._data = data
        self._batch = batch
        self._marks = marks
        self._results: list[AppendResult] = [{} for _ in range(header.count)]
        self._crcs = {mark.position: mark.crc for mark in marks}
        self._later: dict[int, int] = {}  # position of a repeated key -> where it came first in this batch
        first_at: dict[bytes, int] = {}
        for mark in keyed(marks):
            first = first_at.setdefault(mark.key, mark.position)
            if first != mark.position:
                self._later[mark.position] = first
        self._rows = [position for position in range(header.count) if position not in self._later]

    @property
    def open(self) -> bool:
        return bool(self._rows)

    def proposal(self) -> Proposal:
        """What to append now: the bytes as they came unless something was left out."""
        if len(self._rows) == self._header.count:
            return Proposal(self._data, self._header.count, keyed(self._marks))
        header, body = slices.rows_of(self._header, self._batch, self._rows)
        marks = slices.marks_of(self._marks, self._rows)
        return Proposal(b"".join((header.pack(), body, encode_dedup_records(marks))), len(self._rows), keyed(marks))

    def committed(self, base_offset: int) -> None:
        for place, position in enumerate(self._rows):
            self._results[position] = {"offset": base_offset + place}
        self._rows = self._decide_later()

    def judged(self, judged: DedupeVerdicts) -> None:
        """What is not new is answered, the rest kept for the next attempt."""
        if isinstance(judged.whole, Repeat):
            self._results = [
                {"offset": judged.whole.offset + position, "duplicate": True} for position in range(self._header.count)
            ]
            self._rows = []
            return
        if judged.whole is not None:
            raise _refused(judged.whole)
        rows = set(self._rows)
        proposed = [mark.position for mark in keyed(self._marks) if mark.position in rows]
        done = set()
        for position, verdict in zip(proposed, judged.dedup_records, strict=True):
            if verdict is not None:
                self._answer(position, verdict)
                done.add(position)
        self._rows = sorted([row for row in self._rows if row not in done] + self._decide_later())

    def _decide_later(self) -> list[int]:
        """What repeats another message of this batch, once that one is decided; the rows to be written after all."""
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
            else:  # the first one abuses the key; this one may be what the key was first used for
                candidate = again.setdefault(first, position)
                if candidate != position:
                    self._later[position] = candidate
        return list(again.values())

    def _answer(self, position: int, verdict: Verdict) -> None:
        if isinstance(verdict, Repeat):
            self._results[position] = {"offset": verdict.offset, "duplicate": True}
        else:
            self._refuse(position)

    def _refuse(self, position: int) -> None:
        self._results[position] = {"error_code": errors.IdempotencyConflict.error_code}

    def results(self) -> list[AppendResult]:
        return self._results
