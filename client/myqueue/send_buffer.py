"""The bytes of a producer that wait to be acknowledged, in all topics, and the lock that guards them.

One lock for all of a producer's topics: a message that completes anywhere makes room for all of them.
"""

import threading
from collections.abc import Callable


class SendBuffer:
    """`lock` guards this and the senders that share it; it is never held during IO."""

    __slots__ = ("_listeners", "busy", "changed", "limit", "lock", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.busy = 0  # threads that send for the producer
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)  # a message completed, or the producer takes no more
        self._listeners: list[Callable[[], None]] = []

    def fits(self, size: int) -> bool:
        """One message always fits into an empty buffer."""
        return self.used == 0 or self.used + size <= self.limit

    def notify(self) -> None:
        """To be called with the lock held, after every change."""
        self.changed.notify_all()
        if self._listeners:
            listeners, self._listeners = self._listeners, []
            for listener in listeners:
                listener()

    def on_change(self, listener: Callable[[], None]) -> None:
        """Calls it once, at the next change, with the lock held. To be called with the lock held."""
        self._listeners.append(listener)
