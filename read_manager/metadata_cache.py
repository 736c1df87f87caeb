"""Metadata cache: topic records for the async routes, read in a thread and kept for a second.

While neither PostgreSQL nor the write manager can answer, the last ones are kept on: brokers know best whether a
partition still exists, and messages go on being read.
"""

import asyncio
import contextvars
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from db.standby import STANDBY_CONNECTIONS
from myqueue.protocol.errors import PartitionNotFound, Unavailable
from myqueue.protocol.internal import PartitionRecord, TopicRecord
from myqueue.protocol.token import Token
from read_manager.metadata import Metadata

R = TypeVar("R")

KEPT_S = 1.0
SHOWN_KEPT_S = 0.1  # where the record itself is the answer
KEPT_TOPICS = 4096
THREADS = 4 * STANDBY_CONNECTIONS  # some wait for the write manager and hold no connection


@dataclass(frozen=True, slots=True)
class _Kept:
    record: TopicRecord
    read_s: float
    token: Token | None  # it was read with this token: it serves that one and older ones


class MetadataCache:
    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="metadata")
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._in_flight: dict[tuple[str, Token | None], asyncio.Task[TopicRecord]] = {}

    async def topic(
        self,
        name: str,
        token: Token | None = None,
        *,
        fresh: bool = False,
        kept_s: float | None = None,
        or_kept: bool = False,
    ) -> TopicRecord:
        """`fresh`: the kept record has proved wrong. Concurrent calls for the same record share one read.

        `or_kept`: if nothing can answer, the kept one will do whatever the token is. That is for the way to messages:
        the brokers themselves know whether the partition still exists.
        """
        try:
            return await self._topic(name, token, fresh=fresh, kept_s=kept_s)
        except Unavailable:
            kept = self._kept.get(name)
            if kept is None or not (or_kept or (not fresh and _has_seen(kept, token))):
                raise
            return kept.record  # however old: nothing that answers knows better

    async def _topic(self, name: str, token: Token | None, *, fresh: bool, kept_s: float | None) -> TopicRecord:
        kept = self._kept.get(name)
        since_s = asyncio.get_running_loop().time() - (KEPT_S if kept_s is None else kept_s)
        if kept is not None and not fresh and _serves(kept, token, since_s):
            return kept.record
        reading = self._in_flight.get((name, token))
        if reading is None:
            reading = self._in_flight[name, token] = asyncio.create_task(self._read_topic(name, token))
            reading.add_done_callback(lambda _: self._in_flight.pop((name, token)))
        return await asyncio.shield(reading)

    async def _read_topic(self, name: str, token: Token | None) -> TopicRecord:
        began_s = asyncio.get_running_loop().time()
        try:
            record = await self.read(lambda: self._metadata.topic(name, token))
        except Unavailable:
            raise
        except BaseException:
            self._kept.pop(name, None)
            raise
        self._kept[name] = _Kept(record, began_s, token)
        self._kept.move_to_end(name)
        while len(self._kept) > KEPT_TOPICS:
            self._kept.popitem(last=False)
        return record

    async def read(self, job: Callable[[], R]) -> R:
        """Run a database read in a thread, with the request's context."""
        context = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(self._pool, context.run, job)

    def start(self) -> None:
        """The pool starts its threads with the first read."""

    def stop(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def _serves(kept: _Kept, token: Token | None, since_s: float) -> bool:
    return kept.read_s >= since_s and _has_seen(kept, token)


def _has_seen(kept: _Kept, token: Token | None) -> bool:
    if token is None:
        return True
    # Positions of different timelines do not compare.
    return kept.token is not None and token.timeline == kept.token.timeline and token.position <= kept.token.position


def partition_of(topic: TopicRecord, partition_id: int) -> PartitionRecord:
    if partition_id >= len(topic["partitions"]):
        raise PartitionNotFound()
    return topic["partitions"][partition_id]
