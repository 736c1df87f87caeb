"""Topics: create, describe, alter and delete them. The catalog decides; the reconciler creates missing replicas."""

import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

from pydantic import BaseModel

from db import catalog
from db.models import TopicRow
from db.primary import Primary
from db.stats_listings import LISTINGS
from myqueue.protocol import answers, internal, routes
from myqueue.protocol.errors import (
    InvalidRequest,
    MetadataUnavailable,
    MyQueueError,
    RouteNotFound,
    TopicExists,
    Unavailable,
)
from myqueue.protocol.internal import PartitionSpec, TopicRecord
from myqueue.protocol.limits import DEFAULT_PARTITIONS, DEFAULT_REPLICATION, topic_name_problem
from myqueue.protocol.models import AlterTopic, CreateTopic, Nothing, PutTopic
from myqueue.protocol.token import Token
from service.http_messages import HttpRequest, HttpResponse
from service.logs import Log
from service.router import Router
from write_manager.broker_commands import BrokerCommands
from write_manager.brokers import Brokers
from write_manager.metadata_cache import CachedPartition, CachedTopic, MetadataCache
from write_manager.replica_placement import place_replicas

CREATE_TIMEOUT_S = 3.0  # of all partitions of a new topic
CALLS_PER_BROKER = 5
REGISTRATION_WAIT_S = 2.0
REGISTRATION_POLL_S = 0.05


class Topics:
    def __init__(
        self,
        primary: Primary,
        cache: MetadataCache,
        brokers: Brokers,
        commands: BrokerCommands,
        log: Log,
        *,
        max_partitions: int,
        broker_timeout_s: float,
        check_verified: Callable[[], None],
    ) -> None:
        """`check_verified` raises while another write manager may have changed the catalog."""
        self._primary = primary
        self._cache = cache
        self._brokers = brokers
        self._commands = commands
        self._log = log
        self._max_partitions = max_partitions
        self._broker_timeout_s = broker_timeout_s
        self._check_verified = check_verified
        self._pool = ThreadPoolExecutor(16, thread_name_prefix="create")

    def create(self, request: CreateTopic) -> tuple[CachedTopic, Token | None]:
        self._await_registrations()
        with self._cache.changing():
            if request.name in self._cache.topics:
                self._check_verified()
                raise TopicExists()
            topic, token = self._create(request)
        self._create_partitions(topic)
        return topic, token

    def put(self, name: str, request: PutTopic) -> tuple[CachedTopic, Token | None, bool]:
        """The topic with these settings, and whether it is new."""
        if problem := topic_name_problem(name):
            raise InvalidRequest(problem)
        self._await_registrations()
        with self._cache.changing():
            topic = self._cache.topics.get(name)
            if topic is None:
                made, token = self._create(CreateTopic(name=name, **request.model_dump()))
        if topic is None:
            self._create_partitions(made)
            return made, token, True
        self._check_verified()
        wanted = (request.partitions, request.replication or topic.replication)
        if (*wanted, request.retention_ms, request.retention_bytes) != (
            len(topic.partitions),
            topic.replication,
            topic.retention_ms,
            topic.retention_bytes,
        ):
            raise TopicExists(
                "topic already exists with other settings; its retention can be changed with PATCH on the same path"
            )
        return topic, None, False

    def alter(self, name: str, request: AlterTopic) -> tuple[CachedTopic, Token | None]:
        """Stored also when nothing changes: whoever repeats a request needs a session token that shows its effect."""
        with self._cache.changing():
            topic = self._cache.topic(name)
            given = request.model_fields_set
            kept_ms = request.retention_ms if "retention_ms" in given else topic.retention_ms
            kept_bytes = request.retention_bytes if "retention_bytes" in given else topic.retention_bytes
            with self._primary.transaction() as transaction:
                if not catalog.set_retention(transaction.session, topic.topic_id, kept_ms, kept_bytes):
                    self._cache.in_doubt = True
                    raise MetadataUnavailable("PostgreSQL holds another version of the topic", outcome="not_written")
            topic.retention_ms, topic.retention_bytes = kept_ms, kept_bytes
        self._create_partitions(topic)  # those that are there take over the settings
        return topic, transaction.token

    def ensure(self, name: str) -> CachedTopic:
        """The topic, created with default settings if it is missing."""
        topic = self._cache.topics.get(name)
        if topic is not None:
            return topic
        self._await_registrations()
        with self._cache.changing():
            topic = self._cache.topics.get(name)
            if topic is not None:
                return topic
            made, _ = self._create(CreateTopic(name=name, partitions=DEFAULT_PARTITIONS))
        self._create_partitions(made)
        return made

    def _await_registrations(self) -> None:
        """Just after the start of this process, brokers register again with their next heartbeat."""
        deadline_s = time.monotonic() + REGISTRATION_WAIT_S
        while self._brokers.unreported_ids() and time.monotonic() < deadline_s:
            time.sleep(REGISTRATION_POLL_S)

    def _create(self, request: CreateTopic) -> tuple[CachedTopic, Token | None]:
        """In the catalog. The caller holds `changing`, and creates the replicas after it has released the lock."""
        # Only brokers that registered with this process: the stored incarnation of the others may be out of date.
        candidates = self._brokers.replicas()
        registered = self._brokers.registered_count()
        replication = request.replication or min(DEFAULT_REPLICATION, max(registered, 1))
        if replication > registered > 0:
            raise InvalidRequest(f"replication: {replication} needs as many brokers, {registered} are registered")
        if self._cache.partition_count() + request.partitions > self._max_partitions:
            raise InvalidRequest(f"partitions: the cluster may hold {self._max_partitions} in all")
        if len(candidates) < replication // 2 + 1:
            raise Unavailable(
                f"{len(candidates)} brokers are active, too few for {replication} replicas", outcome="not_written"
            )
        # With brokers away the topic starts on the others; the reconciler adds replicas when there are enough.
        leaders, replicas = self._cache.replica_counts()
        placed = place_replicas(
            request.partitions,
            min(replication, len(candidates)),
            {b: leaders[b] for b in candidates},
            {b: replicas[b] for b in candidates},
        )
        voters = [tuple((b, candidates[b].incarnation) for b in brokers) for brokers in placed]
        row = TopicRow(
            name=request.name,
            topic_id=uuid.uuid4(),
            replication=replication,
            retention_ms=request.retention_ms,
            retention_bytes=request.retention_bytes,
        )
        with self._primary.transaction() as transaction:
            catalog.insert_topic(transaction.session, row, voters)
            record = catalog.topic_record(transaction.session, request.name)
        assert record is not None
        return self._cache.add_topic(record, dict(enumerate(voters))), transaction.token

    def _create_partitions(self, topic: CachedTopic) -> None:
        """At the brokers, or their new settings. The reconciler does what cannot be done in time."""
        deadline_s = time.monotonic() + CREATE_TIMEOUT_S
        failed: set[int] = set()  # brokers that are not called again
        # The first initial voter of a partition campaigns at once, so its replica is created last.
        for first in (False, True):
            wanted: dict[int, deque[CachedPartition]] = {}
            for partition in topic.partitions:
                for broker_id in partition.replicas:
                    if (broker_id == partition.replicas[0]) == first:
                        wanted.setdefault(broker_id, deque()).append(partition)
            calls = [
                self._pool.submit(self._create_at, topic, broker_id, left, failed, deadline_s)
                for broker_id, left in wanted.items()
                for _ in range(min(CALLS_PER_BROKER, len(left)))
            ]
            wait(calls, timeout=max(0.0, deadline_s - time.monotonic()))
            if not_created := {broker_id: len(left) for broker_id, left in wanted.items() if left}:
                self._log.warning("partitions not created yet", topic=topic.name, by_broker=not_created)

    def _create_at(
        self, topic: CachedTopic, broker_id: int, left: deque[CachedPartition], failed: set[int], deadline_s: float
    ) -> None:
        while left and broker_id not in failed and (left_s := deadline_s - time.monotonic()) > 0:
            try:
                partition = left.popleft()
            except IndexError:  # another thread had the last one
                return
            if not self.create_replica(topic, partition, broker_id, min(left_s, self._broker_timeout_s)):
                failed.add(broker_id)

    def create_replica(
        self, topic: CachedTopic, partition: CachedPartition, broker_id: int, timeout_s: float | None = None
    ) -> bool:
        """False when the broker did not answer: the reconciler tries again."""
        endpoint = self._brokers.endpoint(broker_id)
        if endpoint is None:
            return False
        spec: PartitionSpec = {
            "topic": topic.name,
            "founders": [{"broker_id": b, "incarnation": incarnation} for b, incarnation in partition.initial_voters],
            "retention_ms": topic.retention_ms,
            "retention_bytes": topic.retention_bytes,
        }
        try:
            self._commands.send(
                internal.CREATE_PARTITION,
                endpoint,
                topic.topic_id,
                partition.partition_id,
                spec,
                timeout_s=timeout_s or self._broker_timeout_s,
            )
        except MyQueueError as error:
            self._log.warning(
                "partition not created yet", topic=topic.name, partition=partition.partition_id, why=error.message
            )
            return False
        return True

    def delete(self, name: str) -> Token | None:
        """Deleted from the catalog at once; the reconciler deletes the replicas in its next rounds."""
        with self._cache.changing():
            self._cache.topic(name)
            with self._primary.transaction() as transaction:
                catalog.delete_topic(transaction.session, name)
            self._cache.remove_topic(name)
        return transaction.token

    def record(self, name: str) -> TopicRecord:
        topic = self._cache.topic(name)
        return {
            "name": topic.name,
            "topic_id": str(topic.topic_id),
            "replication": topic.replication,
            "retention_ms": topic.retention_ms,
            "retention_bytes": topic.retention_bytes,
            "partitions": [
                {
                    "partition_id": p.partition_id,
                    "broker_id": p.leader,
                    "endpoints": self._brokers.endpoints(p.leader, p.replicas),
                    "term": p.term,
                    "replicas": list(p.replicas),
                    "beginning_offset": p.beginning_offset,
                    "end_offset": p.end_offset,
                    "size_bytes": p.size_bytes,
                    "damaged": [{"broker_id": b, "reason": why} for b, why in p.damaged.items()],
                    "voters": p.voters,
                }
                for p in topic.partitions
            ],
        }


def add_topic_routes(router: Router, topics: Topics) -> None:
    """On threads."""

    def create_topic(request: HttpRequest) -> HttpResponse:
        topic, token = topics.create(request.parse_json(CreateTopic))
        body = answers.TopicCreated(
            message=f"topic {topic.name} created with {len(topic.partitions)} partitions",
            partitions=list(topic.partition_ids),
        )
        return HttpResponse.json(body, 201, session_token=token)

    def put_topic(request: HttpRequest) -> HttpResponse:
        topic, token, new = topics.put(request.path_values["topic"], request.parse_json(PutTopic))
        return HttpResponse.json(_description(topic), 201 if new else 200, session_token=token)

    def alter_topic(request: HttpRequest) -> HttpResponse:
        topic, token = topics.alter(request.path_topic(), request.parse_json(AlterTopic))
        return HttpResponse.json(_description(topic), session_token=token)

    def delete_topic(request: HttpRequest) -> HttpResponse:
        request.parse_query(Nothing)
        name = request.path_values["topic"]
        token = topics.delete(name)
        return HttpResponse.json(answers.Done(message=f"topic {name} deleted"), session_token=token)

    router.add(routes.CREATE_TOPIC, create_topic)
    router.add(routes.PUT_TOPIC, put_topic)
    router.add(routes.ALTER_TOPIC, alter_topic)
    router.add(routes.DELETE_TOPIC, delete_topic)


def _description(topic: CachedTopic) -> answers.TopicDescription:
    return answers.TopicDescription(
        topic=topic.name,
        topic_id=str(topic.topic_id),
        partitions=len(topic.partitions),
        replication=topic.replication,
        retention_ms=topic.retention_ms,
        retention_bytes=topic.retention_bytes,
    )


def add_catalog_routes(
    router: Router, topics: Topics, cache: MetadataCache, primary: Primary, check_verified: Callable[[], None]
) -> None:
    """For read managers whose standby does not answer or is behind. Internal, on threads.

    A request with a session token may have to show what another write manager has stored meanwhile.
    """

    def answer(request: HttpRequest, body: Mapping[str, Any] | BaseModel) -> HttpResponse:
        if request.session_token() is not None:
            check_verified()  # after the catalog was read
        return HttpResponse.json(body)

    def list_topics(request: HttpRequest) -> HttpResponse:
        return answer(request, {"status": "success", "topics": sorted(cache.topics)})

    def topic(request: HttpRequest) -> HttpResponse:
        return answer(request, topics.record(request.path_values["topic"]))

    def listing(request: HttpRequest) -> HttpResponse:
        found = LISTINGS.get(request.path_values["name"])
        if found is None:
            raise RouteNotFound()
        query = request.parse_query(found.query)
        with primary.reading() as session:
            return answer(request, found.read(session, query))

    router.add(internal.CATALOG_TOPICS, list_topics)
    router.add(internal.CATALOG_TOPIC, topic)
    router.add(internal.LISTING, listing)
