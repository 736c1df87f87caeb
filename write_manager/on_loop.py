"""From the threads that answer Flask's routes to the event loop, where cursors and appends are decided."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class OnLoop:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Waits for the answer in the calling thread; whatever is asked there has a deadline of its own."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
