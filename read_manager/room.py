"""Memory for answers: who asks for much waits until there is room, instead of everybody running out of it."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Room:
    def __init__(self, limit_bytes: int) -> None:
        self._free = self._limit = limit_bytes
        self._line: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def taken(self, size: int) -> AsyncIterator[None]:
        """In turn. More than there is altogether counts as all of it."""
        size = min(size, self._limit)
        if self._line or size > self._free:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._line.append((size, turn))
            try:
                await turn
            except BaseException:
                self._give(0 if turn.cancelled() else size)
                raise
        else:
            self._free -= size
        try:
            yield
        finally:
            self._give(size)

    def _give(self, size: int) -> None:
        self._free += size
        while self._line:
            wanted, turn = self._line[0]
            if not turn.cancelled():
                if wanted > self._free:
                    return
                self._free -= wanted
                turn.set_result(None)
            self._line.popleft()
