"""What there is and where: topics, partitions, offsets, and the way to their brokers."""

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
    TopicDescription,
    TopicOffsets,
)
from myqueue.protocol.errors import NoLeader, NoTopics
from myqueue.protocol.internal import Offsets as Said
from myqueue.protocol.internal import PartitionRecord
from myqueue.protocol.token import Token
from read_manager.catalog import Catalog
from read_manager.leader_offsets import LeaderOffsets
from read_manager.topics import Topics, partition_of


class Names:
    """From the catalog alone, in Flask's threads."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def topics(self, token: Token | None) -> list[str]:
        names = self._catalog.topics(token)
        if not names:
            raise NoTopics()
        return names

    def topic(self, name: str, token: Token | None) -> TopicDescription:
        topic = self._catalog.topic(name, token)
        return TopicDescription(
            topic=name,
            topic_id=topic["topic_id"],
            partitions=len(topic["partitions"]),
            replication=topic["replication"],
            retention_ms=topic["retention_ms"],
            retention_bytes=topic["retention_bytes"],
        )


class Listing:
    """With what the leaders say, on the event loop."""

    def __init__(self, topics: Topics, offsets: LeaderOffsets, *, secret: str, grant_s: float) -> None:
        self._topics = topics
        self._offsets = offsets
        self._secret = secret
        self._grant_s = grant_s

    async def partitions(self, name: str, token: Token | None) -> PartitionList:
        """Offsets as the leaders say; of a partition without leader, as last reported."""
        topic = await self._topics.topic(name, token)
        said = await self._offsets.ask(topic, range(len(topic["partitions"])))
        return PartitionList(
            topic=name, partitions=[_listed(record, said.get(record["partition_id"])) for record in topic["partitions"]]
        )

    async def routing(self, name: str, token: Token | None) -> Routing:
        """Leaders as they say themselves: who asks has often just lost one, and the catalog may not know yet."""
        topic = await self._topics.topic(name, token)
        said = await self._offsets.ask_with_retries(topic, range(len(topic["partitions"])))
        expires_at = time.time_ns() // 1_000_000 + round(self._grant_s * 1000)
        return Routing(
            topic=name,
            topic_id=topic["topic_id"],
            partitions=[
                _routed(topic["topic_id"], record, said.get(record["partition_id"])) for record in topic["partitions"]
            ],
            grant=grant.issue(self._secret, UUID(topic["topic_id"]), grant.READ | grant.WRITE, expires_at),
            expires_at=expires_at,
        )

    async def offsets(
        self, name: str, partition_id: int, timestamp: int | None, token: Token | None
    ) -> PartitionOffsets:
        topic = await self._topics.topic(name, token)
        partition_of(topic, partition_id)
        said = (await self._offsets.require(topic, [partition_id], timestamp=timestamp))[partition_id]
        return PartitionOffsets(
            beginning_offset=said["beginning_offset"], end_offset=said["end_offset"], offset=said["offset_at"]
        )

    async def topic_offsets(self, name: str, token: Token | None) -> TopicOffsets:
        topic = await self._topics.topic(name, token)
        try:
            said = await self._offsets.require(topic, range(len(topic["partitions"])))
        except NoLeader:
            # It may be gone or made anew, and what was kept of it old.
            again = await self._topics.topic(name, token, fresh=True)
            if again["topic_id"] == topic["topic_id"]:
                raise
            topic, said = again, await self._offsets.require(again, range(len(again["partitions"])))
        return TopicOffsets(
            topic=name,
            topic_id=topic["topic_id"],
            partitions=[
                PartitionBounds(
                    partition_id=number,
                    beginning_offset=said[number]["beginning_offset"],
                    end_offset=said[number]["end_offset"],
                )
                for number in range(len(topic["partitions"]))
            ],
        )


def _listed(record: PartitionRecord, said: Said | None) -> Partition:
    known = record if said is None else said
    return Partition(
        partition_id=record["partition_id"],
        leader=None if said is None else said["leader"],
        replicas=record["replicas"],
        term=known["term"],
        beginning_offset=known["beginning_offset"],
        end_offset=known["end_offset"],
        size=known["end_offset"] - known["beginning_offset"],
        size_bytes=known["size_bytes"],
    )


def _routed(topic_id: str, record: PartitionRecord, said: Said | None) -> RoutedPartition:
    leader = None if said is None else said["leader"]
    return RoutedPartition(
        partition_id=record["partition_id"],
        leader=leader,
        term=record["term"] if said is None else said["term"],
        replicas=record["replicas"],
        path=None if leader is None else f"/v1/brokers/{leader}/topics/{topic_id}/partitions/{record['partition_id']}",
    )
