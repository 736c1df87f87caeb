"""Routes for what happens rarely: CreateTopic, ListTopic, CheckTopic; members and leaders. Answered by Flask."""

import time
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from broker.api.requests import Change, Spec, Wish, partition_id_of, topic_id_of
from broker.partitions import Partitions
from broker.raft import configuration
from broker.raft.events import Reconfigure
from broker.replica import Replica
from broker.storage.groups import Settings
from myqueue.protocol import internal
from myqueue.protocol.errors import TopicNotFound
from service.web import Reply, WebApp, parse_json

T = TypeVar("T")


class Run(Protocol):
    """Carries out on the event loop what waits there."""

    def __call__(self, work: Coroutine[Any, Any, T], /) -> T: ...


class Routes:
    def __init__(self, partitions: Partitions, run: Run) -> None:
        self._partitions = partitions
        self._run = run

    def add_to(self, web: WebApp) -> None:
        web.internal("create_topic", "PUT", internal.PARTITION, self.create_topic)
        web.internal("delete_topic", "DELETE", internal.PARTITION, self.delete_topic)
        web.internal("change_members", "POST", internal.MEMBERS, self.change_members)
        web.internal("move_leader", "POST", internal.LEADER, self.move_leader)
        web.internal("list_topics", "GET", internal.BROKER_TOPICS, self.list_topics)
        web.internal("check_topic", "GET", internal.BROKER_TOPIC, self.check_topic)

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
        change = configuration.ConfigurationChange(configuration.Step(asked.step), asked.member.as_member)
        now_ms = time.time_ns() // 1_000_000
        replica = self._replica(topic_id, partition_id)
        self._run(replica.ask(lambda number: Reconfigure(number, change, asked.expected, now_ms)))
        return Reply({"status": "success"})

    def move_leader(self, topic_id: str, partition_id: str) -> Reply:
        wish = parse_json(Wish)
        self._run(self._replica(topic_id, partition_id).hand_over(wish.broker_id))
        return Reply({"status": "success"})

    def list_topics(self) -> Reply:
        return Reply({"status": "success", "topics": self._partitions.topics()})

    def check_topic(self, topic_id: str) -> Reply:
        wanted = str(topic_id_of(topic_id))
        for topic in self._partitions.topics():
            if topic["topic_id"] == wanted:
                return Reply({"status": "success", **topic})
        raise TopicNotFound()

    def _replica(self, topic_id: str, partition_id: str) -> Replica:
        return self._partitions.get(topic_id_of(topic_id), partition_id_of(partition_id))
