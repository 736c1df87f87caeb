"""Registrations of producers and consumers: routes, implicit topics, and where a new consumer starts."""

import asyncio
import math
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pydantic import TypeAdapter

from db import registrations
from db.primary import Primary
from db.registrations import RegistrationResult, WantedConsumer, WantedProducer
from myqueue.protocol import answers, http_headers, internal, routes
from myqueue.protocol.errors import (
    ConsumerNotFound,
    InvalidRequest,
    MetadataUnavailable,
    MyQueueError,
    PastEnd,
    RegistrationConflict,
    TooManyRequests,
    TopicNotFound,
)
from myqueue.protocol.limits import topic_name_problem
from myqueue.protocol.models import FromOffset, Nothing, OpenProducer, RegisterConsumer, RegisterProducer
from myqueue.protocol.token import Token
from service.http_messages import HttpRequest, HttpResponse
from service.router import Router
from write_manager.cursors import Cursors
from write_manager.leader_offsets import StartOffsets
from write_manager.metadata_cache import CachedTopic, MetadataCache
from write_manager.registration_store import RegistrationStore
from write_manager.topics import Topics

MAX_ADDRESSES = 10_000

_REGISTER_CONSUMER = TypeAdapter(RegisterConsumer)


Registered = tuple[RegistrationResult, Token | None]


class Registrations:
    """Runs on the event loop, except `delete_consumer`. Queries brokers and creates topics before it stores."""

    def __init__(
        self,
        primary: Primary,
        cache: MetadataCache,
        topics: Topics,
        offsets: StartOffsets,
        cursors: Cursors,
        store: RegistrationStore,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._primary = primary
        self._cache = cache
        self._topics = topics
        self._offsets = offsets
        self._cursors = cursors
        self._store = store
        self._loop = loop
        self._creating = ThreadPoolExecutor(4, thread_name_prefix="implicit-topics")

    async def producer(self, request: RegisterProducer) -> Registered:
        topic = await self._ensure(request.topic) if request.topic_id is None else self._cache.topic(request.topic)
        if request.topic_id not in (None, topic.topic_id):
            raise TopicNotFound(f"topic {topic.name!r} was deleted and made again: it is another one now")
        return await self._store.store(WantedProducer(topic.topic_id, topic.name, request.name, opens=False))

    async def open_producer(self, topic_name: str, request: OpenProducer) -> tuple[CachedTopic, Registered]:
        """The producer of that name, or a new one, with a new epoch: it fences earlier processes of that name."""
        if problem := topic_name_problem(topic_name):
            raise InvalidRequest(problem)
        topic = await self._ensure(topic_name) if request.create else self._cache.topic(topic_name)
        wanted = WantedProducer(topic.topic_id, topic.name, request.name, opens=True)
        return topic, await self._store.store(wanted)

    async def _ensure(self, name: str) -> CachedTopic:
        topic = self._cache.topics.get(name)
        if topic is not None:
            return topic
        return await asyncio.get_running_loop().run_in_executor(self._creating, self._topics.ensure, name)

    async def consumer(self, request: RegisterConsumer) -> Registered:
        topic = self._cache.topic(request.topic)
        if request.partition_id is not None:
            topic.partition(request.partition_id)
        if isinstance(request.start, FromOffset) and request.partition_id is None:
            raise InvalidRequest("from: an offset needs a partition_id")
        start, failure = None, None
        try:
            start = await self._start_offsets(topic, request)
        except MyQueueError as error:
            failure = error  # an existing consumer needs no start offset, so no broker has to answer
        if failure is not None and request.name is None:
            raise failure
        wanted = WantedConsumer(topic.topic_id, topic.name, request.name, request.partition_id, start)
        try:
            stored, token = await self._store.store(wanted)
        except ConsumerNotFound as error:
            raise failure or error from None
        if stored.partition_id != request.partition_id:
            raise RegistrationConflict(
                f"consumer {request.name!r} is registered for "
                + ("the whole topic" if stored.partition_id is None else f"partition {stored.partition_id}")
            )
        return stored, token

    async def _start_offsets(self, topic: CachedTopic, request: RegisterConsumer) -> dict[int, int]:
        partitions = topic.partition_ids if request.partition_id is None else [request.partition_id]
        try:
            return await self._offsets.resolve(topic, partitions, request.start)
        except PastEnd as error:
            raise InvalidRequest(f"from: {error.message}") from error

    def delete_consumer(self, consumer_id: int) -> Token | None:
        try:
            with self._primary.transaction() as transaction:
                if not registrations.delete_consumer(transaction.session, consumer_id):
                    self._cache.check_certain("the consumer")
                    raise ConsumerNotFound()
        except MetadataUnavailable as error:
            if error.outcome == "unknown":
                self._forget(consumer_id)  # the next look-up queries PostgreSQL
            raise
        self._forget(consumer_id)
        return transaction.token

    def _forget(self, consumer_id: int) -> None:
        async def forget() -> None:
            self._cache.consumers.remove([consumer_id])
            await self._cursors.remove(consumer_id)

        asyncio.run_coroutine_threadsafe(forget(), self._loop).result()


@dataclass(slots=True)
class _TokenBucket:
    tokens: float
    at_s: float  # when it had them


class TopicCreationLimit:
    """How many topics one client address may create by registering producers: a token bucket for each address.

    A registration for a topic that does not exist creates it, so a program with a wrong name in a loop, or an attacker,
    could use up the cluster's partitions within seconds.
    """

    def __init__(self, per_minute: int, *, max_addresses: int = MAX_ADDRESSES) -> None:
        """Addresses beyond `max_addresses` evict the least recently used one."""
        self._capacity = per_minute
        self._tokens_per_s = per_minute / 60
        self._max_addresses = max_addresses
        self._buckets: OrderedDict[str, _TokenBucket] = OrderedDict()  # the least recently used first

    def wait_s(self, address: str, now_s: float) -> float:
        """0 when the address may create one more topic, which is counted; else how long until it may."""
        bucket = self._buckets.setdefault(address, _TokenBucket(self._capacity, now_s))
        self._buckets.move_to_end(address)
        bucket.tokens = min(self._capacity, bucket.tokens + max(0.0, now_s - bucket.at_s) * self._tokens_per_s)
        bucket.at_s = max(bucket.at_s, now_s)
        self._forget(now_s)
        if bucket.tokens >= 1:
            bucket.tokens -= 1
            return 0.0
        return (1 - bucket.tokens) / self._tokens_per_s

    def _forget(self, now_s: float) -> None:
        """After a minute a bucket is full, as that of an unknown address."""
        while self._buckets:
            oldest = next(iter(self._buckets.values()))
            if len(self._buckets) <= self._max_addresses and now_s - oldest.at_s < 60:
                return
            self._buckets.popitem(last=False)

    def __len__(self) -> int:
        return len(self._buckets)


def add_registration_routes(
    router: Router, registrations: Registrations, cache: MetadataCache, creations: TopicCreationLimit
) -> None:
    """Registrations run on the event loop: many share a transaction, and none holds a thread."""

    def limit_creation(request: HttpRequest, topic: str) -> None:
        """A registration for a topic that does not exist creates it."""
        if topic in cache.topics:
            return
        # The load balancer sets the header itself, whatever a client sends.
        wait_s = creations.wait_s(request.header(http_headers.REAL_IP) or "", time.monotonic())
        if wait_s:
            raise TooManyRequests(
                "this address creates too many topics by registering producers", retry_after_s=math.ceil(wait_s)
            )

    async def register_producer(request: HttpRequest) -> HttpResponse:
        wanted = request.parse_json(RegisterProducer)
        if wanted.topic_id is None:
            limit_creation(request, wanted.topic)
        stored, token = await registrations.producer(wanted)
        body = answers.ProducerRegistered(producer_id=stored.id)
        return HttpResponse.json(body, _status(stored), session_token=token)

    async def open_producer(request: HttpRequest) -> HttpResponse:
        name, wanted = request.path_values["topic"], request.parse_json(OpenProducer)
        if wanted.create:
            limit_creation(request, name)
        topic, (stored, token) = await registrations.open_producer(name, wanted)
        assert stored.epoch is not None
        body = answers.ProducerOpened(producer_id=stored.id, epoch=stored.epoch, topic_id=str(topic.topic_id))
        return HttpResponse.json(body, _status(stored), session_token=token)

    async def register_consumer(request: HttpRequest) -> HttpResponse:
        stored, token = await registrations.consumer(request.parse_json(RegisterConsumer))
        body = answers.ConsumerRegistered(consumer_id=stored.id)
        return HttpResponse.json(body, _status(stored), session_token=token)

    def delete_consumer(request: HttpRequest) -> HttpResponse:
        request.parse_query(Nothing)
        token = registrations.delete_consumer(request.path_id("consumer_id", ConsumerNotFound))
        body = answers.Done(message=f"consumer {request.path_values['consumer_id']} deleted")
        return HttpResponse.json(body, session_token=token)

    router.add(routes.REGISTER_PRODUCER, register_producer)
    router.add(routes.OPEN_PRODUCER, open_producer)
    router.add(routes.REGISTER_CONSUMER, register_consumer)
    router.add(routes.DELETE_CONSUMER, delete_consumer)


def add_internal_registration_routes(router: Router, registrations: Registrations) -> None:
    async def register_consumer(request: HttpRequest) -> HttpResponse:
        """For a read manager that consumes under a name."""
        stored, _ = await registrations.consumer(request.parse_internal(_REGISTER_CONSUMER))
        return HttpResponse.json({"status": "success", "consumer_id": stored.id, "new": stored.new})

    router.add(internal.REGISTER_CONSUMER, register_consumer)


def _status(stored: RegistrationResult) -> int:
    return 201 if stored.new else 200
