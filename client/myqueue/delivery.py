"""The futures of sent messages: acknowledged with a receipt, or failed with an error."""

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from myqueue.message import Receipt
from myqueue.protocol.errors import MyQueueError


class Decision:
    """How messages that travel together ended. Their deliveries share it, so that a delivery is two references."""

    __slots__ = ("_decided", "_hurry", "_noticed", "base_offset", "count", "error", "partition", "topic")

    def __init__(self, topic: str, hurry: Callable[["Decision"], None]) -> None:
        self.topic = topic
        self.partition = -1
        self.base_offset = -1
        self.count = 0
        self.error: MyQueueError | None = None
        self._noticed: set[int] | None = set()  # of failed messages: those that somebody has asked for; None: all
        self._decided = threading.Event()
        self._hurry = hurry

    @property
    def decided(self) -> bool:
        return self._decided.is_set()

    def stored(self, partition: int, base_offset: int) -> None:
        self.partition, self.base_offset = partition, base_offset
        self._decided.set()

    def failed(self, error: MyQueueError) -> None:
        self.error = error
        self._decided.set()

    def notice(self, first: int, count: int) -> None:
        if count >= self.count:
            self._noticed = None
        elif self._noticed is not None:
            self._noticed.update(range(first, first + count))

    @property
    def unnoticed(self) -> int:
        """Failed messages that nobody has asked for."""
        return 0 if self._noticed is None else self.count - len(self._noticed)

    def wait(self, timeout: float | None) -> None:
        """Whoever waits wants it now: it no longer lingers for others to join."""
        if self._decided.is_set():
            return
        self._hurry(self)
        if not self._decided.wait(timeout):
            raise TimeoutError(f"not decided after {timeout:.1f} s; it is still being sent")


class Delivery:
    """The future of one message."""

    __slots__ = ("_decision", "_index")

    def __init__(self, decision: Decision, index: int) -> None:
        self._decision = decision
        self._index = index

    def done(self) -> bool:
        return self._decision.decided

    def result(self, timeout: float | None = None) -> Receipt:
        """Waits; raises the error of a failed send, TimeoutError if it is not decided in time."""
        error = self.exception(timeout)
        if error is not None:
            raise error
        decision = self._decision
        return Receipt(decision.topic, decision.partition, decision.base_offset + self._index)

    def exception(self, timeout: float | None = None) -> MyQueueError | None:
        """Waits; the error of a failed send, None for an acknowledged one."""
        decision = self._decision
        decision.wait(timeout)
        if decision.error is not None:
            decision.notice(self._index, 1)
        return decision.error


class Span(NamedTuple):
    """Messages that are stored one after the other."""

    partition: int
    base_offset: int
    count: int  # type: ignore[assignment]  # it means more here than tuple's method


class Deliveries:
    """The future of many messages that were sent with one call, in the order of sending."""

    __slots__ = ("_parts",)

    def __init__(self, parts: list[tuple[Decision, int, int]]) -> None:
        self._parts = parts  # decision, index of the first one, count

    def __len__(self) -> int:
        return sum(count for _, _, count in self._parts)

    def done(self) -> bool:
        return all(decision.decided for decision, _, _ in self._parts)

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
        for decision, first, count in self._parts:
            decision.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
            if decision.error is not None:
                decision.notice(first, count)
                found = found or decision.error
        return found
