"""Objects that all clients of a process share, one for each key: connections and the threads that use them.

Threads do not survive a fork. A child process begins with nothing shared, and a client that was made by its parent
finds out by `process_id`.
"""

import os
import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class ForkListener(Protocol):
    def forget_parent(self) -> None:
        """In a child process, after `process_id` has changed and the shared objects are gone."""


_process_id = os.getpid()
_shares: "list[ProcessShared[object, object]]" = []
_listeners: "weakref.WeakSet[ForkListener]" = weakref.WeakSet()


def process_id() -> int:
    """Of this process, without a system call."""
    return _process_id


def tell_after_fork(listener: ForkListener) -> None:
    """As long as it exists."""
    _listeners.add(listener)


class ProcessShared(Generic[K, T]):
    """Counts the users of each object, and closes it when the last one has released it."""

    def __init__(self, make: Callable[[K], T], close: Callable[[T], None]) -> None:
        self._make = make
        self._close = close
        self._lock = threading.Lock()
        self._held: dict[K, tuple[T, int]] = {}
        _shares.append(self)  # type: ignore[arg-type] # only to be emptied

    def acquire(self, key: K) -> T:
        with self._lock:
            shared, users = self._held.get(key) or (self._make(key), 0)
            self._held[key] = shared, users + 1
            return shared

    def release(self, key: K, shared: T) -> None:
        """Does nothing if the object is one of the parent process."""
        with self._lock:
            held, users = self._held.get(key, (None, 0))
            if held is not shared:
                return
            if users > 1:
                self._held[key] = shared, users - 1
                return
            del self._held[key]
        self._close(shared)

    def forget_parent(self) -> None:
        """In a child process: the lock may have been held by a thread that is not here."""
        self._lock = threading.Lock()
        self._held = {}


def _after_fork_in_child() -> None:
    global _process_id
    _process_id = os.getpid()
    for shared in _shares:
        shared.forget_parent()
    for listener in list(_listeners):
        listener.forget_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
