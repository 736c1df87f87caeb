"""Fetches, on the event loop: from memory when it is there, else the file is read on a thread."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import NamedTuple

from broker.metrics import Metrics
from broker.replica import Replica
from broker.storage.entry import Entry
from broker.waiting import Waiting


class Fetched(NamedTuple):
    """Nothing when it is the end. Both offsets are what the replica knew when it was done."""

    entries: Sequence[Entry]
    start_offset: int
    end_offset: int


class Fetching:
    def __init__(self, pool: Executor, waiting: Waiting, metrics: Metrics) -> None:
        self.pool = pool
        self._waiting = waiting
        self._metrics = metrics

    async def batches(self, replica: Replica, offset: int, max_bytes: int, wait_ms: int) -> Fetched:
        """Whole batches from the one on that holds `offset`; waits at the end."""
        if not replica.has(offset) and wait_ms:
            await self._waiting.wait([(replica.waiters, offset)], wait_ms / 1000)
        entries: Sequence[Entry] = ()
        if replica.has(offset):
            entries = replica.recent_batches(offset, max_bytes)
            if not entries:
                loop = asyncio.get_running_loop()
                entries = await loop.run_in_executor(self.pool, replica.stored_batches, offset, max_bytes)
            self._metrics.fetches.inc()
            self._metrics.fetched_bytes.inc(sum([len(entry.body) for entry in entries]))
        view = replica.view
        return Fetched(entries, view.start_offset, view.end_offset)

    async def messages(self, replica: Replica, offset: int, limit: int) -> bytes | None:
        """At most `limit` messages of one batch; None at the end."""
        if not replica.has(offset):
            return None
        found = replica.cached_messages(offset, limit)
        if found is None:
            found = await asyncio.get_running_loop().run_in_executor(self.pool, replica.fetch, offset, limit)
        if found is not None:
            self._metrics.fetches.inc()
            self._metrics.fetched_bytes.inc(len(found))
        return found
