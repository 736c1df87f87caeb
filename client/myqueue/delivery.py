"""The future of one sent message: acknowledged with a receipt, or failed with an error."""

import threading

from myqueue.message import Receipt
from myqueue.protocol.errors import MyQueueError


class Delivery:
    """Like concurrent.futures.Future, but without a lock of its own: a producer has many of these."""

    __slots__ = ("_changed", "_error", "_noticed", "_receipt")

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed  # shared by all deliveries of one producer
        self._receipt: Receipt | None = None
        self._error: MyQueueError | None = None
        self._noticed = False

    def done(self) -> bool:
        return self._receipt is not None or self._error is not None

    def result(self, timeout: float | None = None) -> Receipt:
        """Waits; raises the error of a failed send, TimeoutError if it is not decided in time."""
        error = self.exception(timeout)
        if error is not None:
            raise error
        assert self._receipt is not None
        return self._receipt

    def exception(self, timeout: float | None = None) -> MyQueueError | None:
        """Waits; the error of a failed send, None for an acknowledged one."""
        with self._changed:
            if not self._changed.wait_for(self.done, timeout):
                raise TimeoutError(f"not decided after {timeout} s; it is still being sent")
        self._noticed = True
        return self._error

    @property
    def noticed(self) -> bool:
        """Whether someone was told how it ended."""
        return self._noticed

    def settle(self, outcome: Receipt | MyQueueError) -> None:
        """For the producer only; it holds the shared condition and notifies."""
        if isinstance(outcome, MyQueueError):
            self._error = outcome
        else:
            self._receipt = outcome
