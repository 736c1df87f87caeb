"""Lag: unread messages, bytes and seconds of a consumer; and its size, which is the unread messages alone."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from db import catalog as stored
from db.standby import Standby
from myqueue.protocol import routes
from myqueue.protocol.answers import Lag, PartitionLag, QueueSize
from myqueue.protocol.errors import ConsumerNotFound, TopicNotFound, Unavailable
from myqueue.protocol.internal import (
    Cursor,
    TopicRecord,
)
from myqueue.protocol.message_calls import (
    Offsets,
)
from myqueue.protocol.models import ListLag, Nothing, Size
from read_manager.leader_offsets import LeaderOffsets
from read_manager.metadata_cache import MetadataCache
from read_manager.write_manager_client import AsyncWriteManagerClient
from service.http_messages import HttpRequest, HttpResponse
from service.router import Router


@dataclass(frozen=True, slots=True)
class _ConsumerPosition:
    topic: str
    cursors: Sequence[Cursor]


class LagHandler:
    def __init__(
        self, topics: MetadataCache, offsets: LeaderOffsets, write_manager: AsyncWriteManagerClient, standby: Standby
    ) -> None:
        self._topics = topics
        self._offsets = offsets
        self._write_manager = write_manager
        self._standby = standby

    def add_routes(self, router: Router) -> None:
        router.add(routes.SIZE, self.size)
        router.add(routes.LAG, self.lag)
        router.add(routes.LIST_LAG, self.list_lag)

    async def size(self, request: HttpRequest) -> HttpResponse:
        query = request.parse_query(Size)
        consumer = await self._consumer(query.consumer_id)
        if consumer.topic != query.topic:
            raise ConsumerNotFound()
        topic = await self._topic(consumer)
        bounds = await self._offsets.require(topic, [cursor["partition_id"] for cursor in consumer.cursors])
        unread = sum(_unread(cursor, bounds[cursor["partition_id"]]) for cursor in consumer.cursors)
        return HttpResponse.json(QueueSize(size=unread))

    async def lag(self, request: HttpRequest) -> HttpResponse:
        request.parse_query(Nothing)
        consumer_id = request.path_id("consumer_id", ConsumerNotFound)
        consumer = await self._consumer(consumer_id)
        topic = await self._topic(consumer)
        since = {cursor["partition_id"]: cursor["offset"] for cursor in consumer.cursors}
        bounds = await self._offsets.require(topic, since, since=since)
        now_ms = time.time_ns() // 1_000_000
        partitions = [_lag(cursor, bounds[cursor["partition_id"]], now_ms) for cursor in consumer.cursors]
        lag = Lag(
            consumer_id=consumer_id,
            topic=consumer.topic,
            partitions=partitions,
            messages=sum(p.messages for p in partitions),
            stored_bytes=(stored_bytes := sum(p.stored_bytes for p in partitions)),
            bytes=stored_bytes,
            seconds=max((p.seconds for p in partitions), default=0.0),
        )
        return HttpResponse.json(lag)

    async def list_lag(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse.json(await self._write_manager.lags(request.parse_query(ListLag)))

    async def _topic(self, consumer: _ConsumerPosition) -> TopicRecord:
        try:
            topic = await self._topics.topic(consumer.topic)
            if len(topic["partitions"]) <= max(cursor["partition_id"] for cursor in consumer.cursors):
                topic = await self._topics.topic(consumer.topic, fresh=True)  # it was deleted and created again
        except TopicNotFound:
            raise ConsumerNotFound() from None
        return topic

    async def _consumer(self, consumer_id: int) -> _ConsumerPosition:
        """Cursors from the write manager, which moves them; while it is unavailable, the last stored ones."""
        try:
            answer = await self._write_manager.cursors(consumer_id)
        except Unavailable:
            found = await self._topics.read(lambda: self._stored(consumer_id))
            if found is None:
                raise
            return found
        return _ConsumerPosition(answer["topic"], answer["cursors"])

    def _stored(self, consumer_id: int) -> _ConsumerPosition | None:
        with self._standby.reading(detached=True) as session:
            consumer = stored.consumer(session, consumer_id)
            if consumer is None:
                return None
            cursors: list[Cursor] = [
                {
                    "partition_id": row.partition_id,
                    "offset": row.offset,
                    "given_back": len(row.given_back),
                    "member": None,
                }
                for row in stored.cursors(session, consumer_id)
            ]
            return _ConsumerPosition(consumer.topic_name, cursors)


def _unread(cursor: Cursor, bounds: Offsets) -> int:
    return max(0, bounds["end_offset"] - max(cursor["offset"], bounds["beginning_offset"])) + cursor["given_back"]


def _lag(cursor: Cursor, bounds: Offsets, now_ms: int) -> PartitionLag:
    oldest = bounds.get("oldest_since")
    return PartitionLag(
        partition_id=cursor["partition_id"],
        cursor=cursor["offset"],
        end_offset=bounds["end_offset"],
        messages=_unread(cursor, bounds),
        stored_bytes=(stored_bytes := bounds.get("bytes_since") or 0),
        bytes=stored_bytes,
        seconds=0.0 if oldest is None else max(0, now_ms - oldest) / 1000,
        member=cursor["member"],
        client_id=cursor.get("client_id"),
        host=cursor.get("host"),
    )
