"""The metadata cache: the catalog in memory, for look-ups by every request. Its one writer keeps it up to date.

It holds all topics, and the producers and consumers in use. Look-ups of topics need no lock: entries are added whole
and never half-changed. A change of topics or partitions holds `changing` around the decision and its transaction, and
waits for nothing else under it.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from uuid import UUID

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from db import catalog, registrations
from db.catalog import Voter
from db.primary import Primary
from db.registrations import ConsumerIdentity, ProducerIdentity
from myqueue.protocol.errors import MetadataUnavailable, PartitionNotFound, TopicNotFound
from myqueue.protocol.internal import Configuration, TopicRecord
from write_manager.identity_cache import IdentityCache

CHANGE_LOCK_S = 1.5
STAMPS_PER_TTL = 20  # how often the last use of a nameless producer or consumer is stored, at most


@dataclass(slots=True)
class CachedPartition:
    partition_id: int
    leader: int | None
    term: int
    replicas: tuple[int, ...]  # brokers that are to hold it, the preferred leader first
    initial_voters: tuple[Voter, ...]
    configuration: Configuration | None = None  # as its leader last reported
    beginning_offset: int = 0
    end_offset: int = 0  # a lower bound of the high watermark: what is committed stays committed
    size_bytes: int = 0
    damaged: dict[int, str] = field(default_factory=dict)  # why, by broker; replaced, never changed
    voters: list[int] | None = None  # brokers whose replica votes, as last reported; replaced, never changed

    def learn_bounds(self, beginning_offset: int, end_offset: int) -> None:
        """Reports may arrive late; neither end of a log ever goes back."""
        self.beginning_offset = max(self.beginning_offset, beginning_offset)
        self.end_offset = max(self.end_offset, end_offset)

    def reset(self, initial_voters: tuple[Voter, ...]) -> None:
        """Another log under the same name: nothing that was known of the one before holds for it."""
        self.initial_voters = initial_voters
        self.leader = self.configuration = self.voters = None
        self.term = self.beginning_offset = self.end_offset = self.size_bytes = 0


@dataclass(slots=True)
class CachedTopic:
    name: str
    topic_id: UUID
    replication: int
    retention_ms: int | None
    retention_bytes: int | None
    partitions: list[CachedPartition]
    cached_s: float = field(default_factory=time.monotonic)
    _rotation: Iterator[int] = field(default_factory=count)

    @property
    def partition_ids(self) -> range:
        return range(len(self.partitions))

    def partition(self, partition_id: int) -> CachedPartition:
        if partition_id >= len(self.partitions):
            raise PartitionNotFound(details={"partition_id": partition_id})
        return self.partitions[partition_id]

    def next_partition(self) -> CachedPartition:
        """Round robin."""
        return self.partitions[next(self._rotation) % len(self.partitions)]


class MetadataCache:
    def __init__(
        self, primary: Primary, *, nameless_ttl_s: float, is_verified: Callable[[], bool] = lambda: True
    ) -> None:
        """`is_verified`: no other write manager can have changed the catalog."""
        self._primary = primary
        self._is_verified = is_verified
        self.topics: dict[str, CachedTopic] = {}
        self.topics_by_id: dict[str, CachedTopic] = {}
        threads = ThreadPoolExecutor(4, thread_name_prefix="look-ups")
        stamp_after_s = nameless_ttl_s / STAMPS_PER_TTL
        self.producers = IdentityCache(self._read_producer, threads, stamp_after_s=stamp_after_s)
        self.consumers = IdentityCache(self._read_consumer, threads, stamp_after_s=stamp_after_s)
        self.activated_s = 0.0  # when this process became active, by its monotonic clock
        self.leases_from_s = 0.0  # before this, members may hold leases of an earlier write manager
        self.first_new_consumer_id = 0  # consumers below this were registered with an earlier write manager
        self.deleted_topic_ids: set[str] = set()  # brokers may delete their data
        self.in_doubt = False  # a change had an unknown outcome: PostgreSQL may hold more than is known here
        self._changing = threading.Lock()

    def _read_producer(self, producer_id: int) -> tuple[ProducerIdentity, float] | None:
        with self._primary.reading() as session:
            return registrations.producer(session, producer_id)

    def _read_consumer(self, consumer_id: int) -> tuple[ConsumerIdentity, float] | None:
        with self._primary.reading() as session:
            return registrations.consumer(session, consumer_id)

    @contextmanager
    def changing(self) -> Iterator[None]:
        if not self._changing.acquire(timeout=CHANGE_LOCK_S):
            raise MetadataUnavailable("other changes of the catalog are taking too long", outcome="not_written")
        try:
            if self.in_doubt:
                self._resolve_doubt()
            yield
        except MetadataUnavailable as error:
            if error.outcome == "unknown":
                self.in_doubt = True
            raise
        except IntegrityError as error:
            # A row that is not known here was stored late, by a change whose outcome was unknown.
            self.in_doubt = True
            raise MetadataUnavailable("the catalog is not known for sure right now", outcome="not_written") from error
        finally:
            self._changing.release()

    def _resolve_doubt(self) -> None:
        """Rows of a change of unknown outcome count once they are read: they are read only when a standby has them."""
        try:
            with self._primary.reading() as session:
                self.load(session)
        except MetadataUnavailable as error:
            raise MetadataUnavailable(error.message, outcome="not_written") from error
        self.in_doubt = False

    def load(self, session: Session) -> None:
        """Add unknown topics. A change of unknown outcome may also have stored another retention, other replicas and
        initial voters."""
        self.deleted_topic_ids |= catalog.deleted_topics(session)
        for name in [n for n, topic in self.topics.items() if str(topic.topic_id) in self.deleted_topic_ids]:
            self.remove_topic(name)
        records = catalog.topic_records(session)
        all_voters = catalog.initial_voters(session)
        for record in records:
            voters = all_voters.get(record["name"])
            if voters is None:
                continue  # deleted between the two queries
            known = self.topics.get(record["name"])
            if known is None:
                self.add_topic(record, voters)
                continue
            known.retention_ms, known.retention_bytes = record["retention_ms"], record["retention_bytes"]
            for partition, stored in zip(known.partitions, record["partitions"], strict=True):
                partition.replicas = tuple(stored["replicas"])
                if partition.initial_voters != voters[partition.partition_id]:
                    partition.reset(voters[partition.partition_id])

    def topic(self, name: str) -> CachedTopic:
        topic = self.topics.get(name)
        if topic is None:
            self.check_certain("the topic", from_memory=True)
            raise TopicNotFound()
        return topic

    def check_certain(self, what: str, *, from_memory: bool = False) -> None:
        """Before something is said not to exist, because memory or PostgreSQL does not have it."""
        if not self._is_verified() or (from_memory and self.in_doubt):
            raise MetadataUnavailable(f"whether {what} exists is not known right now", outcome="not_written")

    def has_topic(self, topic: CachedTopic) -> bool:
        """False when it was deleted, also when another topic has its name by now."""
        return self.topics_by_id.get(str(topic.topic_id)) is topic

    def add_topic(self, record: TopicRecord, voters: Mapping[int, tuple[Voter, ...]]) -> CachedTopic:
        topic = CachedTopic(
            record["name"],
            UUID(record["topic_id"]),
            record["replication"],
            record["retention_ms"],
            record["retention_bytes"],
            [
                # Stored offsets are not taken over: a leader confirms its own before they count as known.
                CachedPartition(
                    p["partition_id"],
                    p["broker_id"],
                    p["term"],
                    tuple(p["replicas"]),
                    voters[p["partition_id"]],
                    damaged={each["broker_id"]: each["reason"] for each in p.get("damaged", [])},
                    voters=p.get("voters"),
                )
                for p in record["partitions"]
            ],
        )
        self.topics[topic.name] = self.topics_by_id[str(topic.topic_id)] = topic
        return topic

    def remove_topic(self, name: str) -> None:
        topic = self.topics.pop(name)
        self.deleted_topic_ids.add(str(topic.topic_id))
        del self.topics_by_id[str(topic.topic_id)]

    async def has_producer(self, topic: CachedTopic, producer_id: int) -> bool:
        producer = self.producers.cached(producer_id) or await self.producers.find(producer_id)
        if producer is None:
            self.check_certain("the producer")
        return producer is not None and producer.topic_id == topic.topic_id

    async def consumer(self, consumer_id: int) -> ConsumerIdentity | None:
        """None also when its topic was deleted."""
        consumer = self.consumers.cached(consumer_id) or await self.consumers.find(consumer_id)
        topic = None if consumer is None else self.topics.get(consumer.topic)
        if consumer is None or topic is None or topic.topic_id != consumer.topic_id:
            self.check_certain("the consumer", from_memory=consumer is not None)
            return None
        return consumer

    def partition_count(self) -> int:
        return sum(len(topic.partitions) for topic in self.topics.values())

    def replica_counts(self) -> tuple[Counter[int], Counter[int]]:
        """How many partitions each broker is the preferred leader of, and how many replicas it holds."""
        leaders: Counter[int] = Counter()
        replicas: Counter[int] = Counter()
        for topic in list(self.topics.values()):
            for partition in topic.partitions:
                replicas.update(partition.replicas)
                leaders.update(partition.replicas[:1])
        return leaders, replicas
