"""Backpressure by memory: answers reserve their bytes first, and wait in order of arrival while others hold them."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class MemoryBudget:
    def __init__(self, limit_bytes: int) -> None:
        self._free = self._limit = limit_bytes
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def reserved(self, size: int) -> AsyncIterator[None]:
        """First come, first served. A size above the limit counts as the limit."""
        size = min(size, self._limit)
        if self._queue or size > self._free:
            granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._queue.append((size, granted))
            try:
                await granted
            except BaseException:
                self._release(0 if granted.cancelled() else size)
                raise
        else:
            self._free -= size
        try:
            yield
        finally:
            self._release(size)

    def _release(self, size: int) -> None:
        self._free += size
        while self._queue:
            wanted, granted = self._queue[0]
            if not granted.cancelled():
                if wanted > self._free:
                    return
                self._free -= wanted
                granted.set_result(None)
            self._queue.popleft()
