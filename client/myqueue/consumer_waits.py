"""How a consumer waits for messages and for the cluster: in its own thread, or in an event loop.

What it does between two waits is written once, as coroutines. Those of a blocking consumer never suspend.
"""

import asyncio
import math
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from myqueue.argument_checks import check_timeout
from myqueue.fetcher import ChangeCondition, Fetcher
from myqueue.io_thread import IoThread
from myqueue.protocol.errors import MyQueueError

T = TypeVar("T")

_LONGEST_WAIT_S = 3600.0


def deadline_of(timeout: float | None) -> float | None:
    """None for a timeout of 0: such a poll asks the cluster instead of waiting."""
    check_timeout(timeout)
    if timeout is None:
        return math.inf
    return time.monotonic() + timeout if timeout > 0 else None


class Waited(Protocol):
    """What an application waits for: messages of one topic or of several, whose changes one condition notifies."""

    @property
    def fetcher(self) -> Fetcher | None:
        """The only one there is, which an application's thread may drive; None before the first read."""

    @property
    def is_stopping(self) -> bool: ...

    def overdue(self, now: float) -> MyQueueError | None:
        """An error to raise now."""

    def next_overdue(self) -> float | None:
        """When the next error becomes overdue."""


class Waits(Protocol):
    in_background: bool  # whether the background thread receives all messages

    def reader(self) -> object:
        """Who reads: the thread or the task that calls this."""

    async def run(self, io: IoThread, coroutine: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine of the background thread."""

    async def wait_for(
        self,
        waited: Waited,
        changed: ChangeCondition,
        condition: Callable[[], bool],
        deadline: float,
    ) -> bool:
        """Whether the condition, checked with the lock held, came true before the deadline and before `stop`."""


class BlockingWaits:
    in_background = False

    def reader(self) -> object:
        return threading.get_ident()

    async def run(self, io: IoThread, coroutine: Coroutine[Any, Any, T]) -> T:
        return io.run(coroutine)

    async def wait_for(
        self,
        waited: Waited,
        changed: ChangeCondition,
        condition: Callable[[], bool],
        deadline: float,
    ) -> bool:
        """The thread fetches while it waits."""
        if waited.fetcher is None:
            return False
        with changed:
            return waited.fetcher.wait_for(condition, deadline)


class NotifiedWaits(BlockingWaits):
    """For several topics: the background thread fetches, and notifies the thread that waits."""

    in_background = True

    async def wait_for(
        self,
        waited: Waited,
        changed: ChangeCondition,
        condition: Callable[[], bool],
        deadline: float,
    ) -> bool:
        with changed:
            while True:
                now = time.monotonic()
                outcome, until = _look(waited, condition, now, deadline)
                if outcome is not None:
                    return outcome
                changed.wait(min(_LONGEST_WAIT_S, until - now))


class BackgroundWaits(BlockingWaits):
    """Of what runs in the background thread itself."""

    async def run(self, io: IoThread, coroutine: Coroutine[Any, Any, T]) -> T:  # noqa: ARG002 # of the protocol
        return await coroutine


def run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that waits by BlockingWaits only."""
    try:
        coroutine.send(None)
    except StopIteration as finished:
        result: T = finished.value
        return result
    coroutine.close()
    raise AssertionError("a blocking consumer must not suspend")


class LoopWaits:
    in_background = True

    def reader(self) -> object:
        return asyncio.current_task()

    async def run(self, io: IoThread, coroutine: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(io.submit(coroutine))

    async def wait_for(
        self,
        waited: Waited,
        changed: ChangeCondition,
        condition: Callable[[], bool],
        deadline: float,
    ) -> bool:
        woken = _Wakening(asyncio.get_running_loop())
        await asyncio.sleep(0)  # also where there is no need to wait: a reader of a backlog leaves others their turn
        try:
            while True:
                with changed:
                    now = time.monotonic()
                    outcome, until = _look(waited, condition, now, deadline)
                    if outcome is not None:
                        return outcome
                    woken.clear()
                    changed.watchers.add(woken.wake)
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(_LONGEST_WAIT_S, until - now)):
                        await woken.event.wait()
        finally:
            with changed:
                changed.watchers.discard(woken.wake)


def _look(waited: Waited, condition: Callable[[], bool], now: float, deadline: float) -> tuple[bool | None, float]:
    """The result of a wait, or None and until when to wait for a change; raises overdue errors. The lock is held."""
    if waited.is_stopping:
        return False, now
    if condition():
        return True, now
    if (error := waited.overdue(now)) is not None:
        raise error
    if now >= deadline:
        return False, now
    overdue_at = waited.next_overdue()
    return None, deadline if overdue_at is None else min(deadline, overdue_at)


class _Wakening:
    """Wakes a coroutine of an event loop, once for any number of notifications."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.event = asyncio.Event()
        self._loop = loop
        self._is_set = False
        self._thread = threading.get_ident()

    def clear(self) -> None:
        self._is_set = False
        self.event.clear()

    def wake(self) -> None:
        """Called with the lock held."""
        if self._is_set:
            return
        self._is_set = True
        if threading.get_ident() == self._thread:
            self.event.set()
        else:
            self._loop.call_soon_threadsafe(self.event.set)
