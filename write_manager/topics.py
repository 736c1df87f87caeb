"""Topics: creating them, and making brokers hold what the catalog says."""

import time
import uuid
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from uuid import UUID

from db import catalog, cursors
from db.catalog import Founder
from db.models import TopicRow
from db.primary import Primary
from myqueue.protocol.errors import InvalidRequest, MetadataUnavailable, MyQueueError, TopicExists, Unavailable
from myqueue.protocol.internal import PartitionSpec, TopicRecord
from myqueue.protocol.limits import DEFAULT_PARTITIONS, DEFAULT_REPLICATION, topic_name_problem
from myqueue.protocol.models import CreateTopic, PutTopic
from myqueue.protocol.token import Token
from service.logs import Log
from write_manager.broker_calls import BrokerCalls
from write_manager.directory import Directory, Partition, Topic
from write_manager.membership import Membership
from write_manager.placement import place

CREATE_TIMEOUT_S = 3.0  # of all partitions of a new topic
CALLS_A_BROKER = 5
REGISTRATION_WAIT_S = 2.0
REGISTRATION_LOOK_S = 0.05


class Topics:
    def __init__(
        self,
        primary: Primary,
        directory: Directory,
        members: Membership,
        calls: BrokerCalls,
        log: Log,
        *,
        max_partitions: int,
        broker_timeout_s: float,
        restart_cursors: Callable[[UUID, int], None] = lambda *_: None,
    ) -> None:
        """`restart_cursors` brings the cursors in memory in line with a log that begins again."""
        self._primary = primary
        self._directory = directory
        self._members = members
        self._calls = calls
        self._log = log
        self._max_partitions = max_partitions
        self._broker_timeout_s = broker_timeout_s
        self._restart_cursors = restart_cursors
        self._pool = ThreadPoolExecutor(16, thread_name_prefix="create")

    def create(self, request: CreateTopic) -> tuple[Topic, Token | None]:
        self._await_registrations()
        with self._directory.changing(self._primary):
            if request.name in self._directory.topics:
                raise TopicExists()
            topic, token = self._create(request)
        self._create_partitions(topic)
        return topic, token

    def put(self, name: str, request: PutTopic) -> tuple[Topic, Token | None, bool]:
        """The topic with these settings, and whether it is new."""
        if problem := topic_name_problem(name):
            raise InvalidRequest(problem)
        self._await_registrations()
        with self._directory.changing(self._primary):
            topic = self._directory.topics.get(name)
            if topic is None:
                made, token = self._create(CreateTopic(name=name, **request.model_dump()))
        if topic is None:
            self._create_partitions(made)
            return made, token, True
        asked = (request.partitions, request.replication or topic.replication)
        if (*asked, request.retention_ms, request.retention_bytes) != (
            len(topic.partitions),
            topic.replication,
            topic.retention_ms,
            topic.retention_bytes,
        ):
            raise TopicExists("topic already exists with other settings")
        return topic, None, False

    def ensure(self, name: str) -> Topic:
        """The topic, made with default settings if it is missing."""
        topic = self._directory.topics.get(name)
        if topic is not None:
            return topic
        self._await_registrations()
        with self._directory.changing(self._primary):
            topic = self._directory.topics.get(name)
            if topic is not None:
                return topic
            made, _ = self._create(CreateTopic(name=name, partitions=DEFAULT_PARTITIONS))
        self._create_partitions(made)
        return made

    def _await_registrations(self) -> None:
        """In the first moments of this process brokers that were there before register again, one heartbeat later."""
        deadline_s = time.monotonic() + REGISTRATION_WAIT_S
        while self._members.live().keys() - self._members.holdings().keys() and time.monotonic() < deadline_s:
            time.sleep(REGISTRATION_LOOK_S)

    def _create(self, request: CreateTopic) -> tuple[Topic, Token | None]:
        """In the catalog. The caller holds `changing`, and makes brokers hold it when the lock is free again."""
        # Those that registered with this process: of the others the incarnation may be one that is no more.
        holdings = self._members.holdings()
        live = {broker_id: e for broker_id, e in self._members.live().items() if broker_id in holdings}
        registered = self._members.registered_count()
        replication = request.replication or min(DEFAULT_REPLICATION, max(registered, 1))
        if replication > registered > 0:
            raise InvalidRequest(f"replication: {replication} needs as many brokers, {registered} are registered")
        if self._directory.partition_total() + request.partitions > self._max_partitions:
            raise InvalidRequest(f"partitions: the cluster may hold {self._max_partitions} in all")
        if len(live) < replication // 2 + 1:
            raise Unavailable(
                f"{len(live)} brokers are active, too few for {replication} replicas", outcome="not_written"
            )
        # With brokers away the topic starts on the others; the reconciler adds replicas when there are enough.
        leaders, replicas = self._load()
        placed = place(
            request.partitions,
            min(replication, len(live)),
            {b: leaders[b] for b in live},
            {b: replicas[b] for b in live},
        )
        founders = [tuple((b, holdings[b].incarnation) for b in brokers) for brokers in placed]
        row = TopicRow(
            name=request.name,
            topic_id=uuid.uuid4(),
            replication=replication,
            retention_ms=request.retention_ms,
            retention_bytes=request.retention_bytes,
        )
        with self._primary.transaction() as transaction:
            catalog.insert_topic(transaction.session, row, founders)
            record = catalog.topic_record(transaction.session, request.name)
        assert record is not None
        return self._directory.add_topic(record, dict(enumerate(founders))), transaction.token

    def _create_partitions(self, topic: Topic) -> None:
        """At the brokers. What cannot be done in time is done by the reconciler."""
        deadline_s = time.monotonic() + CREATE_TIMEOUT_S
        failed: set[int] = set()  # brokers that are not asked again
        # The first founder of a partition asks for votes at once, so the others must be there before it.
        for first in (False, True):
            wanted: dict[int, deque[Partition]] = {}
            for partition in topic.partitions:
                for broker_id in partition.replicas:
                    if (broker_id == partition.replicas[0]) == first:
                        wanted.setdefault(broker_id, deque()).append(partition)
            calls = [
                self._pool.submit(self._create_at, topic, broker_id, left, failed, deadline_s)
                for broker_id, left in wanted.items()
                for _ in range(min(CALLS_A_BROKER, len(left)))
            ]
            wait(calls, timeout=max(0.0, deadline_s - time.monotonic()))
            if not_created := {broker_id: len(left) for broker_id, left in wanted.items() if left}:
                self._log.warning("partitions not created yet", topic=topic.name, by_broker=not_created)

    def _create_at(
        self, topic: Topic, broker_id: int, left: deque[Partition], failed: set[int], deadline_s: float
    ) -> None:
        while left and broker_id not in failed and (left_s := deadline_s - time.monotonic()) > 0:
            try:
                partition = left.popleft()
            except IndexError:  # another thread had the last one
                return
            if not self.hold(topic, partition, broker_id, min(left_s, self._broker_timeout_s)):
                failed.add(broker_id)

    def delete(self, name: str) -> Token | None:
        """Gone from the catalog at once; brokers delete what they hold of it within the next rounds."""
        with self._directory.changing(self._primary):
            self._directory.topic(name)
            with self._primary.transaction() as transaction:
                catalog.delete_topic(transaction.session, name)
            self._directory.remove_topic(name)
        return transaction.token

    def can_widen(self, topic: Topic, partition: Partition) -> bool:
        is_narrow = len(partition.replicas) < topic.replication
        return is_narrow and self._is_there(topic) and bool(self._members.live().keys() - partition.replicas)

    def _is_there(self, topic: Topic) -> bool:
        return self._directory.topics_by_id.get(str(topic.topic_id)) is topic

    def widen(self, topic: Topic, partition: Partition) -> None:
        """One more replica for a partition that was made while brokers were away.

        Decided inside `changing`, which reads the stored replicas again after a change of unknown outcome.
        """
        with self._directory.changing(self._primary):
            if not self.can_widen(topic, partition):
                return
            _, held = self._load()
            expected = partition.replicas
            chosen = min(self._members.live().keys() - expected, key=lambda b: (held[b], b))
            with self._primary.transaction() as transaction:
                done = catalog.set_replicas(
                    transaction.session, topic.topic_id, partition.partition_id, expected, (*expected, chosen)
                )
            self._must_be(done)
            partition.replicas = (*expected, chosen)

    def found_again(
        self, topic: Topic, partition: Partition, expected: tuple[Founder, ...], founders: tuple[Founder, ...]
    ) -> None:
        """All replicas have lost their data: the partition begins again, empty, with these members."""
        # Before and after: a cursor of the old log that is stored in between must not outlive this, whatever becomes of
        # the transaction. Nothing of the old log is left to be skipped.
        self._restart_cursors(topic.topic_id, partition.partition_id)
        try:
            with self._members.storing(), self._directory.changing(self._primary):
                if partition.founders != expected or not self._is_there(topic):
                    return  # an earlier attempt did it, or the topic was deleted
                with self._primary.transaction() as transaction:
                    done = catalog.found_again(
                        transaction.session, topic.topic_id, partition.partition_id, expected, founders
                    )
                    cursors.restart(transaction.session, topic.topic_id, partition.partition_id)
                self._must_be(done)
                partition.found(founders)
        finally:
            self._restart_cursors(topic.topic_id, partition.partition_id)
        self._log.error(
            "all replicas have lost their data; the partition begins again, empty",
            topic=topic.name,
            partition=partition.partition_id,
        )

    def _must_be(self, done: bool) -> None:
        if not done:
            self._directory.unsure = True
            raise MetadataUnavailable("PostgreSQL holds another version of the partition", outcome="not_written")

    def _load(self) -> tuple[Counter[int], Counter[int]]:
        leaders: Counter[int] = Counter()
        replicas: Counter[int] = Counter()
        for topic in list(self._directory.topics.values()):
            for partition in topic.partitions:
                replicas.update(partition.replicas)
                leaders.update(partition.replicas[:1])
        return leaders, replicas

    def hold(self, topic: Topic, partition: Partition, broker_id: int, timeout_s: float | None = None) -> bool:
        """A broker that does not answer gets its partition later, from the reconciler: the catalog is what counts."""
        endpoint = self._members.endpoint(broker_id)
        if endpoint is None:
            return False
        spec: PartitionSpec = {
            "topic": topic.name,
            "founders": [{"broker_id": b, "incarnation": incarnation} for b, incarnation in partition.founders],
            "retention_ms": topic.retention_ms,
            "retention_bytes": topic.retention_bytes,
        }
        try:
            self._calls.create_partition(
                endpoint, topic.topic_id, partition.partition_id, spec, timeout_s or self._broker_timeout_s
            )
        except MyQueueError as error:
            self._log.warning(
                "partition not created yet", topic=topic.name, partition=partition.partition_id, why=error.message
            )
            return False
        return True

    def catch_up(self) -> None:
        """Without waiting for the next change: what a change of unknown outcome stored is to be usable soon."""
        try:
            with self._directory.changing(self._primary):
                self._log.info("caught up with PostgreSQL")
        except MyQueueError as error:
            self._log.warning("not caught up with PostgreSQL yet", why=error.message)

    def record(self, name: str) -> TopicRecord:
        topic = self._directory.topic(name)
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
                    "endpoints": self._members.endpoints(p.leader, p.replicas),
                    "term": p.term,
                    "replicas": list(p.replicas),
                    "beginning_offset": p.beginning_offset,
                    "end_offset": p.end_offset,
                    "size_bytes": p.size_bytes,
                }
                for p in topic.partitions
            ],
        }
