"""Partitions as their leaders know them: offsets, sizes, leaders, and the routing that clients cache."""

import time
from uuid import UUID

from myqueue.protocol import grant
from myqueue.protocol.answers import (
    Partition,
    PartitionBounds,
    PartitionList,
    PartitionOffsets,
    RoutedPartition,
    Routing,
    TopicOffsets,
)
from myqueue.protocol.errors import NoLeader
from myqueue.protocol.internal import Offsets, PartitionRecord
from myqueue.protocol.token import Token
from read_manager.leader_offsets import LeaderOffsets
from read_manager.metadata_cache import MetadataCache, partition_of


class PartitionsHandler:
    def __init__(self, topics: MetadataCache, offsets: LeaderOffsets, *, secret: str, grant_s: float) -> None:
        self._topics = topics
        self._offsets = offsets
        self._secret = secret
        self._grant_s = grant_s

    async def partitions(self, name: str, token: Token | None) -> PartitionList:
        """Offsets from the leaders; of a partition without leader, as last reported."""
        topic = await self._topics.topic(name, token)
        bounds = await self._offsets.ask(topic, range(len(topic["partitions"])))
        return PartitionList(
            topic=name,
            partitions=[_listed(record, bounds.get(record["partition_id"])) for record in topic["partitions"]],
        )

    async def routing(self, name: str, token: Token | None) -> Routing:
        """Leaders by their own answers: clients often ask after a leader failed, before the metadata shows it."""
        topic = await self._topics.topic(name, token)
        bounds = await self._offsets.ask_with_retries(topic, range(len(topic["partitions"])))
        expires_at = time.time_ns() // 1_000_000 + round(self._grant_s * 1000)
        return Routing(
            topic=name,
            topic_id=topic["topic_id"],
            partitions=[
                _routed(topic["topic_id"], record, bounds.get(record["partition_id"])) for record in topic["partitions"]
            ],
            grant=grant.issue(self._secret, UUID(topic["topic_id"]), grant.READ | grant.WRITE, expires_at),
            expires_at=expires_at,
        )

    async def offsets(
        self, name: str, partition_id: int, timestamp: int | None, token: Token | None
    ) -> PartitionOffsets:
        topic = await self._topics.topic(name, token)
        partition_of(topic, partition_id)
        bounds = (await self._offsets.require(topic, [partition_id], timestamp=timestamp))[partition_id]
        return PartitionOffsets(
            beginning_offset=bounds["beginning_offset"], end_offset=bounds["end_offset"], offset=bounds["offset_at"]
        )

    async def topic_offsets(self, name: str, token: Token | None) -> TopicOffsets:
        topic = await self._topics.topic(name, token)
        try:
            bounds = await self._offsets.require(topic, range(len(topic["partitions"])))
        except NoLeader:
            # The cached record may be of a topic that was deleted, or deleted and created again.
            again = await self._topics.topic(name, token, fresh=True)
            if again["topic_id"] == topic["topic_id"]:
                raise
            topic, bounds = again, await self._offsets.require(again, range(len(again["partitions"])))
        return TopicOffsets(
            topic=name,
            topic_id=topic["topic_id"],
            partitions=[
                PartitionBounds(
                    partition_id=number,
                    beginning_offset=bounds[number]["beginning_offset"],
                    end_offset=bounds[number]["end_offset"],
                )
                for number in range(len(topic["partitions"]))
            ],
        )


def _listed(record: PartitionRecord, bounds: Offsets | None) -> Partition:
    known = record if bounds is None else bounds
    return Partition(
        partition_id=record["partition_id"],
        leader=None if bounds is None else bounds["leader"],
        replicas=record["replicas"],
        term=known["term"],
        beginning_offset=known["beginning_offset"],
        end_offset=known["end_offset"],
        size=known["end_offset"] - known["beginning_offset"],
        size_bytes=known["size_bytes"],
    )


def _routed(topic_id: str, record: PartitionRecord, bounds: Offsets | None) -> RoutedPartition:
    leader = None if bounds is None else bounds["leader"]
    return RoutedPartition(
        partition_id=record["partition_id"],
        leader=leader,
        term=record["term"] if bounds is None else bounds["term"],
        replicas=record["replicas"],
        path=None if leader is None else f"/v1/brokers/{leader}/topics/{topic_id}/partitions/{record['partition_id']}",
    )
