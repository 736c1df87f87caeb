"""The broker's routes: CreateTopic, ListTopic, CheckTopic, enqueue, dequeue, size; members and leaders."""

import time
from concurrent.futures import Future

from flask import Response, request

from broker.api.requests import AskOffsets, Change, Fetch, Name, Spec, Wish, partition_id_of, topic_id_of
from broker.appending import Draft
from broker.metrics import Metrics
from broker.partitions import Partitions
from broker.raft import configuration
from broker.raft.events import Outcome, Read, ReadAt, Reconfigure
from broker.replica import Replica
from broker.storage.groups import Settings
from myqueue.protocol import batch as batches
from myqueue.protocol import headers, internal
from myqueue.protocol.errors import InvalidRequest, PartitionNotFound, TopicNotFound, Unavailable, UnsupportedMediaType
from myqueue.protocol.internal import Offsets
from myqueue.protocol.marks import decode_marks
from service.web import Reply, WebApp, parse_json, parse_query


class Routes:
    def __init__(self, partitions: Partitions, metrics: Metrics, *, read_timeout_s: float) -> None:
        self._partitions = partitions
        self._read_timeout_s = read_timeout_s
        self._metrics = metrics

    def add_to(self, web: WebApp) -> None:
        web.internal("create_topic", "PUT", internal.PARTITION, self.create_topic)
        web.internal("delete_topic", "DELETE", internal.PARTITION, self.delete_topic)
        web.internal("change_members", "POST", internal.MEMBERS, self.change_members)
        web.internal("move_leader", "POST", internal.LEADER, self.move_leader)
        web.internal("list_topics", "GET", internal.BROKER_TOPICS, self.list_topics)
        web.internal("check_topic", "GET", internal.BROKER_TOPIC, self.check_topic)
        web.internal("enqueue", "POST", internal.BATCHES, self.enqueue)
        web.internal("dequeue", "GET", internal.MESSAGES, self.dequeue)
        web.internal("size", "POST", internal.OFFSETS, self.size)

    def create_topic(self, topic_id: str, partition_id: str) -> Reply:
        name = topic_id_of(topic_id), partition_id_of(partition_id)
        spec = parse_json(Spec)
        settings = Settings(spec.topic, spec.retention_ms, spec.retention_bytes)
        created = self._partitions.create(*name, settings, [founder.as_member for founder in spec.founders])
        return Reply({"status": "success"}, 201 if created else 200)

    def delete_topic(self, topic_id: str, partition_id: str) -> Reply:
        self._partitions.drop(topic_id_of(topic_id), partition_id_of(partition_id))
        return Reply({"status": "success"})

    def change_members(self, topic_id: str, partition_id: str) -> Reply:
        asked = parse_json(Change)
        change = configuration.Change(configuration.Step(asked.step), asked.member.as_member)
        now_ms = time.time_ns() // 1_000_000
        self._replica(topic_id, partition_id).ask(lambda number: Reconfigure(number, change, asked.expected, now_ms))
        return Reply({"status": "success"})

    def move_leader(self, topic_id: str, partition_id: str) -> Reply:
        wish = parse_json(Wish)
        self._replica(topic_id, partition_id).hand_over(wish.broker_id)
        return Reply({"status": "success"})

    def list_topics(self) -> Reply:
        return Reply({"status": "success", "topics": self._partitions.topics()})

    def check_topic(self, topic_id: str) -> Reply:
        wanted = str(topic_id_of(topic_id))
        for topic in self._partitions.topics():
            if topic["topic_id"] == wanted:
                return Reply({"status": "success", **topic})
        raise TopicNotFound()

    def enqueue(self, topic_id: str, partition_id: str) -> Reply:
        if request.mimetype != headers.BATCH_TYPE:
            raise UnsupportedMediaType(f"Content-Type must be {headers.BATCH_TYPE}")
        replica = self._replica(topic_id, partition_id)
        data = request.get_data()
        header, body, rest = batches.split(data)
        batch = batches.validate(header, body)
        if (header.topic_id, header.partition) != (replica.topic_id, replica.partition_id):
            raise InvalidRequest("the batch names another partition than the path")
        answer = replica.append(header, Draft(header, data, batch, decode_marks(rest, header.count)))
        duplicates = sum(1 for result in answer["results"] if result.get("duplicate"))
        refused = sum(1 for result in answer["results"] if "error_code" in result)
        self._metrics.appends.inc()
        self._metrics.messages.inc(header.count - duplicates - refused)
        self._metrics.duplicates.inc(duplicates)
        self._metrics.bytes.inc(len(data))
        return Reply(answer)

    def dequeue(self, topic_id: str, partition_id: str) -> Response:
        asked = parse_query(Fetch)
        found = self._replica(topic_id, partition_id).fetch(asked.offset, asked.limit)
        if found is None:
            response = Response(status=204)
            response.headers.remove("Content-Type")
            return response
        self._metrics.fetches.inc()
        return Response(found, content_type=headers.BATCH_TYPE)

    def size(self) -> Reply:
        """All partitions are asked for at once; the leader alone may say where one ends."""
        asked = parse_json(AskOffsets)
        deadline_s = time.monotonic() + self._read_timeout_s
        reads = [self._start_read(name) for name in asked.partitions]
        found = [
            None if read is None else self._offsets(*read, asked.timestamp, deadline_s - time.monotonic())
            for read in reads
        ]
        return Reply({"status": "success", "offsets": found})

    def _start_read(self, name: Name) -> "tuple[Replica, Future[Outcome]] | None":
        try:
            replica = self._partitions.get(name.topic_id, name.partition_id)
            return replica, replica.start(Read)
        except (PartitionNotFound, Unavailable):
            return None  # a damaged partition must not hide what the others say

    def _offsets(
        self, replica: Replica, read: "Future[Outcome]", timestamp: int | None, timeout_s: float
    ) -> Offsets | None:
        try:
            outcome = read.result(max(0.0, timeout_s))
            if not isinstance(outcome, ReadAt):
                return None
            offset_at = None if timestamp is None else replica.offset_at(timestamp)
        except (TimeoutError, PartitionNotFound, Unavailable):
            return None
        return {
            "topic_id": str(replica.topic_id),
            "partition_id": replica.partition_id,
            "leader": replica.me.broker_id,
            "term": replica.view.term,
            "beginning_offset": outcome.start_offset,
            "end_offset": outcome.end_offset,
            "size_bytes": replica.bounds().size_bytes,
            "offset_at": offset_at,
        }

    def _replica(self, topic_id: str, partition_id: str) -> Replica:
        return self._partitions.get(topic_id_of(topic_id), partition_id_of(partition_id))
