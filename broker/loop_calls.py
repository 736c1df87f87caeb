"""Calls from other threads into the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from myqueue.protocol.errors import Unavailable

T = TypeVar("T")

CALL_TIMEOUT_S = 5.0


def call_on_loop(loop: asyncio.AbstractEventLoop, action: Callable[[], T]) -> T:
    """Run a function on the loop and return its result.

    One that has not begun when the time is up never does: what its caller gave up must not happen after something else
    was answered, such as a command of a newer write manager.
    """
    future: Future[T] = Future()

    def run() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(action())
        except BaseException as error:  # noqa: BLE001 the caller gets it
            future.set_exception(error)

    loop.call_soon_threadsafe(run)
    try:
        return future.result(CALL_TIMEOUT_S)
    except TimeoutError:
        if future.cancel():
            raise Unavailable("the broker is too busy", outcome="not_written") from None
    try:
        return future.result(CALL_TIMEOUT_S)  # it has begun, so it ends soon
    except TimeoutError:
        raise Unavailable("the broker is too busy", outcome="unknown") from None
