"""Partitions as their leaders report them: offsets, sizes, leaders, and the routing that clients cache."""

import time
from uuid import UUID

from myqueue.protocol import grant, routes
from myqueue.protocol.answers import (
    Partition,
    PartitionBounds,
    PartitionList,
    PartitionOffsets,
    ReplicaDamage,
    RoutedPartition,
    Routing,
    TopicOffsets,
)
from myqueue.protocol.errors import NoLeader, PartitionNotFound
from myqueue.protocol.internal import (
    PartitionRecord,
)
from myqueue.protocol.message_calls import (
    Offsets,
)
from myqueue.protocol.models import AskOffsets, Nothing
from read_manager.leader_offsets import LeaderOffsets
from read_manager.metadata_cache import SHOWN_KEPT_S, MetadataCache, partition_of
from service.http_messages import HttpRequest, HttpResponse
from service.router import Router


class PartitionsHandler:
    def __init__(self, topics: MetadataCache, offsets: LeaderOffsets, *, secret: str, grant_s: float) -> None:
        self._topics = topics
        self._offsets = offsets
        self._secret = secret
        self._grant_s = grant_s

    def add_routes(self, router: Router) -> None:
        router.add(routes.LIST_PARTITIONS, self.list_partitions)
        router.add(routes.ROUTING, self.routing)
        router.add(routes.PARTITION_OFFSETS, self.partition_offsets)
        router.add(routes.TOPIC_OFFSETS, self.topic_offsets)

    async def list_partitions(self, request: HttpRequest) -> HttpResponse:
        """Offsets from the leaders; of a partition without leader, as last reported."""
        request.parse_query(Nothing)
        topic = await self._topics.topic(request.path_topic(), request.session_token(), kept_s=SHOWN_KEPT_S)
        bounds = await self._offsets.ask(topic, range(len(topic["partitions"])))
        partitions = [_listed(record, bounds.get(record["partition_id"])) for record in topic["partitions"]]
        return HttpResponse.json(PartitionList(topic=topic["name"], partitions=partitions))

    async def routing(self, request: HttpRequest) -> HttpResponse:
        """Leaders by their own answers: clients often call after a leader failed, before the metadata shows it."""
        request.parse_query(Nothing)
        name, token = request.path_topic(), request.session_token()
        topic = await self._topics.topic(name, token, kept_s=SHOWN_KEPT_S, or_kept=True)
        bounds = await self._offsets.ask(topic, range(len(topic["partitions"])), await_election=True)
        expires_at = time.time_ns() // 1_000_000 + round(self._grant_s * 1000)
        answer = Routing(
            topic=topic["name"],
            topic_id=topic["topic_id"],
            partitions=[
                _routed(topic["topic_id"], record, bounds.get(record["partition_id"])) for record in topic["partitions"]
            ],
            grant=grant.issue(self._secret, UUID(topic["topic_id"]), grant.READ | grant.WRITE, expires_at),
            expires_at=expires_at,
        )
        return HttpResponse.json(answer)

    async def partition_offsets(self, request: HttpRequest) -> HttpResponse:
        query = request.parse_query(AskOffsets)
        name, partition_id = request.path_topic(), request.path_id("partition_id", PartitionNotFound)
        topic = await self._topics.topic(name, request.session_token(), or_kept=True)
        partition_of(topic, partition_id)
        bounds = (await self._offsets.require(topic, [partition_id], timestamp=query.timestamp))[partition_id]
        answer = PartitionOffsets(
            beginning_offset=bounds["beginning_offset"], end_offset=bounds["end_offset"], offset=bounds["offset_at"]
        )
        return HttpResponse.json(answer.model_dump(exclude={"offset"} if query.timestamp is None else None))

    async def topic_offsets(self, request: HttpRequest) -> HttpResponse:
        request.parse_query(Nothing)
        name, token = request.path_topic(), request.session_token()
        topic = await self._topics.topic(name, token, or_kept=True)
        try:
            bounds = await self._offsets.require(topic, range(len(topic["partitions"])))
        except NoLeader:
            # The cached record may be of a topic that was deleted, or deleted and created again.
            again = await self._topics.topic(name, token, fresh=True)
            if again["topic_id"] == topic["topic_id"]:
                raise
            topic, bounds = again, await self._offsets.require(again, range(len(again["partitions"])))
        answer = TopicOffsets(
            topic=name,
            topic_id=topic["topic_id"],
            partitions=[
                PartitionBounds(
                    partition_id=number,
                    beginning_offset=bounds[number]["beginning_offset"],
                    end_offset=bounds[number]["end_offset"],
                    stored_bytes=bounds[number]["size_bytes"],
                )
                for number in range(len(topic["partitions"]))
            ],
        )
        return HttpResponse.json(answer)


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
        damaged=[ReplicaDamage(**damage) for damage in record.get("damaged", [])],
        voters=record.get("voters"),
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
