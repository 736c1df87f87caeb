"""Worker: runs a function over the messages of a topic, many at a time and in the order of each key."""

import inspect
import logging
import math
import random
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Literal

from myqueue.argument_checks import WrongType, WrongValue
from myqueue.client_reprs import shown
from myqueue.cluster_url import base_url
from myqueue.message import Message
from myqueue.poll_interval import MaxPollIntervalExceeded
from myqueue.protocol.errors import MyQueueError, StaleCommit, StaleLease
from myqueue.protocol.limits import topic_name_problem
from myqueue.start_position import Start
from myqueue.transport import DEFAULT_RETRY, DEFAULT_TIMEOUTS, RetryPolicy, Timeouts
from myqueue.worker.dead_letters import DeadLetterProducer, Reject, error_name
from myqueue.worker.event_loop import EventLoopThread
from myqueue.worker.message_source import MessageSource
from myqueue.worker.task_schedule import ORDERS, HandLimits, MessageTask, Order, TaskSchedule

logger = logging.getLogger("myqueue")

Handler = Callable[[Message], object] | Callable[[Message], Awaitable[object]]
Commit = Callable[[dict[int, int]], dict[int, int]]
RetryOn = type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], bool]

DEAD_LETTER_SUFFIX = ".dead"
TICK_S = 0.2  # the longest wait for messages: `stop` may be called by a signal handler, which can wake nothing
REFILL_S = 0.02  # while a partition is full
MAX_READ = 500  # messages at a time
REVOKE_S = 4.0  # to finish what has begun of partitions that are about to go: the cluster takes them after 6 s


@dataclass(frozen=True, slots=True)
class WorkerCounts:
    """Since the worker started; `in_hand` and `running` are of now."""

    handled: int = 0
    retried: int = 0
    dead: int = 0
    in_hand: int = 0
    running: int = 0


@dataclass(frozen=True, slots=True)
class HandlerResult:
    """A call of the handler that ended. `outcome`: what follows from it for the message."""

    message: Message
    outcome: Literal["handled", "retried", "dead"]
    attempt: int  # from 1
    seconds: float
    error: Exception | None


def backoff_s(failures: int, first_s: float, longest_s: float, jitter: float) -> float:
    """The pause after so many failures: doubled each time, of which the upper half is random. `jitter` in [0, 1)."""
    ceiling = min(longest_s, first_s * 2.0 ** min(failures - 1, 60))
    return ceiling * (1.0 + jitter) / 2.0


class Worker:
    """Runs `handle` for each message; an exception means that it failed.

    A message is committed after `handle` has returned, and after all before it in its partition: each is handled at
    least once. Messages of a key are handled one after the other, in their order; different keys and messages without a
    key at the same time. One that fails is retried, and holds up only its key; when the retries are used up, or after
    Reject, it goes to the dead-letter topic. Workers of one name, in any process, share the topic's partitions.
    """

    def __init__(
        self,
        handle: Handler,
        url: str | None = None,
        *,
        topic: str,
        name: str,
        start: Start = "earliest",
        concurrency: int = 8,
        order: Order = "key",
        max_retries: int | None = 5,
        first_backoff_s: float = 0.5,
        longest_backoff_s: float = 60.0,
        retry_on: RetryOn = Exception,
        dead_letter_topic: str | None = None,
        max_in_hand: int = 1000,
        max_in_hand_bytes: int = 64 << 20,
        max_uncommitted: int = 10_000,
        commit_interval_s: float = 1.0,
        stop_timeout_s: float = 30.0,
        on_result: Callable[[HandlerResult], None] | None = None,
        retry: RetryPolicy = DEFAULT_RETRY,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
    ) -> None:
        """`max_retries`: None means for ever. `retry_on`: exceptions that are worth a retry, or a function that says
        so; others go to the dead-letter topic at once, `<topic>.dead` unless it is given. `on_result` is called in the
        threads of the handlers."""
        if not callable(handle):
            raise WrongType(f"handle must be a function of a message, not {type(handle).__name__}")
        if not name:
            raise WrongValue("name must not be empty: it is where the position in the topic is kept")
        if order not in ORDERS:
            raise WrongValue(f"order must be one of {', '.join(ORDERS)}, not {order!r}")
        if max_retries is not None and max_retries < 0:
            raise WrongValue("max_retries must be 0 or more, or None")
        if not 0 <= first_backoff_s <= longest_backoff_s < math.inf:
            raise WrongValue("first_backoff_s must be from 0 to longest_backoff_s")
        for setting, value in {
            "concurrency": concurrency,
            "max_in_hand": max_in_hand,
            "max_in_hand_bytes": max_in_hand_bytes,
            "max_uncommitted": max_uncommitted,
        }.items():
            if value < 1:
                raise WrongValue(f"{setting} must be 1 or more")
        self.topic = topic
        self.name = name
        self.dead_letter_topic = dead_letter_topic or topic + DEAD_LETTER_SUFFIX
        if problem := topic_name_problem(self.dead_letter_topic):
            raise WrongValue(f"dead_letter_topic {self.dead_letter_topic!r}: {problem}")
        if self.dead_letter_topic == topic:
            raise WrongValue("dead_letter_topic must be another topic: a dead letter would be handled again")
        self._url = base_url(url)
        self._start = start
        self._concurrency = concurrency
        self._max_retries = math.inf if max_retries is None else max_retries
        self._backoff_s = first_backoff_s, longest_backoff_s
        self._retry_on = retry_on
        self._max_in_hand = max_in_hand
        self._max_in_hand_bytes = max_in_hand_bytes
        self._commit_interval_s = commit_interval_s
        self._stop_timeout_s = stop_timeout_s
        self._on_result = on_result
        self._retry = retry
        self._timeouts = timeouts
        self._handle = handle
        self._dead_letters = DeadLetterProducer(self._url, self.dead_letter_topic, name, retry, timeouts)

        self._lock = threading.Lock()  # guards what follows
        self._ready = threading.Condition(self._lock)  # a handler's thread may have something to do
        self._ended = threading.Condition(self._lock)  # a task ended
        self._schedule = TaskSchedule(order, HandLimits(max_in_hand, max_in_hand_bytes, max_uncommitted))
        self._handled = self._retried = self._dead = 0
        self._draining = False
        self._revoking = False  # partitions are about to go
        self._failure: BaseException | None = None  # not one of a message: the worker ends with it
        self._has_run = self._has_ended = False
        self._stop_requested = False

    def __repr__(self) -> str:
        if self._has_ended:
            state = "ended"
        elif self._has_run:
            state = "stopping" if self._stop_requested else "running"
        else:
            state = "not started"
        return shown("Worker", state, topic=self.topic, name=self.name, url=self._url)

    @property
    def counts(self) -> WorkerCounts:
        with self._lock:
            schedule = self._schedule
            return WorkerCounts(self._handled, self._retried, self._dead, schedule.in_hand, schedule.running)

    @property
    def is_stopping(self) -> bool:
        return self._stop_requested

    def stop(self, timeout_s: float | None = None) -> None:
        """Makes `run` end: it finishes messages that have begun and those before them, and commits. From any thread,
        also from a signal handler; `timeout_s` instead of `stop_timeout_s`, also when it stops already."""
        # Takes no lock: a signal handler may interrupt the thread that holds it.
        if timeout_s is not None:
            self._stop_timeout_s = timeout_s
        self._stop_requested = True

    def run(self) -> None:
        """Handles messages until `stop`. Raises what makes it impossible to go on, after running handlers ended.

        Returns when the handlers that run have ended, or after `stop_timeout_s`: the messages of those that have not
        are delivered again. The cluster may be away meanwhile: that is logged.
        """
        with self._lock:
            if self._has_run:
                raise RuntimeError("a worker runs once; make a new one")
            self._has_run = True
        source = MessageSource(
            self._url,
            self.topic,
            self.name,
            start=self._start,
            max_bytes=self._max_in_hand_bytes,
            retry=self._retry,
            timeouts=self._timeouts,
            on_revoke=lambda partitions: self._revoke(source, partitions),
            on_lost=self._lose,
        )
        with EventLoopThread() as event_loop, source:
            call = event_loop.runs(self._handle) if _is_async(self._handle) else self._handle
            threads = [
                threading.Thread(target=self._work, args=(call,), name=f"myqueue-worker-{number}", daemon=True)
                for number in range(self._concurrency)
            ]
            for thread in threads:
                thread.start()
            try:
                self._read(source)
            finally:
                self._drain(source)
                self._dead_letters.close()
                self._has_ended = True
        if self._failure is not None:
            raise self._failure

    # The thread that called `run`: reads and commits

    def _read(self, source: MessageSource) -> None:
        commit_at = time.monotonic() + self._commit_interval_s
        while not self._stop_requested and self._failure is None:
            with self._lock:
                full = self._schedule.find_full(source.assigned)
            source.pause(full)
            most = min(MAX_READ, max(1, self._max_in_hand // max(1, source.assigned)))
            try:
                messages = source.read(most, REFILL_S if full else TICK_S)
                with self._lock:
                    for message in messages:
                        self._schedule.add(message)
                    self._ready.notify(len(messages))
            except MyQueueError as error:
                self._continue_after(error, f"no messages of {self.topic} at the moment")
            now = time.monotonic()
            if now >= commit_at:
                self._commit(source.commit_later)
                commit_at = now + self._commit_interval_s

    def _revoke(self, source: MessageSource, partitions: list[int]) -> None:
        """Finishes what has begun of the partitions, and commits it: what is not done by then is repeated elsewhere."""
        begun = time.monotonic()
        with self._lock:
            self._finish_begun(partitions, lambda: begun + REVOKE_S)
        self._commit(source.commit_later)  # it is sent before they are released
        self._lose(partitions)

    def _finish_begun(self, partitions: list[int], until: Callable[[], float]) -> None:
        """Waits for the messages up to the last one that has begun; drops those behind it. Called with the lock held.

        Messages of other keys that were handled before an earlier one of their partition cannot be committed without
        it. `until` may change meanwhile.
        """
        self._schedule.begin_revoke(partitions)
        self._revoking = True
        while not self._draining and self._schedule.is_busy(partitions, until()):
            left_s = until() - time.monotonic()
            if left_s <= 0:
                break
            self._ended.wait(min(TICK_S, left_s))
        self._revoking = False

    def _lose(self, partitions: list[int]) -> None:
        with self._lock:
            for partition in partitions:
                self._schedule.revoke(partition)
        logger.info("%s: partitions %s of %s went away", self.name, partitions, self.topic)

    def _commit(self, commit: Commit) -> None:
        """What is done."""
        with self._lock:
            offsets = self._schedule.uncommitted()
        if not offsets:
            return
        try:
            committed = commit(offsets)
        except MyQueueError as error:
            self._continue_after(error, "the commit failed, the next one makes up for it")
            return
        with self._lock:
            self._schedule.committed(committed)

    def _continue_after(self, error: MyQueueError, what: str) -> None:
        """Raises what no waiting can mend. The error may be of an earlier commit, which is made up for."""
        with self._lock:
            self._schedule.recommit()
        if isinstance(error, StaleLease | StaleCommit):
            logger.info("%s: a partition went to another process before its commit: %s", self.name, error)
        elif error.retriable or isinstance(error, MaxPollIntervalExceeded):  # as after the machine was suspended
            logger.warning("%s: %s: %s", self.name, what, error)
        else:
            raise error

    def _drain(self, source: MessageSource) -> None:
        """Finishes what has begun, as far as that is soon done, waits for the handlers that run, and commits."""
        begun = time.monotonic()
        with self._lock:
            try:
                self._finish_begun(self._schedule.partitions, lambda: begun + min(REVOKE_S, self._stop_timeout_s))
            finally:  # also after a second Ctrl-C
                self._draining = True
                self._ready.notify_all()
            # In short waits: a second call of `stop` may change the time that is left.
            while self._schedule.running and (left_s := begun + self._stop_timeout_s - time.monotonic()) > 0:
                self._ended.wait(min(TICK_S, left_s))
            running = self._schedule.running
        if running:
            logger.warning(
                "%s: %d handlers still run after %g s; their messages are delivered again",
                self.name,
                running,
                self._stop_timeout_s,
            )
        self._commit(source.commit)

    # The threads of the handlers

    def _work(self, call: Callable[[Message], object]) -> None:
        try:
            while (task := self._next()) is not None:
                self._attempt(call, task)
        except BaseException as error:  # noqa: BLE001 - `run` raises it: SystemExit of a handler, or a defect
            with self._lock:
                self._failure = self._failure or error
                self._draining = True
                self._ready.notify_all()

    def _next(self) -> MessageTask | None:
        """Waits for a task; None when the worker stops."""
        with self._lock:
            while not self._draining:
                now = time.monotonic()
                task = self._schedule.take(now)
                if task is not None:
                    return task
                due = self._schedule.next_retry()
                self._ready.wait(None if due is None else min(threading.TIMEOUT_MAX, due - now))
            return None

    def _attempt(self, call: Callable[[Message], object], task: MessageTask) -> None:
        if task.error is not None:  # only the dead letter is missing
            self._bury(task, task.error)
            return
        task.attempts += 1
        started = time.monotonic()
        try:
            call(task.message)
        except Exception as error:  # noqa: BLE001 - whatever a handler raises is a failed attempt
            seconds = time.monotonic() - started
            if isinstance(error, CancelledError) and self._draining:
                self._retry_later(task, task.attempts, counts=False)  # a coroutine that ran longer than `stop` waits
            elif self._is_retried(error, task.attempts):
                self._observe(HandlerResult(task.message, "retried", task.attempts, seconds, error))
                self._log_failure(task, error)
                self._retry_later(task, task.attempts, counts=True)
            else:
                self._observe(HandlerResult(task.message, "dead", task.attempts, seconds, error))
                self._bury(task, error)
        except BaseException:
            self._retry_later(task, 1, counts=False)
            raise
        else:
            self._observe(HandlerResult(task.message, "handled", task.attempts, time.monotonic() - started, None))
            with self._lock:
                if self._schedule.finish(task):
                    self._handled += 1
                self._after_run()

    def _bury(self, task: MessageTask, error: Exception) -> None:
        """Finished only when the dead letter is stored: sending it is repeated until then."""
        task.error = error
        try:
            self._dead_letters.send(
                task.message, error, task.attempts, lambda failure: self._buried(task, error, failure)
            )
        except Exception as failure:  # noqa: BLE001 - the message must neither be lost nor stop others
            self._buried(task, error, failure)

    def _buried(self, task: MessageTask, error: Exception, failure: Exception | None) -> None:
        """The dead letter is stored, or could not be sent; in a send thread: handlers do not wait for the answer."""
        if failure is not None:
            logger.warning("%s: a dead letter could not be sent, it is tried again: %s", self.name, failure)
            self._retry_later(task, task.attempts, counts=False)
            return
        logger.warning(
            "%s: gave up message %d of partition %d at attempt %d: %s: %s",
            self.name,
            task.message.offset,
            task.message.partition,
            task.attempts,
            error_name(error),
            error,
        )
        with self._lock:
            if self._schedule.finish(task):
                self._dead += 1
            self._after_run()

    def _retry_later(self, task: MessageTask, failures: int, *, counts: bool) -> None:
        pause_s = backoff_s(failures, *self._backoff_s, random.random())  # noqa: S311
        with self._lock:
            if self._schedule.retry(task, time.monotonic() + pause_s) and counts:
                self._retried += 1
            self._after_run()

    def _after_run(self) -> None:
        """Called with the lock held. This thread takes the next task itself; there may be more, or an earlier retry."""
        self._ready.notify()
        if self._draining or self._revoking:
            self._ended.notify()

    def _is_retried(self, error: Exception, attempts: int) -> bool:
        if isinstance(error, Reject) or attempts > self._max_retries:
            return False
        if isinstance(self._retry_on, type | tuple):
            return isinstance(error, self._retry_on)
        try:
            return self._retry_on(error)
        except Exception:
            logger.exception("%s: retry_on failed; the message is retried", self.name)
            return True

    def _log_failure(self, task: MessageTask, error: Exception) -> None:
        logger.info(
            "%s: attempt %d at message %d of partition %d failed: %s: %s",
            self.name,
            task.attempts,
            task.message.offset,
            task.message.partition,
            error_name(error),
            error,
        )

    def _observe(self, result: HandlerResult) -> None:
        if self._on_result is None:
            return
        try:
            self._on_result(result)
        except Exception:
            logger.exception("%s: on_result failed; the message is not concerned", self.name)


def _is_async(handle: Handler) -> bool:
    call = getattr(handle, "__call__", None)  # noqa: B004 - of an object whose method is a coroutine function
    return inspect.iscoroutinefunction(handle) or inspect.iscoroutinefunction(call)
