"""Long polls: requests that wait on the event loop for a partition to grow; none of them holds a thread."""

import asyncio
from collections.abc import Iterable

from myqueue.protocol.errors import Overloaded

_WOKEN_AT_ONCE = 32  # the rest in later turns of the loop, so that appends run in between

Woken = asyncio.Future[None]


class OffsetWaiters:
    """Of one partition: each waits until the end lies beyond its offset."""

    def __init__(self) -> None:
        self._offsets: dict[Woken, int] = {}
        self._lowest = 0

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, woken: Woken, offset: int) -> None:
        self._lowest = min(self._lowest, offset) if self._offsets else offset
        self._offsets[woken] = offset

    def remove(self, woken: Woken) -> None:
        self._offsets.pop(woken, None)

    def grown(self, end_offset: int) -> None:
        if self._offsets and end_offset > self._lowest:
            due = [woken for woken, offset in self._offsets.items() if offset < end_offset]
            for woken in due:
                del self._offsets[woken]
            self._lowest = min(self._offsets.values(), default=0)
            _wake(due)

    def release(self) -> None:
        """The partition is closed."""
        due = list(self._offsets)
        self._offsets.clear()
        _wake(due)


def _wake(due: list[Woken]) -> None:
    for woken in due[:_WOKEN_AT_ONCE]:
        if not woken.done():
            woken.set_result(None)
    if len(due) > _WOKEN_AT_ONCE:
        asyncio.get_running_loop().call_soon(_wake, due[_WOKEN_AT_ONCE:])


class LongPolls:
    """All waiting requests of the broker: a bounded number, and all are woken when it stops."""

    def __init__(self, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self._all: set[Woken] = set()
        self._stopped = False

    def __len__(self) -> int:
        return len(self._all)

    async def wait(self, places: Iterable[tuple[OffsetWaiters, int]], timeout_s: float) -> None:
        """Until one of the partitions has grown beyond its offset, or the time is up; the caller checks which."""
        if self._stopped or timeout_s <= 0:
            return
        if len(self._all) >= self._max_waiting:
            raise Overloaded("too many requests wait for messages", retry_after_s=1)
        loop = asyncio.get_running_loop()
        woken: Woken = loop.create_future()
        joined = list(places)
        for waiters, offset in joined:
            waiters.add(woken, offset)
        timer = loop.call_later(timeout_s, _time_out, woken)
        self._all.add(woken)
        try:
            await woken
        finally:
            timer.cancel()
            self._all.discard(woken)
            for waiters, _ in joined:
                waiters.remove(woken)

    def stop(self) -> None:
        self._stopped = True
        _wake(list(self._all))


def _time_out(woken: Woken) -> None:
    if not woken.done():
        woken.set_result(None)
