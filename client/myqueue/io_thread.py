"""The background thread of all consumers of one cluster in this process: an event loop that runs their requests.

Fetches ahead, renewals of leases and commits are coroutines and callbacks of this loop, so that a thousand consumers
need one thread. Nothing that runs in it may block.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar, TypeVarTuple

from myqueue.fetch_connection import FetchConnection
from myqueue.process_shared import ProcessShared

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

MAX_CALLS = 32  # at a time, of all consumers, beside fetches and renewals
_MAX_IDLE = 8
_NAME_LOOKUPS = 2


class IoThread:
    def __init__(self, url: str) -> None:
        self.url = url
        self.loop = asyncio.SelectorEventLoop()
        self._lookups = ThreadPoolExecutor(_NAME_LOOKUPS, "myqueue-names")  # started by the first look-up
        self.loop.set_default_executor(self._lookups)
        self._calls = asyncio.Semaphore(MAX_CALLS)
        self._idle: list[FetchConnection] = []
        self._thread = threading.Thread(target=self._run, name="myqueue-io", daemon=True)
        self._thread.start()

    # From any thread

    def call_soon(self, callback: Callable[[*Ts], object], *arguments: *Ts) -> None:
        self.loop.call_soon_threadsafe(callback, *arguments)

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> "Future[T]":
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Waits for its result."""
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("a callback of the background thread must not wait for the cluster")
        future = self.submit(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # after a KeyboardInterrupt, say
            raise

    def close(self) -> None:
        """Does not wait for the end of the thread: it may be called in an event loop."""
        self.call_soon(self.loop.stop)

    # In the thread

    async def with_connection(self, use: Callable[[FetchConnection], Coroutine[Any, Any, T]]) -> T:
        """Lends a connection that no other request uses."""
        async with self._calls:
            connection = self._idle.pop() if self._idle else FetchConnection(self.url)
            try:
                return await use(connection)
            finally:
                if len(self._idle) < _MAX_IDLE:
                    self._idle.append(connection)
                else:
                    connection.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            for task in (tasks := asyncio.all_tasks(self.loop)):
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            for connection in self._idle:
                connection.close()
            self._lookups.shutdown(wait=False)
            self.loop.close()


io_threads: ProcessShared[str, IoThread] = ProcessShared(IoThread, IoThread.close)
