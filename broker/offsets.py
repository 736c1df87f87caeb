"""Offsets and sizes of partitions, and long polls over several partitions, for the managers.

Only the leader may answer where a partition ends, after a majority has confirmed it; a long poll goes by what this
replica has applied.
"""

import asyncio
import time
from concurrent.futures import Executor
from typing import Annotated
from uuid import UUID

from pydantic import Field

from broker.long_poll import LongPolls, OffsetWaiters
from broker.partitions import Partitions
from broker.replica import StoredSince
from broker.request_values import MAX_ASKED_PARTITIONS, PartitionId, TopicId
from myqueue.protocol import internal
from myqueue.protocol.errors import PartitionNotFound, Unavailable
from myqueue.protocol.limits import MAX_WAIT_MS
from myqueue.protocol.message_calls import (
    Grown,
    Offsets,
)
from myqueue.protocol.models import MAX_OFFSET, Request
from service.http_messages import HttpRequest, HttpResponse
from service.router import Router

_NOT_HELD = -1


class PartitionOffsetsBody(Request):
    topic_id: TopicId
    partition_id: PartitionId
    since: Annotated[int, Field(ge=0, le=MAX_OFFSET)] | None = None


class OffsetsBody(Request):
    partitions: Annotated[list[PartitionOffsetsBody], Field(max_length=MAX_ASKED_PARTITIONS)]
    timestamp: Annotated[int, Field(ge=0, le=MAX_OFFSET)] | None = None


class AwaitedPartition(Request):
    topic_id: TopicId
    partition_id: PartitionId
    offset: Annotated[int, Field(ge=-1, le=MAX_OFFSET)]  # -1: answer its end at once


class WaitBody(Request):
    partitions: Annotated[list[AwaitedPartition], Field(min_length=1, max_length=MAX_ASKED_PARTITIONS)]
    wait_ms: Annotated[int, Field(ge=0)]


class OffsetRoutes:
    def __init__(self, partitions: Partitions, pool: Executor, long_polls: LongPolls, timeout_s: float) -> None:
        self._partitions = partitions
        self._pool = pool
        self._long_polls = long_polls
        self._timeout_s = timeout_s

    def add_to(self, internal_router: Router) -> None:
        internal_router.add(internal.OFFSETS, self.list_offsets)
        internal_router.add(internal.WAIT, self.wait)

    async def list_offsets(self, request: HttpRequest) -> HttpResponse:
        """All partitions at once; null for one that this broker does not lead."""
        asked = request.parse_json(OffsetsBody)
        deadline_s = time.monotonic() + self._timeout_s
        found = await asyncio.gather(*(self._offsets(of, asked.timestamp, deadline_s) for of in asked.partitions))
        return HttpResponse.json({"status": "success", "offsets": found})

    async def _offsets(self, asked: PartitionOffsetsBody, timestamp: int | None, deadline_s: float) -> Offsets | None:
        loop = asyncio.get_running_loop()
        try:
            replica = self._partitions.get(asked.topic_id, asked.partition_id)
            end = await replica.leader_requests.confirm_end(deadline_s - time.monotonic())
            if end is None:
                return None
            offset_at = None
            if timestamp is not None:
                offset_at = await loop.run_in_executor(self._pool, replica.offset_at, timestamp)
            since = StoredSince(None, None)
            if asked.since is not None:
                since = await loop.run_in_executor(self._pool, replica.since, asked.since)
        except (PartitionNotFound, Unavailable):
            return None  # a damaged partition must not hide the answers of the others
        return {
            "topic_id": str(replica.topic_id),
            "partition_id": replica.partition_id,
            "leader": replica.me.broker_id,
            "term": replica.view.term,
            "beginning_offset": end.start_offset,
            "end_offset": end.end_offset,
            "size_bytes": replica.bounds().size_bytes,
            "offset_at": offset_at,
            "bytes_since": since.size_bytes,
            "oldest_since": since.oldest,
        }

    async def wait(self, request: HttpRequest) -> HttpResponse:
        """The partitions that have grown beyond their offset, as soon as there is one."""
        asked = request.parse_json(WaitBody)
        names = [(wanted.topic_id, wanted.partition_id, wanted.offset) for wanted in asked.partitions]
        grown = self._grown(names)
        if not grown:
            places: list[tuple[OffsetWaiters, int]] = [
                (self._partitions.get(topic_id, partition_id).waiters, offset)
                for topic_id, partition_id, offset in names
            ]
            await self._long_polls.wait(places, min(asked.wait_ms, MAX_WAIT_MS) / 1000)
            grown = self._grown(names)
        return HttpResponse.json({"status": "success", "grown": grown})

    def _grown(self, names: list[tuple[UUID, int, int]]) -> list[Grown]:
        found: list[Grown] = []
        for topic_id, partition_id, offset in names:
            try:
                replica = self._partitions.get(topic_id, partition_id)
                replica.check_served()
                end_offset = replica.view.end_offset
            except (PartitionNotFound, Unavailable):
                end_offset = _NOT_HELD
            if end_offset == _NOT_HELD or end_offset > offset:
                found.append({"topic_id": str(topic_id), "partition_id": partition_id, "end_offset": end_offset})
        return found
