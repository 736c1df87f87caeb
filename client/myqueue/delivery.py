"""The futures of sent messages: acknowledged with a receipt, or failed with an error.

They can be waited for in a thread (`result`), in an event loop (`await`), or by a callback.
"""

import logging
import threading
import time
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, NamedTuple

from myqueue.argument_checks import check_timeout
from myqueue.client_reprs import delivery_repr, shown
from myqueue.message import Receipt
from myqueue.protocol.errors import MyQueueError

if TYPE_CHECKING:
    import asyncio

logger = logging.getLogger("myqueue")


class DeliveryTimeout(MyQueueError, TimeoutError):
    """The caller's own timeout is over. What was sent is still on its way unless the outcome is `not_written`."""

    error_code, http_status, retriable, default_message = 50402, 504, True, "not decided in time"
    default_outcome = "unknown"


class BatchResult:
    """The outcome of a batch. The deliveries of its messages share it, so that a delivery is two references."""

    __slots__ = (
        "_callbacks",
        "_retrieved",
        "_skip_linger",
        "_undecided",
        "base_offset",
        "count",
        "done",
        "error",
        "partition",
        "topic",
    )

    def __init__(self, topic: str, skip_linger: Callable[["BatchResult"], None] | None = None) -> None:
        self.topic = topic
        self.partition = -1
        self.base_offset = -1
        self.count = 0
        self.error: MyQueueError | None = None
        self._retrieved: set[int] | None = set()  # failed messages whose error the caller has seen; None: all
        self.done = False
        # Released when it is done. A bare lock: an Event wakes its waiter, who then waits for the Event's own lock.
        self._undecided = threading.Lock()
        self._undecided.acquire()
        self._skip_linger = skip_linger
        self._callbacks: list[Callable[[], object]] = []

    def stored(self, partition: int, base_offset: int) -> None:
        self.partition, self.base_offset = partition, base_offset
        self._decided()

    def failed(self, error: MyQueueError) -> None:
        self.error = error
        self._decided()

    def mark_retrieved(self, first: int, count: int) -> None:
        if count >= self.count:
            self._retrieved = None
        elif self._retrieved is not None:
            self._retrieved.update(range(first, first + count))

    @property
    def unretrieved(self) -> int:
        """Failed messages whose error the caller has not seen."""
        return 0 if self._retrieved is None else self.count - len(self._retrieved)

    def wait(self, timeout: float | None) -> None:
        """Sends the batch without further linger and waits for its outcome."""
        if self.done:
            return
        check_timeout(timeout)
        if self._skip_linger is not None:
            self._skip_linger(self)
        limit = -1 if timeout is None else min(max(0.0, timeout), threading.TIMEOUT_MAX)
        if not self._undecided.acquire(timeout=limit):
            raise DeliveryTimeout(f"not decided after {timeout:.1f} s; it is still being sent to {self.topic!r}")
        self._undecided.release()  # for the next one who waits

    async def wait_in_loop(self) -> None:
        """As `wait`, without a timeout: a task that is cancelled waits no more, and the batch is sent all the same."""
        if self.done:
            return
        if self._skip_linger is not None:
            self._skip_linger(self)
        from asyncio import get_running_loop  # loaded already where there is a loop; a shell command needs none

        loop = get_running_loop()
        waiting: asyncio.Future[None] = loop.create_future()
        # Callbacks are removed before they are called, and this one calls back into the loop: one that is found here
        # has not yet looked at its futures.
        for callback in self._callbacks:
            if isinstance(callback, _LoopWakeup) and callback.loop is loop:
                callback.waiting.append(waiting)
                break
        else:
            self.add_callback(_LoopWakeup(loop, waiting))
        await waiting

    def add_callback(self, callback: Callable[[], object]) -> None:
        """Called once, when the batch is done; now, if it is."""
        self._callbacks.append(callback)
        if self.done:
            self.run_callbacks()

    @property
    def has_callbacks(self) -> bool:
        return bool(self._callbacks)

    def run_callbacks(self) -> None:
        """By the thread that has decided the batch, and by one that came too late for that: each is popped once."""
        while self._callbacks:
            try:
                callback = self._callbacks.pop(0)
            except IndexError:
                return
            _call(callback)

    def fail_after_fork(self, error: MyQueueError) -> None:
        """In a child process: the parent has the message, and the outcome. Its callbacks run there, too."""
        self._callbacks.clear()
        if not self.done:
            self._undecided = threading.Lock()
            self._undecided.acquire()
            self.failed(error)

    def _decided(self) -> None:
        self.done = True
        self._undecided.release()


def _call(callback: Callable[[], object]) -> None:
    try:
        callback()
    except Exception:
        logger.exception("a callback of a delivery raised")  # a defect of the caller must not stop the sender


class _LoopWakeup:
    """The tasks of one event loop that wait for a batch: the loop is woken once for all of them."""

    __slots__ = ("loop", "waiting")

    def __init__(self, loop: "asyncio.AbstractEventLoop", waiting: "asyncio.Future[None]") -> None:
        self.loop = loop
        self.waiting = [waiting]

    def __call__(self) -> None:
        call_in_loop(self.loop, self._wake)

    def _wake(self) -> None:
        for future in self.waiting:
            if not future.done():
                future.set_result(None)


def call_in_loop(loop: "asyncio.AbstractEventLoop", function: Callable[[], None]) -> None:
    """From any thread; does nothing if the loop is closed: then no task waits any more."""
    try:
        loop.call_soon_threadsafe(function)
    except RuntimeError:
        if not loop.is_closed():
            raise


class Delivery:
    """The future of one message."""

    __slots__ = ("_index", "_result")

    def __init__(self, result: BatchResult, index: int) -> None:
        self._result = result
        self._index = index

    def done(self) -> bool:
        return self._result.done

    def __repr__(self) -> str:
        return delivery_repr(self._result, self._index)

    def as_part(self) -> tuple[BatchResult, int, int]:
        """Of a `Deliveries`."""
        return self._result, self._index, 1

    def result(self, timeout: float | None = None) -> Receipt:
        """Waits; raises the error of a failed send, DeliveryTimeout if it is not decided in time."""
        error = self.exception(timeout)
        if error is not None:
            raise error.with_traceback(None)  # others raise it, too: it would grow with each
        result = self._result
        return Receipt(result.topic, result.partition, result.base_offset + self._index)

    def exception(self, timeout: float | None = None) -> MyQueueError | None:
        """Waits; the error of a failed send, None for an acknowledged one."""
        result = self._result
        result.wait(timeout)
        if result.error is not None:
            result.mark_retrieved(self._index, 1)
        return result.error

    def add_done_callback(self, callback: Callable[["Delivery"], object]) -> None:
        """Calls `callback(delivery)` when it is decided: in a send thread, or here and now if it is already.

        It may `send`, but must not wait for other deliveries.
        """
        self._result.add_callback(lambda: callback(self))

    def __await__(self) -> Generator[Any, None, Receipt]:
        yield from self._result.wait_in_loop().__await__()
        return self.result(0)


class Span(NamedTuple):
    """Messages that are stored one after the other."""

    partition: int
    base_offset: int
    count: int  # type: ignore[assignment]  # it means more here than tuple's method


class Deliveries:
    """The future of many messages that were sent with one call, in the order of sending."""

    __slots__ = ("_parts",)

    def __init__(self, parts: list[tuple[BatchResult, int, int]]) -> None:
        self._parts = parts  # batch, index of the first message, count

    def __repr__(self) -> str:
        topic = self._parts[0][0].topic if self._parts else None
        failed = next((result.error for result, _, _ in self._parts if result.error is not None), None)
        done = "stored" if failed is None else f"failed: {failed!r}"
        return shown("Deliveries", done if self.done() else "not decided yet", topic=topic, messages=len(self))

    def __len__(self) -> int:
        return sum(count for _, _, count in self._parts)

    def done(self) -> bool:
        return all(result.done for result, _, _ in self._parts)

    def result(self, timeout: float | None = None) -> list[Span]:
        """Waits for all; where they are stored. Raises the first error if some failed."""
        error = self.exception(timeout)
        if error is not None:
            raise error.with_traceback(None)  # others raise it, too: it would grow with each
        return [Span(d.partition, d.base_offset + first, count) for d, first, count in self._parts]

    def exception(self, timeout: float | None = None) -> MyQueueError | None:
        """Waits for all; the first error, None if all are acknowledged."""
        found: MyQueueError | None = None
        deadline = None if timeout is None else time.monotonic() + timeout
        for result, first, count in self._parts:
            result.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
            if result.error is not None:
                result.mark_retrieved(first, count)
                found = found or result.error
        return found

    def add_done_callback(self, callback: Callable[["Deliveries"], object]) -> None:
        """Calls `callback(deliveries)` once all are decided; the rules of `Delivery.add_done_callback` hold."""
        _CallbackOfAll(self, callback).await_next()

    def __await__(self) -> Generator[Any, None, list[Span]]:
        for result, _, _ in self._parts:
            yield from result.wait_in_loop().__await__()
        return self.result(0)


class _CallbackOfAll:
    """Waits for the parts one after the other."""

    __slots__ = ("_callback", "_deliveries", "_left")

    def __init__(self, deliveries: Deliveries, callback: Callable[[Deliveries], object]) -> None:
        self._deliveries, self._callback = deliveries, callback
        self._left = [result for result, _, _ in deliveries._parts]

    def await_next(self) -> None:
        while self._left:
            result = self._left.pop()
            if not result.done:
                result.add_callback(self.await_next)
                return
        _call(lambda: self._callback(self._deliveries))
