"""Backpressure on request bodies: one memory budget for all listeners and routes of a process."""

from myqueue.protocol.errors import Overloaded


class BodyBudget:
    """Used on one event loop."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.held_bytes = 0

    def take(self, size: int, leave_bytes: int) -> None:
        """Before the body is read. One body always fits, however large."""
        if self.held_bytes and self.held_bytes + size > self._max_bytes - leave_bytes:
            raise Overloaded("the server holds as many bytes of request bodies as it takes", retry_after_s=1)
        self.held_bytes += size

    def give_back(self, size: int) -> None:
        self.held_bytes -= size

    @property
    def cluster_share_bytes(self) -> int:
        """Reserved for calls within the cluster: no load from clients stops heartbeats."""
        return self._max_bytes // 8
