"""The routing of a consumer's topic, fetched in the background thread."""

import asyncio
import time
from copy import copy

from myqueue.async_transport import AsyncTransport
from myqueue.protocol import routes
from myqueue.protocol.errors import MyQueueError
from myqueue.routing import CALL_S, RETRY_EVERY_S, RoutingTable, table_of


class AsyncRouting:
    """Fetched once for all partitions that find the table wrong at the same time."""

    def __init__(self, transport: AsyncTransport, topic: str) -> None:
        self._transport = transport
        self._topic = topic
        self._fetching = asyncio.Lock()
        self._failed: tuple[float, MyQueueError] | None = None  # the last refresh, if it failed, and when
        self._table: RoutingTable | None = None

    async def table(self) -> RoutingTable:
        """One whose grant is valid; raises MyQueueError."""
        table = self._table
        if table is not None and time.monotonic() < table.expires_at:
            return table
        return await self.refreshed(table)

    async def refreshed(self, stale: RoutingTable | None) -> RoutingTable:
        """A table newer than the one that was found wrong, or is about to expire."""
        async with self._fetching:
            if self._table is not None and self._table is not stale:
                return self._table
            # Those who waited for a request that failed do not repeat it at once.
            if self._failed is not None and time.monotonic() < self._failed[0] + RETRY_EVERY_S:
                raise copy(self._failed[1])  # the one who catches it may write into it
            try:
                answer = await self._transport.call(routes.ROUTING, path={"topic": self._topic}, deadline_s=CALL_S)
                self._table = table_of(self._topic, answer.body, stale)
            except MyQueueError as error:
                self._failed = (time.monotonic(), error)
                raise
            self._failed = None
            return self._table
