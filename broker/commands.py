"""Commands of the write manager: partitions, their members and leaders. Rare, so they run on threads."""

import time
from collections.abc import Coroutine
from typing import Annotated, Any, Literal, Protocol, TypeVar

from pydantic import Field

from broker.command_fence import CommandFence, KnownReplica, epoch_of
from broker.partitions import Partitions
from broker.raft.configuration import ConfigurationChange, MemberId, Step
from broker.raft.events import Reconfigure
from broker.request_values import MAX_BROKER, partition_of, topic_id_of
from broker.storage.group import Settings
from myqueue.protocol import http_headers, internal
from myqueue.protocol.errors import TopicNotFound
from myqueue.protocol.models import MAX_OFFSET, Request, TopicName
from service.http_messages import HttpRequest, HttpResponse, ThreadHandler
from service.router import Router

T = TypeVar("T")

MAX_MEMBERS = 64
Incarnation = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]


class MemberBody(Request):
    broker_id: Annotated[int, Field(ge=1, le=MAX_BROKER)]
    incarnation: Incarnation

    @property
    def member_id(self) -> MemberId:
        return MemberId(self.broker_id, int(self.incarnation, 16))


class CreatePartitionBody(Request):
    topic: TopicName
    founders: Annotated[list[MemberBody], Field(min_length=1, max_length=MAX_MEMBERS)]  # the initial voters
    retention_ms: Annotated[int, Field(ge=1, le=MAX_OFFSET)] | None
    retention_bytes: Annotated[int, Field(ge=1, le=MAX_OFFSET)] | None


class DeletePartitionBody(Request):
    incarnation: Incarnation
    configuration: Annotated[int, Field(ge=0, le=MAX_OFFSET)]


class ChangeMembersBody(Request):
    step: Literal["add_learner", "promote", "remove"]
    member: MemberBody
    expected: Annotated[int, Field(ge=0, le=MAX_OFFSET)]


class RebuildBody(Request):
    incarnation: Incarnation


class MoveLeaderBody(Request):
    broker_id: Annotated[int, Field(ge=1, le=MAX_BROKER)] | None


class RunOnLoop(Protocol):
    """Runs a coroutine on the event loop and waits for it on this thread."""

    def __call__(self, work: Coroutine[Any, Any, T], /) -> T: ...


class CommandRoutes:
    def __init__(self, partitions: Partitions, run: RunOnLoop, fence: CommandFence) -> None:
        self._partitions = partitions
        self._run = run
        self._fence = fence

    def add_to(self, internal_router: Router) -> None:
        for route, handler in (
            (internal.CREATE_PARTITION, self.create_partition),
            (internal.DELETE_PARTITION, self.delete_partition),
            (internal.CHANGE_MEMBERS, self.change_members),
            (internal.REBUILD_PARTITION, self.rebuild_partition),
            (internal.MOVE_LEADER, self.move_leader),
        ):
            internal_router.add(route, self._fenced(handler))
        internal_router.add(internal.BROKER_TOPICS, self.list_topics)
        internal_router.add(internal.BROKER_TOPIC, self.check_topic)

    def _fenced(self, handler: ThreadHandler) -> ThreadHandler:
        def fenced(request: HttpRequest) -> HttpResponse:
            with self._fence.command(epoch_of(request.header(http_headers.EPOCH))):
                return handler(request)

        return fenced

    def create_partition(self, request: HttpRequest) -> HttpResponse:
        name = partition_of(request)
        spec = request.parse_json(CreatePartitionBody)
        settings = Settings(spec.topic, spec.retention_ms, spec.retention_bytes)
        created = self._partitions.create(*name, settings, [voter.member_id for voter in spec.founders])
        return HttpResponse.json({"status": "success"}, 201 if created else 200)

    def delete_partition(self, request: HttpRequest) -> HttpResponse:
        known = None
        if request.body or request.header(http_headers.EPOCH) is not None:  # write managers up to 0.10 send neither
            asked = request.parse_json(DeletePartitionBody)
            known = KnownReplica(int(asked.incarnation, 16), asked.configuration)
        self._partitions.drop(*partition_of(request), known)
        return HttpResponse.json({"status": "success"})

    def change_members(self, request: HttpRequest) -> HttpResponse:
        asked = request.parse_json(ChangeMembersBody)
        change = ConfigurationChange(Step(asked.step), asked.member.member_id)
        now_ms = time.time_ns() // 1_000_000
        replica = self._partitions.get(*partition_of(request))
        reconfigure = replica.leader_requests.request(
            lambda number: Reconfigure(number, change, asked.expected, now_ms)
        )
        self._run(reconfigure)
        return HttpResponse.json({"status": "success"})

    def rebuild_partition(self, request: HttpRequest) -> HttpResponse:
        """The group has removed the damaged member: its files are set aside, an empty replica takes its place."""
        name, asked = partition_of(request), request.parse_json(RebuildBody)
        self._partitions.rebuild(*name, int(asked.incarnation, 16))
        return HttpResponse.json({"status": "success"})

    def move_leader(self, request: HttpRequest) -> HttpResponse:
        asked = request.parse_json(MoveLeaderBody)
        replica = self._partitions.get(*partition_of(request))
        self._run(replica.leader_requests.transfer_leadership(asked.broker_id))
        return HttpResponse.json({"status": "success"})

    def list_topics(self, _: HttpRequest) -> HttpResponse:
        return HttpResponse.json({"status": "success", "topics": self._partitions.topics()})

    def check_topic(self, request: HttpRequest) -> HttpResponse:
        wanted = str(topic_id_of(request.path_values["topic_id"]))
        for topic in self._partitions.topics():
            if topic["topic_id"] == wanted:
                return HttpResponse.json({"status": "success", **topic})
        raise TopicNotFound()
