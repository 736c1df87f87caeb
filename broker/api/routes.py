"""Routes for rare calls, on threads: CreateTopic, ListTopic, CheckTopic; members and leaders."""

import time
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar
from uuid import UUID

from broker.api.requests import Change, Spec, Wish, partition_id_of, topic_id_of
from broker.partitions import Partitions
from broker.raft import configuration
from broker.raft.events import Reconfigure
from broker.storage.groups import Settings
from myqueue.protocol import internal
from myqueue.protocol.errors import TopicNotFound
from service.http_messages import HttpRequest, HttpResponse
from service.router import Router

T = TypeVar("T")


class Run(Protocol):
    """Carries out on the event loop what waits there."""

    def __call__(self, work: Coroutine[Any, Any, T], /) -> T: ...


class Routes:
    def __init__(self, partitions: Partitions, run: Run) -> None:
        self._partitions = partitions
        self._run = run

    def add_to(self, router: Router) -> None:
        router.add(internal.CREATE_PARTITION, self.create_topic)
        router.add(internal.DELETE_PARTITION, self.delete_topic)
        router.add(internal.CHANGE_MEMBERS, self.change_members)
        router.add(internal.MOVE_LEADER, self.move_leader)
        router.add(internal.BROKER_TOPICS, self.list_topics)
        router.add(internal.BROKER_TOPIC, self.check_topic)

    def create_topic(self, request: HttpRequest) -> HttpResponse:
        name = _partition(request)
        spec = request.parse_json(Spec)
        settings = Settings(spec.topic, spec.retention_ms, spec.retention_bytes)
        created = self._partitions.create(*name, settings, [founder.as_member for founder in spec.founders])
        return HttpResponse.json({"status": "success"}, 201 if created else 200)

    def delete_topic(self, request: HttpRequest) -> HttpResponse:
        self._partitions.drop(*_partition(request))
        return HttpResponse.json({"status": "success"})

    def change_members(self, request: HttpRequest) -> HttpResponse:
        asked = request.parse_json(Change)
        change = configuration.ConfigurationChange(configuration.Step(asked.step), asked.member.as_member)
        now_ms = time.time_ns() // 1_000_000
        replica = self._partitions.get(*_partition(request))
        self._run(replica.ask(lambda number: Reconfigure(number, change, asked.expected, now_ms)))
        return HttpResponse.json({"status": "success"})

    def move_leader(self, request: HttpRequest) -> HttpResponse:
        wish = request.parse_json(Wish)
        self._run(self._partitions.get(*_partition(request)).hand_over(wish.broker_id))
        return HttpResponse.json({"status": "success"})

    def list_topics(self, _: HttpRequest) -> HttpResponse:
        return HttpResponse.json({"status": "success", "topics": self._partitions.topics()})

    def check_topic(self, request: HttpRequest) -> HttpResponse:
        wanted = str(topic_id_of(request.path_values["topic_id"]))
        for topic in self._partitions.topics():
            if topic["topic_id"] == wanted:
                return HttpResponse.json({"status": "success", **topic})
        raise TopicNotFound()


def _partition(request: HttpRequest) -> tuple[UUID, int]:
    values = request.path_values
    return topic_id_of(values["topic_id"]), partition_id_of(values["partition_id"])
