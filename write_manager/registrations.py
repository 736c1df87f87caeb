"""Producers and consumers: who may write and read, and where a new consumer starts."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from db import registrations
from db.primary import Primary
from db.registrations import WantedConsumer, WantedProducer
from myqueue.protocol.errors import (
    ConsumerNotFound,
    InvalidRequest,
    MetadataUnavailable,
    MyQueueError,
    PastEnd,
    RegistrationConflict,
)
from myqueue.protocol.limits import topic_name_problem
from myqueue.protocol.models import FromOffset, OpenProducer, RegisterConsumer, RegisterProducer
from myqueue.protocol.token import Token
from write_manager.cursors import Cursors
from write_manager.directory import Directory, Topic
from write_manager.on_loop import OnLoop
from write_manager.registration_groups import RegistrationGroups
from write_manager.start_offsets import StartOffsets
from write_manager.topics import Topics


@dataclass(frozen=True, slots=True)
class Registered:
    id: int
    new: bool
    token: Token | None = None


@dataclass(frozen=True, slots=True)
class OpenedProducer:
    id: int
    epoch: int
    topic_id: str
    new: bool
    token: Token | None


class Registrations:
    """On the event loop, but for `delete_consumer`. Brokers are asked and topics made before a registration is in a
    group."""

    def __init__(
        self,
        primary: Primary,
        directory: Directory,
        topics: Topics,
        offsets: StartOffsets,
        cursors: Cursors,
        groups: RegistrationGroups,
        on_loop: OnLoop,
    ) -> None:
        self._primary = primary
        self._directory = directory
        self._topics = topics
        self._offsets = offsets
        self._cursors = cursors
        self._groups = groups
        self._on_loop = on_loop
        self._creating = ThreadPoolExecutor(4, thread_name_prefix="implicit-topics")

    async def producer(self, request: RegisterProducer) -> Registered:
        topic = await self._ensure(request.topic)
        wanted = WantedProducer(topic.topic_id, topic.name, request.name, opens=False)
        stored, token = await self._groups.store(wanted)
        return Registered(stored.id, stored.new, token)

    async def open_producer(self, topic_name: str, request: OpenProducer) -> OpenedProducer:
        """The producer of that name, or a new one, with an epoch that nobody has had: it fences the earlier ones."""
        if problem := topic_name_problem(topic_name):
            raise InvalidRequest(problem)
        topic = await self._ensure(topic_name)
        wanted = WantedProducer(topic.topic_id, topic.name, request.name, opens=True)
        stored, token = await self._groups.store(wanted)
        assert stored.epoch is not None
        return OpenedProducer(stored.id, stored.epoch, str(topic.topic_id), stored.new, token)

    async def _ensure(self, name: str) -> Topic:
        topic = self._directory.topics.get(name)
        if topic is not None:
            return topic
        return await asyncio.get_running_loop().run_in_executor(self._creating, self._topics.ensure, name)

    async def consumer(self, request: RegisterConsumer) -> Registered:
        topic = self._directory.topic(request.topic)
        if request.partition_id is not None:
            topic.partition(request.partition_id)
        if isinstance(request.start, FromOffset) and request.partition_id is None:
            raise InvalidRequest("from: an offset needs a partition_id")
        start, failure = None, None
        try:
            start = await self._start_offsets(topic, request)
        except MyQueueError as error:
            failure = error  # one that is there already starts nowhere: no broker needs to answer
        if failure is not None and request.name is None:
            raise failure
        wanted = WantedConsumer(topic.topic_id, topic.name, request.name, request.partition_id, start)
        try:
            stored, token = await self._groups.store(wanted)
        except ConsumerNotFound as error:
            raise failure or error from None
        if stored.partition_id != request.partition_id:
            raise RegistrationConflict(
                f"consumer {request.name!r} is registered for "
                + ("the whole topic" if stored.partition_id is None else f"partition {stored.partition_id}")
            )
        return Registered(stored.id, stored.new, token)

    async def _start_offsets(self, topic: Topic, request: RegisterConsumer) -> dict[int, int]:
        partitions = topic.partition_ids if request.partition_id is None else [request.partition_id]
        try:
            return await self._offsets.places(topic, partitions, request.start)
        except PastEnd as error:
            raise InvalidRequest(f"from: {error.message}") from error

    def delete_consumer(self, consumer_id: int) -> Token | None:
        try:
            with self._primary.transaction() as transaction:
                if not registrations.delete_consumer(transaction.session, consumer_id):
                    raise ConsumerNotFound()
        except MetadataUnavailable as error:
            if error.outcome == "unknown":
                self._on_loop.run(self._forget(consumer_id))  # PostgreSQL is asked whether it is gone
            raise
        self._on_loop.run(self._forget(consumer_id))
        return transaction.token

    async def _forget(self, consumer_id: int) -> None:
        self._directory.consumers.remove([consumer_id])
        await self._cursors.remove(consumer_id)
