"""The futures of sent messages: acknowledged with a receipt, or failed with an error."""

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from myqueue.message import Receipt
from myqueue.protocol.errors import MyQueueError


class BatchResult:
    """The outcome of a batch. The deliveries of its messages share it, so that a delivery is two references."""

    __slots__ = (
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
        if self._skip_linger is not None:
            self._skip_linger(self)
        limit = -1 if timeout is None else min(max(0.0, timeout), threading.TIMEOUT_MAX)
        if not self._undecided.acquire(timeout=limit):
            raise TimeoutError(f"not decided after {timeout:.1f} s; it is still being sent")
        self._undecided.release()  # for the next one who waits

    def _decided(self) -> None:
        self.done = True
        self._undecided.release()


class Delivery:
    """The future of one message."""

    __slots__ = ("_index", "_result")

    def __init__(self, result: BatchResult, index: int) -> None:
        self._result = result
        self._index = index

    def done(self) -> bool:
        return self._result.done

    def result(self, timeout: float | None = None) -> Receipt:
        """Waits; raises the error of a failed send, TimeoutError if it is not decided in time."""
        error = self.exception(timeout)
        if error is not None:
            raise error
        result = self._result
        return Receipt(result.topic, result.partition, result.base_offset + self._index)

    def exception(self, timeout: float | None = None) -> MyQueueError | None:
        """Waits; the error of a failed send, None for an acknowledged one."""
        result = self._result
        result.wait(timeout)
        if result.error is not None:
            result.mark_retrieved(self._index, 1)
        return result.error


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

    def __len__(self) -> int:
        return sum(count for _, _, count in self._parts)

    def done(self) -> bool:
        return all(result.done for result, _, _ in self._parts)

    def result(self, timeout: float | None = None) -> list[Span]:
        """Waits for all; where they are stored. Raises the first error if some failed."""
        error = self.exception(timeout)
        if error is not None:
            raise error
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
