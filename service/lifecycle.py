"""Start and stop of a process: parts start in order and stop in reverse, listeners first of all.

Stopping twice, or without a start, is fine.
"""

import asyncio
import gc
import signal
from collections.abc import Sequence
from typing import Protocol

import uvloop

from service.listener import Listener
from service.logs import Log

# Allocations between collections of the youngest objects, and how many of those come before an older generation's turn.
# A request makes hundreds of objects and few cycles: at Python's 700 the collector took a quarter of a broker's time.
# It counts objects, not bytes: nothing that holds a body may be in a cycle (`error_encoding.forget_frames`).
_COLLECTOR = (20_000, 20, 100)


class Part(Protocol):
    def start(self) -> None: ...

    def stop(self) -> None: ...


class Process:
    """Listeners open before the parts start, so that /healthz answers while a part still waits for its peers; those
    that open late, when all parts have started."""

    def __init__(self, log: Log, *, drain_timeout_s: float) -> None:
        self._log = log
        self._drain_timeout_s = drain_timeout_s
        self._parts: Sequence[Part] = ()
        self._listeners: Sequence[Listener] = ()

    def run(self, build: "Build") -> None:
        uvloop.run(self._run(build))

    async def _run(self, build: "Build") -> None:
        loop = asyncio.get_running_loop()
        stopping = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopping.set)
        self._listeners, self._parts = build()
        _rarely_collect()
        serving = [listener.start() for listener in self._listeners]
        starting = asyncio.create_task(self._start_parts())
        wait_for_stop = asyncio.create_task(stopping.wait())
        done, _ = await asyncio.wait({*serving, wait_for_stop, starting}, return_when=asyncio.FIRST_COMPLETED)
        if starting in done and starting.exception() is None:
            for listener in self._listeners:
                listener.open()
            done, _ = await asyncio.wait({*serving, wait_for_stop}, return_when=asyncio.FIRST_COMPLETED)
        self._log.info("stopping")
        failures = [task.exception() for task in done if task is not wait_for_stop]
        starting.cancel()  # the part that is starting is stopped; those after it must not start then
        failures += await self._stop()
        if failures:
            raise SystemExit(f"stopped by a failure: {failures[0] or 'a listener ended'}")
        self._log.info("stopped")

    async def _start_parts(self) -> None:
        for part in self._parts:
            await asyncio.to_thread(part.start)
        self._log.info("started")

    async def _stop(self) -> list[BaseException | None]:
        """Every part, whatever becomes of the others: another process may wait for what one of them holds."""
        failures: list[BaseException | None] = []
        drained = await asyncio.gather(
            *(listener.stop(self._drain_timeout_s) for listener in self._listeners), return_exceptions=True
        )
        failures += [each for each in drained if isinstance(each, BaseException)]
        if False in drained:
            self._log.warning("requests were still in flight when the process stopped")
        for part in reversed(self._parts):
            try:
                await asyncio.to_thread(part.stop)
            except Exception as error:  # noqa: BLE001 the process exits with it
                self._log.exception("a part did not stop", part=type(part).__name__)
                failures.append(error)
        return failures


class Build(Protocol):
    """Called on the running loop: makes what needs one."""

    def __call__(self) -> tuple[Sequence[Listener], Sequence[Part]]: ...


def _rarely_collect() -> None:
    """Modules and parts live as long as the process: the collector need not look at them."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTOR)
