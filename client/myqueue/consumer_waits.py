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

T = TypeVar("T")

_LONGEST_WAIT_S = 3600.0


def deadline_of(timeout: float | None) -> float | None:
    """None for a timeout of 0: such a poll asks the cluster instead of waiting."""
    check_timeout(timeout)
    if timeout is None:
        return math.inf
    return time.monotonic() + timeout if timeout > 0 else None


class Waits(Protocol):
    in_background: bool  # whether the background thread receives all messages

    def reader(self) -> object:
        """Who reads: the thread or the task that calls this."""

    async def run(self, io: IoThread, coroutine: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine of the background thread."""

    async def wait_for(
        self,
        fetcher: Fetcher,
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
        fetcher: Fetcher,
        changed: ChangeCondition,
        condition: Callable[[], bool],
        deadline: float,
    ) -> bool:
        """The thread fetches while it waits."""
        with changed:
            return fetcher.wait_for(condition, deadline)


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
        fetcher: Fetcher,
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
                    if fetcher.is_stopping:
                        return False
                    if condition():
                        return True
                    if (error := fetcher.errors.overdue(now)) is not None:
                        raise error
                    if now >= deadline:
                        return False
                    overdue_at = fetcher.errors.next_overdue()
                    until = deadline if overdue_at is None else min(deadline, overdue_at)
                    woken.clear()
                    changed.watchers.add(woken.wake)
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(_LONGEST_WAIT_S, until - now)):
                        await woken.event.wait()
        finally:
            with changed:
                changed.watchers.discard(woken.wake)


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
