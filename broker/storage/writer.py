"""Group commit: one thread takes everything that waits, over all partitions, into one transaction and one fsync."""

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, Protocol, TypeVar

import apsw

from broker.storage.database import PAGE_BYTES, Database
from broker.storage.entry import Entry, Kind, Tail
from broker.storage.log import Log, Row, insert_rows, row_of
from broker.storage.space import Space
from myqueue.protocol.batch import HEADER_BYTES, Header, placed
from myqueue.protocol.errors import DiskFull, Overloaded, Unavailable
from service.logs import Log as Logger

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

FAIL_STOP_STATUS = 70


class Round:
    """What one transaction does. Tails become visible only after its commit."""

    def __init__(self, connection: apsw.Connection, now_ms: int) -> None:
        self.connection = connection
        self.now_ms = now_ms
        self._tails: dict[Log, Tail] = {}
        self._rows: list[Row] = []

    def tail_of(self, log: Log) -> Tail:
        return self._tails.get(log, log.tail)

    def append(self, log: Log, entry: Entry, mark_count: int) -> None:
        tail = self.tail_of(log).after(entry)
        self._rows.append(row_of(log.group, entry, tail, mark_count))
        self._tails[log] = tail

    def flush(self) -> None:
        insert_rows(self.connection, self._rows)

    def publish(self) -> None:
        for log, tail in self._tails.items():
            log.tail = tail


class Job(Protocol[T_co]):
    """`apply` runs on the writing thread inside a transaction; its result is handed out after the commit."""

    @property
    def size_bytes(self) -> int: ...

    @property
    def uses_reserve(self) -> bool: ...

    def apply(self, round_: Round) -> T_co: ...


class Append:
    """A validated batch and its marks for the end of a log."""

    uses_reserve = False

    def __init__(self, log: Log, header: Header, body: bytes | memoryview, marks: bytes, mark_count: int) -> None:
        self._log = log
        self._header = header
        self._body = body
        self._marks = marks
        self._mark_count = mark_count
        self.size_bytes = HEADER_BYTES + len(body) + len(marks)

    def apply(self, round_: Round) -> Entry:
        tail = round_.tail_of(self._log)
        append_time = max(round_.now_ms, tail.append_time)
        header = placed(self._header, tail.end_offset, append_time)
        entry = Entry(
            index=tail.next_index,
            term=self._log.group.term,
            kind=Kind.MESSAGE,
            base_offset=tail.end_offset,
            count=header.count,
            append_time=append_time,
            marks=self._marks,
            batch=b"".join((header.pack(), self._body)),
        )
        round_.append(self._log, entry, self._mark_count)
        return entry


class Change(Generic[T]):
    """Any other write; allowed on a full disk when it is one that must still work then."""

    def __init__(self, change: Callable[[apsw.Connection], T], *, uses_reserve: bool = False) -> None:
        self._change = change
        self.uses_reserve = uses_reserve
        self.size_bytes = PAGE_BYTES

    def apply(self, round_: Round) -> T:
        return self._change(round_.connection)


def fail_stop() -> None:
    """Ends the process at once: after a failed fsync nobody knows what is on the disk."""
    os._exit(FAIL_STOP_STATUS)


class Writer:
    def __init__(
        self,
        database: Database,
        space: Space,
        logger: Logger,
        *,
        max_waiting: int,
        max_waiting_bytes: int,
        max_round_bytes: int,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        observe_round: Callable[[int], None] = lambda _: None,
        on_failure: Callable[[], None] = fail_stop,
    ) -> None:
        self._database = database
        self._space = space
        self._logger = logger
        self._max_waiting = max_waiting
        self._max_waiting_bytes = max_waiting_bytes
        self._max_round_bytes = max_round_bytes
        self._clock_ms = clock_ms
        self._observe_round = observe_round
        self._on_failure = on_failure
        self._waiting: deque[tuple[Job[Any], Future[Any]]] = deque()
        self._waiting_bytes = 0
        self._wake = threading.Condition()
        self._stopping = False
        self._thread: threading.Thread | None = None

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def problem(self) -> str | None:
        """Why nothing can be written right now."""
        if self._thread is None or not self._thread.is_alive():
            return "the writing thread does not run"
        try:
            self._space.check(self._promised_bytes())
        except DiskFull as error:
            return error.message
        return None

    def submit(self, job: Job[T]) -> "Future[T]":
        """Refuses at once when too much waits or the disk is almost full: nothing is written then."""
        future: Future[T] = Future()
        with self._wake:
            if self._stopping:
                raise Unavailable("the broker is stopping", outcome="not_written")
            if not job.uses_reserve:
                self._space.check(self._promised_bytes() + job.size_bytes)
            if len(self._waiting) >= self._max_waiting or (
                self._waiting and self._waiting_bytes + job.size_bytes > self._max_waiting_bytes
            ):
                raise Overloaded("too many writes wait for the broker's disk", retry_after_s=1)
            self._waiting.append((job, future))
            self._waiting_bytes += job.size_bytes
            self._wake.notify()
        return future

    def _promised_bytes(self) -> int:
        return self._waiting_bytes + self._database.unmoved_bytes

    def start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Writes what waits, then ends."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while batch := self._take():
            try:
                self._commit(batch)
            except Exception:
                # Not only IO errors: a write that fails for a reason nobody foresaw must not go on half done.
                self._logger.exception("a commit failed; the process stops, what was being written is unknown")
                self._on_failure()
                raise

    def _take(self) -> list[tuple[Job[Any], "Future[Any]"]]:
        """Everything that waits, up to the size of a round; nothing when stopping."""
        with self._wake:
            while not self._waiting and not self._stopping:
                self._wake.wait()
            taken: list[tuple[Job[Any], Future[Any]]] = []
            size = 0
            while self._waiting and (not taken or size + self._waiting[0][0].size_bytes <= self._max_round_bytes):
                job, future = self._waiting.popleft()
                size += job.size_bytes
                taken.append((job, future))
            self._waiting_bytes -= size
            return taken

    def _commit(self, batch: list[tuple[Job[Any], "Future[Any]"]]) -> None:
        try:
            with self._database.transaction() as connection:
                round_ = Round(connection, self._clock_ms())
                results = [job.apply(round_) for job, _ in batch]
                round_.flush()
        except apsw.FullError as error:
            # Rolled back. Without its commit record in the WAL nothing of it can come back.
            self._logger.warning("the disk is full", error=str(error))
            for _, future in batch:
                future.set_exception(DiskFull())
            return
        round_.publish()
        self._observe_round(len(batch))
        for (_, future), result in zip(batch, results, strict=True):
            future.set_result(result)
