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
from broker.storage.entry import Entry, Tail
from broker.storage.groups import Group
from broker.storage.log import Log, Row, insert_rows, row_of
from broker.storage.space import Space
from myqueue.protocol.errors import DiskFull, Overloaded, Unavailable
from service.logs import Log as Logger

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

FAIL_STOP_STATUS = 70
_FULL_DISK_PAUSE_S = 0.2


class Round:
    """What one transaction does. Tails and groups become visible only after its commit."""

    def __init__(self, connection: apsw.Connection) -> None:
        self.connection = connection
        self._tails: dict[Log, Tail] = {}
        self._groups: dict[Log, Group] = {}
        self._rows: list[Row] = []

    def tail_of(self, log: Log) -> Tail:
        return self._tails.get(log, log.tail)

    def group_of(self, log: Log) -> Group:
        return self._groups.get(log, log.group)

    def append(self, log: Log, entry: Entry) -> None:
        tail = self.tail_of(log).after(entry)
        self._rows.append(row_of(self.group_of(log).group_id, entry, tail))
        self._tails[log] = tail

    def set_tail(self, log: Log, tail: Tail) -> None:
        self._tails[log] = tail

    def set_group(self, log: Log, group: Group) -> None:
        self._groups[log] = group

    def flush(self) -> None:
        insert_rows(self.connection, self._rows)
        self._rows = []

    def publish(self) -> None:
        for log, tail in self._tails.items():
            log.tail = tail
        for log, group in self._groups.items():
            log.group = group


class Job(Protocol[T_co]):
    """`apply` runs on the writing thread inside a transaction; its result is handed out after the commit.

    A `lasting` one is never refused: it is written when there is room again, and whatever comes after it waits.
    """

    @property
    def size_bytes(self) -> int: ...

    @property
    def uses_reserve(self) -> bool: ...

    @property
    def lasting(self) -> bool: ...

    def apply(self, round_: Round) -> T_co: ...


class Change(Generic[T]):
    """Any write of its own; allowed on a full disk when it is one that must still work then."""

    lasting = False

    def __init__(self, change: Callable[[Round], T], *, uses_reserve: bool = False) -> None:
        self._change = change
        self.uses_reserve = uses_reserve
        self.size_bytes = PAGE_BYTES

    def apply(self, round_: Round) -> T:
        return self._change(round_)


def fail_stop() -> None:
    """Ends the process at once: after a failed fsync nobody knows what is on the disk."""
    os._exit(FAIL_STOP_STATUS)


Waiting = tuple[Job[Any], "Future[Any]"]


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
        observe_round: Callable[[int], None] = lambda _: None,
        on_failure: Callable[[], None] = fail_stop,
    ) -> None:
        self._database = database
        self._space = space
        self._logger = logger
        self._max_waiting = max_waiting
        self._max_waiting_bytes = max_waiting_bytes
        self._max_round_bytes = max_round_bytes
        self._observe_round = observe_round
        self._on_failure = on_failure
        self._waiting: deque[Waiting] = deque()
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

    def takes_entries(self) -> bool:
        """Whether there is room for what leaders send: a part of the reserve is kept for votes and for retention."""
        free = self._space.free_bytes()
        if free is not None and free - self._promised_bytes() < self._space.reserve_bytes // 2:
            return False
        return self._waiting_bytes <= self._max_waiting_bytes

    def check_room(self, size_bytes: int) -> None:
        """Refuses what would be too much for the disk, or for what waits for it."""
        self._space.check(self._promised_bytes() + size_bytes)
        if len(self._waiting) >= self._max_waiting or (
            self._waiting and self._waiting_bytes + size_bytes > self._max_waiting_bytes
        ):
            raise Overloaded("too many writes wait for the broker's disk", retry_after_s=1)

    def submit(self, job: Job[T]) -> "Future[T]":
        """Refuses at once when too much waits or the disk is almost full: nothing is written then."""
        future: Future[T] = Future()
        with self._wake:
            if self._stopping:
                raise Unavailable("the broker is stopping", outcome="not_written")
            if not job.uses_reserve:
                self.check_room(job.size_bytes)
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
                while batch:
                    batch = self._commit(batch)
            except apsw.CorruptError:
                self._logger.exception("the data file is damaged; the process stops and starts again without it")
                self._database.condemn()
                self._on_failure()
                return
            except Exception:
                # Not only IO errors: a write that fails for a reason nobody foresaw must not go on half done.
                self._logger.exception("a commit failed; the process stops, what was being written is unknown")
                self._on_failure()
                return

    def _take(self) -> list[Waiting]:
        """Everything that waits, up to the size of a round; nothing when stopping."""
        with self._wake:
            while not self._waiting and not self._stopping:
                self._wake.wait()
            taken: list[Waiting] = []
            size = 0
            while self._waiting and (not taken or size + self._waiting[0][0].size_bytes <= self._max_round_bytes):
                job, future = self._waiting.popleft()
                size += job.size_bytes
                taken.append((job, future))
            self._waiting_bytes -= size
            return taken

    def _commit(self, batch: list[Waiting]) -> list[Waiting]:
        """What has to be tried again."""
        try:
            with self._database.transaction() as connection:
                round_ = Round(connection)
                results = [job.apply(round_) for job, _ in batch]
                round_.flush()
        except apsw.FullError as error:
            # Rolled back. Without its commit record in the WAL nothing of it can come back.
            self._logger.warning("the disk is full", error=str(error))
            return self._wait_for_room(batch)
        round_.publish()
        self._observe_round(len(batch))
        for (_, future), result in zip(batch, results, strict=True):
            future.set_result(result)
        return []

    def _wait_for_room(self, batch: list[Waiting]) -> list[Waiting]:
        for job, future in batch:
            if not job.lasting:
                future.set_exception(DiskFull())
        lasting = [(job, future) for job, future in batch if job.lasting]
        if lasting:
            time.sleep(_FULL_DISK_PAUSE_S)
        # At the end of the process they are dropped: nobody was told that they are written.
        return [] if self._stopping else lasting
