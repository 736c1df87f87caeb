"""Reports to the write manager which claimed messages were sent to clients: many deliveries in one call.

A report that fails is repeated until the claims expire. The messages of a lost report are delivered again.
"""

import asyncio
from collections import deque
from dataclasses import dataclass

from myqueue.protocol.errors import MyQueueError
from myqueue.protocol.internal import Delivered
from read_manager.write_manager_client import AsyncWriteManagerClient
from service.logs import Log

REPORT_INTERVAL_S = 0.25
REPORT_NOW = 16  # as many are reported without waiting for more: claims in flight are stored with every group
MAX_REPORT = 4096
FLUSH_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class _Delivery:
    report: Delivered
    useful_until_s: float  # by then the claim has expired at the write manager


class DeliveryReporter:
    """Used on the event loop, but for `stop`."""

    def __init__(self, write_manager: AsyncWriteManagerClient, loop: asyncio.AbstractEventLoop, log: Log) -> None:
        self._write_manager = write_manager
        self._loop = loop
        self._log = log
        self._waiting: deque[_Delivery] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._reporting: asyncio.Task[None] | None = None

    def add(self, delivered: Delivered, lifetime_s: float) -> None:
        self._waiting.append(_Delivery(delivered, self._loop.time() + lifetime_s))
        if len(self._waiting) >= REPORT_NOW:
            self._report_now()
        elif self._timer is None:
            self._timer = self._loop.call_later(REPORT_INTERVAL_S, self._report_now)

    def _report_now(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._reporting is None or self._reporting.done():
            self._reporting = self._loop.create_task(self._report())

    async def _report(self) -> None:
        """Runs until fewer than REPORT_NOW are left; they wait for more."""
        while self._waiting:
            now_s = self._loop.time()
            reported = [self._waiting.popleft() for _ in range(min(len(self._waiting), MAX_REPORT))]
            reported = [delivery for delivery in reported if delivery.useful_until_s > now_s]
            if not reported:
                continue
            try:
                await self._write_manager.deliver([delivery.report for delivery in reported])
            except MyQueueError as error:
                self._log.info("deliveries not reported yet", deliveries=len(reported), why=error.message)
                self._waiting.extendleft(reversed(reported))
                break
            if len(self._waiting) < REPORT_NOW:
                break
        if self._waiting and self._timer is None:
            self._timer = self._loop.call_later(REPORT_INTERVAL_S, self._report_now)

    def start(self) -> None:
        """Reports begin with the first delivery."""

    def stop(self) -> None:
        """Flushes the last deliveries. Called from the thread that stops the process."""
        try:
            asyncio.run_coroutine_threadsafe(self._flush(), self._loop).result(2 * FLUSH_TIMEOUT_S)
        except (TimeoutError, MyQueueError) as error:
            self._log.warning("deliveries not reported: their messages come again", why=str(error))

    async def _flush(self) -> None:
        async with asyncio.timeout(FLUSH_TIMEOUT_S):
            if self._reporting is not None:
                await self._reporting
            if self._waiting:
                await self._report()
