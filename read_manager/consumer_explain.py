"""Explain: collects what the write manager and the leaders know of a consumer, and answers why it gets nothing."""

from myqueue.protocol import routes
from myqueue.protocol.answers import Explanation
from myqueue.protocol.errors import ConsumerNotFound, TopicNotFound
from myqueue.protocol.internal import Cursor, TopicRecord
from myqueue.protocol.message_calls import Offsets
from myqueue.protocol.models import Nothing
from read_manager.consumer_diagnosis import TOPIC_DELETED, Holder, PartitionFacts, explain_partition, summarize
from read_manager.leader_offsets import LeaderOffsets
from read_manager.metadata_cache import MetadataCache
from read_manager.write_manager_client import AsyncWriteManagerClient
from service.http_messages import HttpRequest, HttpResponse
from service.router import Router


class ExplainHandler:
    def __init__(self, topics: MetadataCache, offsets: LeaderOffsets, write_manager: AsyncWriteManagerClient) -> None:
        self._topics = topics
        self._offsets = offsets
        self._write_manager = write_manager

    def add_routes(self, router: Router) -> None:
        router.add(routes.EXPLAIN, self.explain)

    async def explain(self, request: HttpRequest) -> HttpResponse:
        request.parse_query(Nothing)
        consumer_id = request.path_id("consumer_id", ConsumerNotFound)
        consumer = await self._write_manager.cursors(consumer_id)
        topic = await self._topic(consumer["topic"], consumer["topic_id"])
        if topic is None:
            answer = Explanation(consumer_id=consumer_id, topic=consumer["topic"], partitions=[], summary=TOPIC_DELETED)
            return HttpResponse.json(answer)
        bounds = await self._offsets.ask(topic, [cursor["partition_id"] for cursor in consumer["cursors"]])
        partitions = [
            explain_partition(_facts(cursor, topic, bounds.get(cursor["partition_id"])))
            for cursor in consumer["cursors"]
        ]
        answer = Explanation(
            consumer_id=consumer_id,
            topic=consumer["topic"],
            partitions=partitions,
            summary=summarize(partitions),
        )
        return HttpResponse.json(answer)

    async def _topic(self, name: str, topic_id: str) -> TopicRecord | None:
        try:
            topic = await self._topics.topic(name)
            if topic["topic_id"] != topic_id:
                topic = await self._topics.topic(name, fresh=True)
        except TopicNotFound:
            return None
        return topic if topic["topic_id"] == topic_id else None


def _facts(cursor: Cursor, topic: TopicRecord, bounds: Offsets | None) -> PartitionFacts:
    partition = topic["partitions"][cursor["partition_id"]]
    member = cursor["member"]
    return PartitionFacts(
        partition_id=cursor["partition_id"],
        cursor=cursor["offset"],
        given_back=cursor["given_back"],
        in_flight=cursor.get("in_flight", 0),
        holder=None if member is None else Holder(member, cursor.get("client_id"), cursor.get("host")),
        is_revoking=cursor.get("revoking", False),
        replicas=len(partition["replicas"]),
        replicas_alive=len(partition["endpoints"]),
        bounds=None if bounds is None else (bounds["beginning_offset"], bounds["end_offset"]),
    )
