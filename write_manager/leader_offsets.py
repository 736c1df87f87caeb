"""Current offsets from the leaders of a topic's partitions, and the offsets at which new consumers start."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from myqueue.protocol import internal
from myqueue.protocol.errors import NoLeader, PastEnd
from myqueue.protocol.message_calls import (
    Offsets,
    OffsetsAnswer,
    OffsetsRequest,
)
from myqueue.protocol.models import FromOffset, FromTimestamp, Start
from service.async_calls import AsyncCaller
from service.candidate_calls import ask_candidates, ask_until_answered
from write_manager.brokers import Brokers
from write_manager.metadata_cache import CachedTopic


class LeaderOffsets:
    def __init__(self, caller: AsyncCaller, brokers: Brokers, *, timeout_s: float) -> None:
        self._caller = caller
        self._brokers = brokers
        self._timeout_s = timeout_s

    async def fetch(
        self, topic: CachedTopic, partition_ids: Iterable[int], timestamp: int | None = None
    ) -> dict[int, Offsets]:
        """Offsets from the leaders, the presumed one first; also stored in the topic's cached partitions.

        Partitions for which no leader answered are missing.
        """

        async def fetch(endpoint: str, ids: list[int]) -> dict[int, Offsets]:
            request: OffsetsRequest = {
                "partitions": [{"topic_id": str(topic.topic_id), "partition_id": p} for p in ids],
                "timestamp": timestamp,
            }
            answer: OffsetsAnswer = await self._caller.json(
                internal.OFFSETS.method, endpoint + internal.OFFSETS.path, request, timeout_s=self._timeout_s
            )
            return {offsets["partition_id"]: offsets for offsets in answer["offsets"] if offsets is not None}

        found = await ask_candidates(
            {
                p: self._brokers.endpoints(topic.partitions[p].leader, topic.partitions[p].replicas)
                for p in partition_ids
            },
            fetch,
        )
        for partition_id, offsets in found.items():
            partition = topic.partitions[partition_id]
            partition.learn_bounds(offsets["beginning_offset"], offsets["end_offset"])
            if offsets["term"] >= partition.term:
                partition.leader, partition.term = offsets["leader"], offsets["term"]
        return found

    async def require(
        self, topic: CachedTopic, partition_ids: Iterable[int], timestamp: int | None = None
    ) -> dict[int, Offsets]:
        """Offsets of all of them. Waits a little for leaders that are being elected."""
        wanted = sorted(set(partition_ids))
        found = await ask_until_answered(wanted, lambda ids: self.fetch(topic, ids, timestamp), self._timeout_s)
        for partition_id in wanted:
            if partition_id not in found:
                raise NoLeader(f"partition {partition_id} has no leader right now", outcome="not_written")
        return found

    async def resolve(self, topic: CachedTopic, partition_ids: Iterable[int], start: Start) -> dict[int, int]:
        """The offset of each partition that `start` stands for."""
        timestamp = start.timestamp if isinstance(start, FromTimestamp) else None
        return resolve_start(start, await self.require(topic, partition_ids, timestamp))


def resolve_start(start: Start, found: Mapping[int, Offsets]) -> dict[int, int]:
    if isinstance(start, FromOffset):
        for partition_id, offsets in found.items():
            if start.offset > offsets["end_offset"]:
                raise PastEnd(
                    f"offset {start.offset} is past the end, {offsets['end_offset']}",
                    details={"partition_id": partition_id, "end_offset": offsets["end_offset"]},
                )
        return {p: max(start.offset, offsets["beginning_offset"]) for p, offsets in found.items()}
    if isinstance(start, FromTimestamp):
        return {p: o["end_offset"] if o["offset_at"] is None else o["offset_at"] for p, o in found.items()}
    if start == "earliest":
        return {p: o["beginning_offset"] for p, o in found.items()}
    return {p: o["end_offset"] for p, o in found.items()}


_Query = tuple[UUID, tuple[int, ...], int | None]  # topic, partitions, timestamp
_Task = asyncio.Task[dict[int, Offsets]]


class StartOffsets:
    """One call to the leaders for all equal queries that wait at the same time. Runs on the event loop.

    A query that arrives while a call is in flight waits for the next call: an answer is never older than its query.
    """

    def __init__(self, offsets: LeaderOffsets) -> None:
        self._offsets = offsets
        self._in_flight: dict[_Query, _Task] = {}
        self._next: dict[_Query, _Task] = {}

    async def resolve(self, topic: CachedTopic, partition_ids: Sequence[int], start: Start) -> dict[int, int]:
        """As LeaderOffsets.resolve."""
        query = topic.topic_id, tuple(partition_ids), start.timestamp if isinstance(start, FromTimestamp) else None
        task = self._next.get(query)
        if task is None:
            task = asyncio.create_task(self._fetch(query, topic, self._in_flight.get(query)))
            self._next[query] = task
        return resolve_start(start, await asyncio.shield(task))

    async def _fetch(self, query: _Query, topic: CachedTopic, before: _Task | None) -> dict[int, Offsets]:
        if before is not None:
            await asyncio.wait([before])
        task = self._in_flight[query] = self._next.pop(query)
        _, partition_ids, timestamp = query
        try:
            return await self._offsets.require(topic, partition_ids, timestamp)
        finally:
            if self._in_flight.get(query) is task:
                del self._in_flight[query]
