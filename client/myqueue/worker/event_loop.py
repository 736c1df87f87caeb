"""The event loop on which the coroutines of async handlers run: one for all of a worker's threads."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Self

from myqueue.message import Message


class EventLoopThread:
    """Started on first use; leaving the `with` block cancels what still runs."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def runs(self, handle: Callable[[Message], Any]) -> Callable[[Message], object]:
        """The async handler as an ordinary one, which waits for the coroutine."""
        loop = self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=loop.run_forever, name="myqueue-worker-loop", daemon=True)
        self._thread.start()

        async def run(message: Message) -> BaseException | None:
            try:
                awaitable: Awaitable[object] = handle(message)
                await awaitable
            except (SystemExit, KeyboardInterrupt) as error:
                return error  # raised here, it would end the loop
            return None

        def call(message: Message) -> None:
            if (error := asyncio.run_coroutine_threadsafe(run(message), loop).result()) is not None:
                raise error

        return call

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._loop is None or self._thread is None:
            return
        asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
