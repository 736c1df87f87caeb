"""Group commit: one thread takes everything that waits, over all partitions, into one frame and one sync."""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from broker.raft.effects import Persist
from broker.storage.disk import NoSpace
from broker.storage.journal import JournalFull
from broker.storage.partition_log import PartitionLog
from broker.storage.round import Item, Round, Written
from broker.storage.space import FreeSpace
from broker.storage.store import Store
from myqueue.protocol.errors import DiskFull, Overloaded, Unavailable
from service.logs import Log as Logger

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

FAIL_STOP_STATUS = 70
_CHANGE_BYTES = 4096
_FULL_DISK_PAUSE_S = 0.2
_FULL_JOURNAL_PAUSE_S = 0.005


class Job(Protocol[T_co]):
    """`apply` runs on the writing thread; its result is handed out when what it added to the round is durable."""

    @property
    def size_bytes(self) -> int: ...

    @property
    def uses_reserve(self) -> bool:
        """Written also on a full disk: votes, retention, drops."""
        ...

    def apply(self, round_: Round) -> T_co: ...


class Owed(NamedTuple):
    log: PartitionLog
    persist: Persist


class Save:
    """What a round of the Raft core wants on disk.

    Never refused, so that votes work on a full disk; what may not fit is refused before it gets here.
    """

    uses_reserve = True

    def __init__(self, owed: Sequence[Owed]) -> None:
        self._owed = owed
        self.size_bytes = sum(entry.size for _, persist in owed for entry in persist.entries)
        self.size_bytes += sum(_table_bytes(persist) for _, persist in owed if persist.truncate_from == 0)

    def apply(self, round_: Round) -> None:
        for log, persist in self._owed:
            round_.persist(log, persist)


def _table_bytes(persist: Persist) -> int:
    """Of the snapshot that a leader has sent: a file of its own."""
    return 0 if persist.snapshot is None else len(persist.snapshot.dedupe.keys) + len(persist.snapshot.dedupe.producers)


class Change(Generic[T]):
    """Any write of its own; allowed on a full disk when it is one that must still work then."""

    size_bytes = _CHANGE_BYTES

    def __init__(self, change: Callable[[Round], T], *, uses_reserve: bool = False) -> None:
        self._change = change
        self.uses_reserve = uses_reserve

    def apply(self, round_: Round) -> T:
        return self._change(round_)


def fail_stop() -> None:
    """Ends the process at once: after a failed sync the content of the disk is unknown."""
    os._exit(FAIL_STOP_STATUS)


Waiting = tuple[Job[Any], Callable[[Any], object]]


class Writer:
    def __init__(
        self,
        store: Store,
        space: FreeSpace,
        logger: Logger,
        *,
        max_waiting: int,
        max_waiting_bytes: int,
        observe_commit: Callable[[float], None] = lambda _: None,
        observe_round: Callable[[int], None] = lambda _: None,
        on_failure: Callable[[], None] = fail_stop,
    ) -> None:
        self._store = store
        self._space = space
        self._logger = logger
        self._max_waiting = max_waiting
        self.max_waiting_bytes = max_waiting_bytes
        self._observe_commit = observe_commit
        self._observe_round = observe_round
        self._on_failure = on_failure
        self._waiting: deque[Waiting] = deque()
        self._waiting_bytes = 0
        self._writing_bytes = 0
        self._lock = threading.Lock()
        self._wake: SimpleQueue[None] = SimpleQueue()  # cheaper to wait at than a Condition: once for each small append
        self._sleeps = False
        self._stopping = False
        self._waits_for_room = False
        self._thread: threading.Thread | None = None
        self.on_written: Callable[[], None] = lambda: None  # upkeep has something to flush; must not block

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def is_stopping(self) -> bool:
        return self._stopping

    def problem(self) -> str | None:
        """Why nothing can be written right now."""
        if self._thread is None or not self._thread.is_alive():
            return "the writing thread does not run"
        try:
            self._space.check(self.in_flight_bytes())
        except DiskFull as error:
            return error.message
        return None

    def is_low(self) -> bool:
        """Leaders append no messages while it is."""
        return self._space.is_low(self.in_flight_bytes())

    def takes_entries(self) -> bool:
        """Whether there is room for what leaders send."""
        in_flight = self.in_flight_bytes()
        if in_flight > self.max_waiting_bytes or not self._store.journal.spare_segments:
            return False
        return not self._space.is_below_hard_mark(in_flight)

    def takes_snapshots(self) -> bool:
        """A leader's snapshot replaces a whole log, so it is what frees a full disk: it may use most of the reserve."""
        return bool(self._store.journal.spare_segments) and not self._space.is_exhausted(self.in_flight_bytes())

    def check_room(self, size_bytes: int) -> None:
        """Refuses what would be too much for the disk, or for what waits for it."""
        in_flight = self.in_flight_bytes()
        self._space.check(in_flight + size_bytes)
        if len(self._waiting) >= self._max_waiting or (in_flight and in_flight + size_bytes > self.max_waiting_bytes):
            raise Overloaded("too many writes wait for the broker's disk", retry_after_s=1)

    def in_flight_bytes(self) -> int:
        """Accepted, and not in the partitions' files yet."""
        return self._waiting_bytes + self._writing_bytes + self._store.unflushed_bytes()

    def submit(self, job: Job[T]) -> "Future[T]":
        """Refuses at once when too much waits or the disk is almost full: nothing is written then."""
        future: Future[T] = Future()
        self.enqueue(job, future.set_result)
        return future

    def enqueue(self, job: Job[T], done: Callable[[T], object]) -> None:
        """As `submit`; `done` is called on the writing thread and must not block."""
        with self._lock:
            if self._stopping:
                raise Unavailable("the broker is stopping", outcome="not_written")
            if not job.uses_reserve:
                self.check_room(job.size_bytes)
            self._waiting.append((job, done))
            self._waiting_bytes += job.size_bytes
            self._wake_up()

    def _wake_up(self) -> None:
        if self._sleeps:
            self._sleeps = False
            self._wake.put(None)

    def start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Writes what waits, then ends."""
        with self._lock:
            self._stopping = True
            self._wake_up()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while jobs := self._take():
            try:
                self._write(jobs)
            except _Stopped:
                return
            except Exception:
                # Not only IO errors: a write that fails for a reason nobody foresaw must not go on half done.
                self._logger.exception("a commit failed; the process stops, what was being written is unknown")
                self._on_failure()
                return

    def write_waiting(self) -> None:
        """Writes what waits on the calling thread, in place of a thread of its own."""
        while self._waiting:
            self._write(self._take())

    def _take(self) -> list[Waiting]:
        """Everything that waits, up to the size of a frame; nothing when stopping."""
        while True:
            with self._lock:
                if self._waiting or self._stopping:
                    return self._take_waiting()
                self._sleeps = True
            self._wake.get()

    def _take_waiting(self) -> list[Waiting]:
        taken: list[Waiting] = []
        size = 0
        limit = self._store.journal.max_frame_bytes // 2
        while self._waiting and (not taken or size + self._waiting[0][0].size_bytes <= limit):
            waiting = self._waiting.popleft()
            size += waiting[0].size_bytes
            taken.append(waiting)
        self._waiting_bytes -= size
        self._writing_bytes = size
        return taken

    def _write(self, jobs: list[Waiting]) -> None:
        round_, results = self._build(jobs)
        self.write(round_)
        self._writing_bytes = 0
        for (_, done), result in zip(jobs, results, strict=True):
            done(result)
        self._observe_round(len(jobs))
        self.on_written()

    def write(self, round_: Round) -> None:
        """On the writing thread: it is durable and has taken effect when this returns."""
        items = round_.items
        first = 0
        while first < len(items):
            first = self._write_frame(items, first)
        for request in round_.snapshots:
            self._store.request_snapshot(request)

    def _build(self, jobs: list[Waiting]) -> tuple[Round, list[Any]]:
        while True:
            round_ = Round(self._store)
            try:
                return round_, [job.apply(round_) for job, _ in jobs]
            except NoSpace as error:  # for the table of a snapshot that a leader has sent
                round_.abandon()
                self._wait_for_room(error)

    def _write_frame(self, items: list[Item], first: int) -> int:
        """The items from `first` on that fit; the first one that did not. Those that belong together stay so."""
        journal = self._store.journal
        left = journal.max_frame_bytes
        end = first
        while end < len(items) and (end == first or items[end].record.size_bytes <= left):
            left -= items[end].record.size_bytes
            end += 1
        if first < end - 1 and items[end - 1].with_next:
            end -= 1
        chosen = items[first:end]
        started = time.perf_counter()
        self._append([item.record for item in chosen])
        self._observe_commit(time.perf_counter() - started)
        _take_effect(chosen, journal.segment)
        entries = [(item.log, item.record.size_bytes) for item in chosen if item.log is not None]
        self._store.wrote([log for log, _ in entries], sum([size for _, size in entries]))
        return end

    def _append(self, records: list[Any]) -> None:
        """Waits for room: a full disk is not an error of what is being written."""
        while True:
            try:
                self._store.journal.append(records)
            except (NoSpace, JournalFull) as error:
                self._wait_for_room(error)
            else:
                self._waits_for_room = False
                return

    def _wait_for_room(self, error: Exception) -> None:
        if not self._waits_for_room and isinstance(error, NoSpace):
            self._logger.warning("the disk is full")
        self._waits_for_room = True
        if self._stopping:  # dropped: nothing that depends on it was sent
            raise _Stopped from error
        self.on_written()
        time.sleep(_FULL_DISK_PAUSE_S if isinstance(error, NoSpace) else _FULL_JOURNAL_PAUSE_S)


class _Stopped(Exception):
    """The process ends while the disk is full."""


def _take_effect(items: list[Item], segment: int) -> None:
    """In order; entries of one log that follow each other are handed over together."""
    batch: Written | None = None
    for item in items:
        if item.log is None:
            if batch is not None:
                batch.take_effect(segment)
                batch = None
            assert item.effect is not None
            item.effect()
            continue
        if batch is None or batch.log is not item.log or _jumps_back(batch, item):
            if batch is not None:
                batch.take_effect(segment)
            batch = Written(item.log)
        assert item.entry is not None
        batch.entries.append(item.entry)
        batch.records.append(item.record)
        batch.tail = item.tail
    if batch is not None:
        batch.take_effect(segment)


def _jumps_back(batch: Written, item: Item) -> bool:
    assert item.entry is not None
    return batch.entries[-1].index + 1 != item.entry.index
