"""Reports to the write manager which claimed messages were sent to clients: in groups, never a call for each message.

A report that does not get through is repeated while it can still help. One that is lost for good means that its
messages are delivered again.
"""

import asyncio
from collections import deque
from dataclasses import dataclass

from myqueue.protocol.errors import MyQueueError
from myqueue.protocol.internal import Delivered
from read_manager.write_manager_calls import WriteManagerAsks
from service.logs import Log

GROUP_S = 0.25
GROUP = 64  # as many are reported at once, without waiting for more
MAX_GROUP = 4096
FLUSH_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class _Delivery:
    report: Delivered
    useful_until_s: float  # then the claim has expired at the write manager too


class Deliveries:
    """On the event loop, but for `stop`."""

    def __init__(self, write_manager: WriteManagerAsks, loop: asyncio.AbstractEventLoop, log: Log) -> None:
        self._write_manager = write_manager
        self._loop = loop
        self._log = log
        self._waiting: deque[_Delivery] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._reporting: asyncio.Task[None] | None = None

    def add(self, delivered: Delivered, lifetime_s: float) -> None:
        self._waiting.append(_Delivery(delivered, self._loop.time() + lifetime_s))
        if len(self._waiting) >= GROUP:
            self._report_now()
        elif self._timer is None:
            self._timer = self._loop.call_later(GROUP_S, self._report_now)

    def _report_now(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._reporting is None or self._reporting.done():
            self._reporting = self._loop.create_task(self._report())

    async def _report(self) -> None:
        """Until fewer than a group are left; they wait for more."""
        while self._waiting:
            now_s = self._loop.time()
            group = [self._waiting.popleft() for _ in range(min(len(self._waiting), MAX_GROUP))]
            group = [delivery for delivery in group if delivery.useful_until_s > now_s]
            if not group:
                continue
            try:
                await self._write_manager.deliver([delivery.report for delivery in group])
            except MyQueueError as error:
                self._log.info("deliveries not reported yet", deliveries=len(group), why=error.message)
                self._waiting.extendleft(reversed(group))
                break
            if len(self._waiting) < GROUP:
                break
        if self._waiting and self._timer is None:
            self._timer = self._loop.call_later(GROUP_S, self._report_now)

    def start(self) -> None:
        """Reports begin with the first delivery."""

    def stop(self) -> None:
        """What was delivered last is reported too, from the thread that stops the process."""
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
