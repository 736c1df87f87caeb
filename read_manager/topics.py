"""Topic records for the routes on the event loop: read in a thread, kept for a moment."""

import asyncio
import contextvars
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from db.standby import STANDBY_CONNECTIONS
from myqueue.protocol.errors import PartitionNotFound
from myqueue.protocol.internal import PartitionRecord, TopicRecord
from myqueue.protocol.token import Token
from read_manager.catalog import Catalog

R = TypeVar("R")

KEPT_S = 1.0
KEPT_TOPICS = 4096
THREADS = 4 * STANDBY_CONNECTIONS  # some wait for the write manager, without a connection


@dataclass(frozen=True, slots=True)
class _Kept:
    record: TopicRecord
    read_s: float
    token: Token | None  # what it was read with: it is good for that token and older ones


class Topics:
    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="catalog")
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._under_way: dict[tuple[str, Token | None], asyncio.Task[TopicRecord]] = {}

    async def topic(self, name: str, token: Token | None = None, *, fresh: bool = False) -> TopicRecord:
        """`fresh`: what is kept has proved wrong. Many that ask at the same time share one look."""
        kept = self._kept.get(name)
        if kept is not None and not fresh and _serves(kept, token, asyncio.get_running_loop().time()):
            return kept.record
        looking = self._under_way.get((name, token))
        if looking is None:
            looking = self._under_way[name, token] = asyncio.create_task(self._look(name, token))
            looking.add_done_callback(lambda _: self._under_way.pop((name, token)))
        return await asyncio.shield(looking)

    async def _look(self, name: str, token: Token | None) -> TopicRecord:
        began_s = asyncio.get_running_loop().time()
        try:
            record = await self.read(lambda: self._catalog.topic(name, token))
        except BaseException:
            self._kept.pop(name, None)
            raise
        self._kept[name] = _Kept(record, began_s, token)
        self._kept.move_to_end(name)
        while len(self._kept) > KEPT_TOPICS:
            self._kept.popitem(last=False)
        return record

    async def read(self, job: Callable[[], R]) -> R:
        """Any look at the database, in a thread that knows the request."""
        context = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(self._pool, context.run, job)

    def start(self) -> None:
        """Threads come with the first look."""

    def stop(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def _serves(kept: _Kept, token: Token | None, now_s: float) -> bool:
    if now_s - kept.read_s > KEPT_S:
        return False
    return token is None or (kept.token is not None and token <= kept.token)


def partition_of(topic: TopicRecord, partition_id: int) -> PartitionRecord:
    if partition_id >= len(topic["partitions"]):
        raise PartitionNotFound()
    return topic["partitions"][partition_id]
