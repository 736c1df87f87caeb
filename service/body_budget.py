"""Backpressure on request bodies: one memory budget for all listeners and routes of a process."""

from myqueue.protocol.errors import Overloaded


class BodyBudget:
    """Used on one event loop."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.held_bytes = 0

    def fits(self, size: int, leave_bytes: int) -> bool:
        """One body always fits, however large; requests without a body need nothing."""
        return size == 0 or self.held_bytes == 0 or self.held_bytes + size <= self._max_bytes - leave_bytes

    @property
    def cluster_share_bytes(self) -> int:
        """Reserved for calls within the cluster: no load from clients stops heartbeats."""
        return self._max_bytes // 8


class HeldBody:
    """The share of one request."""

    def __init__(self, budget: BodyBudget, leave_bytes: int) -> None:
        self._budget = budget
        self._leave_bytes = leave_bytes
        self._size = 0

    def take(self, size: int) -> None:
        """Before the body is read."""
        if not self._budget.fits(size, self._leave_bytes):
            raise Overloaded("the server holds as many bytes of request bodies as it takes", retry_after_s=1)
        self._resize(size)

    def read(self, size: int) -> None:
        """Return the part of the reservation that the body did not need."""
        self._resize(size)

    def release(self) -> None:
        self._resize(0)

    def _resize(self, size: int) -> None:
        self._budget.held_bytes += size - self._size
        self._size = size
