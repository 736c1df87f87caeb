"""A partition as the API sees it: append with deduplication, fetch, offsets."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, Protocol
from uuid import UUID

import pyarrow as pa

from broker import slices
from broker.dedupe import Again, Known, Repeat, Verdict, Write, decide
from broker.storage.cache import Decoded, ReadCache
from broker.storage.entry import Entry
from broker.storage.log import Corrupted
from myqueue.protocol import errors
from myqueue.protocol.batch import Header
from myqueue.protocol.internal import AppendAnswer, AppendResult, PartitionReport
from myqueue.protocol.marks import Mark, decode_marks, encode_marks


@dataclass(frozen=True, slots=True)
class Bounds:
    """What may be read: everything in it is committed."""

    start_offset: int
    end_offset: int
    append_time: int  # of the last message
    size_bytes: int
    term: int
    role: Literal["leader", "follower", "learner"]


class CommittedLog(Protocol):
    """What stands behind a partition. A future of `propose` is done when the entry is committed."""

    def load(self) -> None: ...

    def propose(self, header: Header, body: bytes | memoryview, marks: Sequence[Mark]) -> "Future[Entry]": ...

    def bounds(self) -> Bounds: ...

    def at_offset(self, offset: int) -> Entry: ...

    def offset_at(self, timestamp: int) -> int: ...

    def recent_marks(self, limit: int) -> list[tuple[int, bytes]]: ...


Pending = Future[Entry]

_ANY_COUNT = 1 << 32  # marks that come from the log were checked against their batch when they came in


class Replica:
    def __init__(
        self,
        topic_id: UUID,
        partition_id: int,
        topic: str,
        group_id: int,
        log: CommittedLog,
        cache: ReadCache,
        *,
        dedupe_window: int,
        append_timeout_s: float,
    ) -> None:
        self.topic_id = topic_id
        self.partition_id = partition_id
        self.topic = topic
        self.group_id = group_id
        self._log = log
        self._cache = cache
        self._window = dedupe_window
        self._append_timeout_s = append_timeout_s
        self._known: Known[Pending] = Known(dedupe_window)
        # Held from the look at the known keys until the append stands in line: two appends with one key meet here.
        # Reentrant, because an append that is committed at once reports so from inside.
        self._lock = threading.RLock()
        self._damage: str | None = None
        self._dropped = False

    def load(self) -> str | None:
        """Opens the log and learns from it which keys were used; says what is damaged."""
        try:
            self._log.load()
            recent = self._log.recent_marks(self._window)
            for base_offset, marks in reversed(recent):
                self._known.written(base_offset, decode_marks(marks, _ANY_COUNT))
        except (Corrupted, errors.InvalidRequest) as error:
            self._damage = str(error)
        return self._damage

    def append(
        self, header: Header, body: bytes | memoryview, batch: pa.RecordBatch, marks: list[Mark]
    ) -> AppendAnswer:
        """The batch is validated already; `batch` is its decoded body."""
        if not marks:
            entry = self._wait(self._propose(header, body, marks))
            return self._answer(entry, [{"offset": offset} for offset in range(entry.base_offset, entry.end_offset)])
        with self._lock:
            verdicts = decide(header.count, marks, self._known)
            rows = [position for position, verdict in enumerate(verdicts) if isinstance(verdict, Write)]
            if len(rows) < header.count:
                marks = slices.marks_of(marks, rows)
                if rows:
                    header, body = slices.rows_of(header, batch, rows)
            pending = self._propose(header, body, marks) if rows else None
        written = None if pending is None else self._wait(pending)
        return self._answer(written, [self._result(verdict, written) for verdict in verdicts])

    def _propose(self, header: Header, body: bytes | memoryview, marks: list[Mark]) -> Pending:
        def learn(done: Pending) -> None:
            with self._lock:
                if done.exception() is None:
                    self._known.written(done.result().base_offset, marks)
                else:
                    self._known.refused(marks)

        with self._lock:
            self._check_served()
            pending = self._log.propose(header, body, marks)
            if marks:
                self._known.expect(pending, marks)
                pending.add_done_callback(learn)
        return pending

    def _wait(self, pending: Pending) -> Entry:
        try:
            return pending.result(self._append_timeout_s)
        except TimeoutError:
            raise errors.Unavailable("the append took too long", outcome="unknown") from None

    def _result(self, verdict: Verdict[Pending], written: Entry | None) -> AppendResult:
        if isinstance(verdict, Repeat):
            return self._repeated(verdict, written)
        if isinstance(verdict, Write | Again):
            assert written is not None
            offset = written.base_offset + verdict.row
            return {"offset": offset} if isinstance(verdict, Write) else {"offset": offset, "duplicate": True}
        return {"error_code": errors.IdempotencyConflict.error_code}

    def _repeated(self, verdict: Repeat[Pending], written: Entry | None) -> AppendResult:
        seen = verdict.seen
        if seen.pending is None:
            return {"offset": seen.number, "duplicate": True}
        try:
            first = self._wait(seen.pending)
        except errors.MyQueueError as error:
            if written is None:
                raise
            # Other messages of this batch are written: only this one shares the fate of the first append.
            return {"error_code": error.error_code}
        return {"offset": first.base_offset + seen.number, "duplicate": True}

    def _answer(self, written: Entry | None, results: list[AppendResult]) -> AppendAnswer:
        bounds = self._log.bounds()
        return {
            "status": "success",
            "results": results,
            "append_time": bounds.append_time if written is None else written.append_time,
            "end_offset": bounds.end_offset,
        }

    def fetch(self, offset: int, limit: int) -> bytes | None:
        """At most `limit` messages from `offset` on, as a batch and its marks, all of one entry; None at the end."""
        self._check_served()
        bounds = self._log.bounds()
        if offset < bounds.start_offset:
            raise errors.OffsetOutOfRange(details={"beginning_offset": bounds.start_offset})
        if offset >= bounds.end_offset:
            return None
        decoded = self._read(offset)
        entry = decoded.entry
        first = offset - entry.base_offset
        count = min(limit, entry.end_offset - offset)
        if count == entry.count:
            return entry.batch + entry.marks
        part = slices.slice_of(decoded.header, decoded.record_batch, first, count)
        return part + encode_marks(slices.marks_in(decoded.marks, first, count))

    def _read(self, offset: int) -> Decoded:
        found = self._cache.find(self.group_id, offset)
        if found is None:
            with self._damage_is_kept():
                found = Decoded(self._log.at_offset(offset))
            self._cache.put(self.group_id, found)
        return found

    def offset_at(self, timestamp: int) -> int:
        self._check_served()
        with self._damage_is_kept():
            return self._log.offset_at(timestamp)

    def bounds(self) -> Bounds:
        self._check_served()
        return self._log.bounds()

    def report(self) -> PartitionReport:
        bounds = self._log.bounds()
        return {
            "topic_id": str(self.topic_id),
            "partition_id": self.partition_id,
            "role": bounds.role if self._damage is None else "learner",
            "term": bounds.term,
            "beginning_offset": bounds.start_offset,
            "end_offset": bounds.end_offset,
            "size_bytes": bounds.size_bytes,
        }

    def drop(self) -> None:
        """No append gets in line after this."""
        with self._lock:
            self._dropped = True

    @contextmanager
    def _damage_is_kept(self) -> Iterator[None]:
        try:
            yield
        except Corrupted as error:
            self._damage = str(error)
            self._check_served()

    def _check_served(self) -> None:
        if self._dropped:
            raise errors.PartitionNotFound()
        if self._damage is not None:
            raise errors.Unavailable(
                f"the stored log of the partition is damaged on this broker: {self._damage}", outcome="not_written"
            )
