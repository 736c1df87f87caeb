"""The event loop on which the coroutines of async handlers run: one for all of a worker's threads."""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Self

from myqueue.message import Message

logger = logging.getLogger("myqueue")

CANCEL_S = 2.0  # for coroutines to end once they are cancelled


class EventLoopThread:
    """Started on first use; leaving the `with` block cancels what still runs."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def runs(self, handle: Callable[[Message], Any]) -> Callable[[Message], object]:
        """The async handler as an ordinary one, which waits for the coroutine."""
        loop = self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=_run, args=(loop,), name="myqueue-worker-loop", daemon=True)
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
        asyncio.run_coroutine_threadsafe(_end(self._loop), self._loop)
        self._thread.join(CANCEL_S)
        if self._thread.is_alive():
            logger.warning("a handler blocks its event loop, or does not end when it is cancelled: it is left behind")


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


async def _end(loop: asyncio.AbstractEventLoop) -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    loop.stop()
