"""The threads that send, each with its connection: one pool for all producers of a process that use the same URL.

A message takes one hand-over from `send` to the socket: `send` gives its batch to the one idle thread that is chosen
for it. A thread that has sent goes on with its sender's next batch, unless another sender waits for a thread: the one
with the fewest threads goes first, so that senders take turns and none takes the threads of all.

The pool starts threads as they are needed, up to `BASE_THREADS`, or one for each producer. Beyond that it grows when a
sender has waited for `GROW_AFTER_S`, because others wait for brokers that do not answer. Threads beyond the base end
when they have had nothing to do for a while.
"""

import threading
import time
from math import inf
from queue import Empty, SimpleQueue
from typing import NamedTuple, Protocol

from myqueue.http_connection import HttpConnection
from myqueue.process_shared import ProcessShared

BASE_THREADS = 8
MAX_THREADS = 64
GROW_AFTER_S = 0.1
IDLE_S = 2.0  # of a thread beyond the base, before it ends
_CLOSE_S = 1.0  # longer only while an abandoned attempt waits for its response


class WorkSource(Protocol):
    """A sender. Its own lock may be held when it calls the pool, never the other way round."""

    @property
    def busy(self) -> int:
        """Threads that work for its producer."""
        ...

    def take_work(self) -> object | None:
        """What is due now."""
        ...

    def do_work(self, work: object, connection: HttpConnection) -> None: ...

    def next_work(self, *, others_wait: bool) -> object | None:
        """Ends the work that was done, and takes the next unless others shall go first."""
        ...


class _Task(NamedTuple):
    source: WorkSource
    work: object


class SendThread(threading.Thread):
    """Waits for a task; None: to look for itself."""

    def __init__(self, pool: "SendThreadPool", number: int, on_trial: bool) -> None:
        super().__init__(name=f"myqueue-send-{number}", daemon=True)
        self.tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self.until = inf  # while it is idle: when it looks for work by itself
        self.used_at = 0.0
        self._connection = HttpConnection(pool.url)
        self._pool = pool
        self._on_trial = on_trial

    def give(self, source: WorkSource, work: object) -> None:
        self.tasks.put(_Task(source, work))

    def run(self) -> None:
        if self._on_trial:
            self._pool.await_trial()
        task = None if self._on_trial else self.tasks.get()
        while task is not None or (task := self._pool.next_task(self)) is not None:
            source, work = task
            source.do_work(work, self._connection)
            task = None
            self.used_at = time.monotonic()
            following = source.next_work(others_wait=self._pool.others_wait)
            if following is not None:
                task = _Task(source, following)
            del source, work, following  # an idle thread must not keep a dropped producer alive
        self._connection.close()


class SendThreadPool:
    def __init__(self, url: str) -> None:
        self.url = url
        self._lock = threading.Lock()
        self._threads: set[SendThread] = set()
        self._idle: list[SendThread] = []  # the last one was busy last: its connection is the warmest
        self._base_threads = BASE_THREADS  # or as many as one producer wants to have in flight
        self._producers = 0
        self._started = 0
        self._waiting: dict[WorkSource, float] = {}  # for a thread, since when; longest first
        self._due: dict[WorkSource, float] = {}  # later
        self._trial = False
        self._closed = threading.Event()

    @property
    def others_wait(self) -> bool:
        return bool(self._waiting)

    @property
    def thread_count(self) -> int:
        return len(self._threads)

    def add_producer(self, max_in_flight: int) -> None:
        with self._lock:
            self._producers += 1
            self._base_threads = max(self._base_threads, min(max_in_flight, MAX_THREADS))

    def remove_producer(self) -> None:
        with self._lock:
            self._producers -= 1

    def acquire(self, source: WorkSource) -> SendThread | None:
        """A thread to give work to; None if all are busy: the next one that is free comes to the source by itself."""
        with self._lock:
            if self._idle:
                thread = self._idle.pop()
                if thread.until != inf:
                    self._cover_due()  # it was the one that would have woken up
                return thread
            if len(self._threads) < min(MAX_THREADS, max(self._base_threads, self._producers)):
                started = self._start(on_trial=False)
                if started is not None:
                    return started
            self._waiting.setdefault(source, time.monotonic())
            self._try_growth()
            return None

    def call_at(self, source: WorkSource, due: float) -> None:
        """A thread comes to the source at this time, or before."""
        with self._lock:
            if self._due.get(source, inf) <= due:
                return
            self._due[source] = due
            self._cover_due()

    def forget(self, source: WorkSource) -> None:
        with self._lock:
            self._waiting.pop(source, None)
            self._due.pop(source, None)

    def close(self) -> None:
        """Ends the threads; those that are busy, when they have finished."""
        with self._lock:
            self._closed.set()
            for thread in self._idle:
                thread.tasks.put(None)
            self._idle.clear()
            threads = list(self._threads)
        deadline = time.monotonic() + _CLOSE_S
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def next_task(self, thread: SendThread) -> _Task | None:
        """Waits; None when the thread shall end."""
        while True:
            source, timeout = self._next_source(thread)
            if source is None:
                if timeout is None:
                    return None
                task = self._await_task(thread, timeout)
                if task is not None:
                    return task
                continue
            work = source.take_work()
            if work is not None:
                return _Task(source, work)
            del source

    def await_trial(self) -> None:
        """Of a thread beyond the usual number: until a sender has waited for too long, or none waits."""
        while not self._closed.wait(GROW_AFTER_S):
            with self._lock:
                since = min([*self._due.values(), *self._waiting.values()], default=None)
                if since is None or since <= time.monotonic() - GROW_AFTER_S:
                    self._trial = False
                    return

    def _next_source(self, thread: SendThread) -> tuple[WorkSource | None, float | None]:
        """Who has something to send, or how long to wait for that; no time: the thread ends."""
        with self._lock:
            if self._waiting:
                source = min(self._waiting, key=lambda waiting: waiting.busy)  # the one that waits longest, of equals
                del self._waiting[source]
                if self._waiting:
                    self._try_growth()
                return source, None
            now = time.monotonic()
            first = min(self._due, key=self._due.__getitem__, default=None)
            if first is not None and self._due[first] <= now:
                del self._due[first]
                return first, None
            spare = first is None and len(self._threads) > self._base_threads
            if self._closed.is_set() or (spare and now >= thread.used_at + IDLE_S):
                self._threads.discard(thread)
                return None, None
            thread.until = thread.used_at + IDLE_S if spare else inf if first is None else self._due[first]
            self._idle.append(thread)
            return None, thread.until - now

    def _await_task(self, thread: SendThread, timeout: float) -> _Task | None:
        """None: look again."""
        try:
            return thread.tasks.get(timeout=None if timeout == inf else max(0.0, timeout))
        except Empty:
            with self._lock:
                if thread in self._idle:
                    self._idle.remove(thread)
                    return None
        return thread.tasks.get()  # it was chosen meanwhile

    def _cover_due(self) -> None:
        """Sees to it that a thread wakes up when the next source is due."""
        due = min(self._due.values(), default=inf)
        if due == inf or any(thread.until <= due for thread in self._idle):
            return
        if self._idle:
            self._idle.pop().tasks.put(None)  # to wait until then
        elif len(self._threads) < self._base_threads and (started := self._start(on_trial=False)) is not None:
            started.tasks.put(None)
        else:
            self._try_growth()  # unless a thread becomes idle in time: it looks at `_due` before it waits

    def _try_growth(self) -> None:
        if not self._trial and len(self._threads) < MAX_THREADS and not self._closed.is_set():
            self._trial = self._start(on_trial=True) is not None

    def _start(self, *, on_trial: bool) -> SendThread | None:
        """None if the system starts no more threads: those that there are come to whoever waits."""
        self._started += 1
        thread = SendThread(self, self._started, on_trial)
        try:
            thread.start()
        except RuntimeError:
            if not self._threads:
                raise
            return None
        self._threads.add(thread)
        return thread


send_thread_pools: ProcessShared[str, SendThreadPool] = ProcessShared(SendThreadPool, SendThreadPool.close)


def in_send_thread() -> bool:
    """Whether this is code of a callback, which must not wait: its thread is one of those that send."""
    return isinstance(threading.current_thread(), SendThread)
