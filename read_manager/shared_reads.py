"""Reads that event streams share: streams that have come to the same offset are woken together and read the same page,
which is fetched and encoded once for all of them."""

import asyncio
import json
from dataclasses import dataclass
from functools import partial

from myqueue.protocol.internal import TopicRecord
from read_manager.batch_slices import BatchSlice, as_json, run_aside, slice_aside
from read_manager.memory_budget import MemoryBudget
from read_manager.replica_fetch import ReplicaFetcher, fetch_bytes

PAGE_MESSAGES = 500
PAGE_BYTES = 64 << 10  # of keys, values and headers; one message always fits


@dataclass(frozen=True, slots=True)
class EncodedPage:
    """Consecutive messages, each as JSON in one line."""

    first_offset: int
    messages: list[bytes]
    bytes: int

    @property
    def next_offset(self) -> int:
        return self.first_offset + len(self.messages)


class SharedReads:
    def __init__(self, replicas: ReplicaFetcher, memory: MemoryBudget) -> None:
        self._replicas = replicas
        self._memory = memory
        self._in_flight: dict[tuple[str, int, int], asyncio.Task[EncodedPage]] = {}

    def read(self, topic: TopicRecord, partition_id: int, offset: int) -> "asyncio.Task[EncodedPage]":
        """Not to be cancelled: others may wait for it too. Empty when the replica that answers has nothing yet."""
        key = (topic["topic_id"], partition_id, offset)
        reading = self._in_flight.get(key)
        if reading is None:
            reading = self._in_flight[key] = asyncio.create_task(self._read(topic, partition_id, offset))
            reading.add_done_callback(partial(self._ended, key))
        return reading

    def _ended(self, key: tuple[str, int, int], reading: "asyncio.Task[EncodedPage]") -> None:
        del self._in_flight[key]
        if not reading.cancelled():
            reading.exception()  # every stream that waited for it may have gone

    async def _read(self, topic: TopicRecord, partition_id: int, offset: int) -> EncodedPage:
        size = fetch_bytes(PAGE_MESSAGES, PAGE_BYTES)
        async with self._memory.reserved(size):
            fetched = await self._replicas.fetch(topic, partition_id, offset, size)
            slices, _ = await slice_aside(fetched.items, offset, PAGE_MESSAGES, PAGE_BYTES, need_one=True)
            return await run_aside(sum(each.bytes for each in slices), partial(_encoded, offset, slices))


def _encoded(offset: int, slices: list[BatchSlice]) -> EncodedPage:
    messages = [json.dumps(message).encode() for message in as_json(slices)]
    return EncodedPage(offset, messages, sum(map(len, messages)))
