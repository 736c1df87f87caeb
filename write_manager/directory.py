"""The catalog in memory: what every request looks up. The only writer keeps it equal to PostgreSQL.

All topics are here, and of producers and consumers those in use. Look-ups of topics need no lock: entries are added
whole and never half-changed. Who changes topics or brokers holds `changing` around the decision and its transaction,
and waits for nothing else under it.
"""

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from uuid import UUID

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from db import catalog, registrations
from db.catalog import Founder
from db.primary import Primary
from db.registrations import ConsumerIdentity, ProducerIdentity
from myqueue.protocol.errors import MetadataUnavailable, PartitionNotFound, TopicNotFound
from myqueue.protocol.internal import Configuration, TopicRecord
from write_manager.identities import Identities
from write_manager.placement import RoundRobin

STAMPS_A_TTL = 20  # of the last use of one without a name, at most


@dataclass(slots=True)
class Partition:
    partition_id: int
    leader: int | None
    term: int
    replicas: tuple[int, ...]  # brokers that are to hold it, the first to lead if it can
    founders: tuple[Founder, ...]
    configuration: Configuration | None = None  # as its leader last reported
    beginning_offset: int = 0
    end_offset: int = 0  # a lower bound: what is committed stays committed
    size_bytes: int = 0

    def learn_bounds(self, beginning_offset: int, end_offset: int) -> None:
        """News may arrive late; neither end of a log ever goes back."""
        self.beginning_offset = max(self.beginning_offset, beginning_offset)
        self.end_offset = max(self.end_offset, end_offset)

    def found(self, founders: tuple[Founder, ...]) -> None:
        """Another log under the same name: nothing that was known of the one before holds for it."""
        self.founders = founders
        self.leader, self.configuration = None, None
        self.term = self.beginning_offset = self.end_offset = self.size_bytes = 0


@dataclass(slots=True)
class Topic:
    name: str
    topic_id: UUID
    replication: int
    retention_ms: int | None
    retention_bytes: int | None
    partitions: list[Partition]
    turns: RoundRobin = field(default_factory=RoundRobin)

    @property
    def partition_ids(self) -> range:
        return range(len(self.partitions))

    def partition(self, partition_id: int) -> Partition:
        if partition_id >= len(self.partitions):
            raise PartitionNotFound()
        return self.partitions[partition_id]


class Directory:
    def __init__(self, producers: Identities[ProducerIdentity], consumers: Identities[ConsumerIdentity]) -> None:
        self.topics: dict[str, Topic] = {}
        self.topics_by_id: dict[str, Topic] = {}
        self.producers = producers
        self.consumers = consumers
        self.loaded_s = 0.0  # when this process began to decide, by its monotonic clock
        self.first_new_consumer = 0  # consumers below this were registered before
        self.deleted: set[str] = set()  # ids of topics whose data brokers may delete
        self.unsure = False  # a change had an unknown outcome: PostgreSQL may hold more than is known here
        self._changing = threading.Lock()

    @contextmanager
    def changing(self, primary: Primary) -> Iterator[None]:
        if not self._changing.acquire(timeout=1.5):
            raise MetadataUnavailable("other changes of the catalog are taking too long", outcome="not_written")
        try:
            if self.unsure:
                self._catch_up(primary)
            yield
        except MetadataUnavailable as error:
            if error.outcome == "unknown":
                self.unsure = True
            raise
        except IntegrityError as error:
            # A row that is not known here was stored late, by a change whose outcome was unknown.
            self.unsure = True
            raise MetadataUnavailable("the catalog is not known for sure right now", outcome="not_written") from error
        finally:
            self._changing.release()

    def _catch_up(self, primary: Primary) -> None:
        """What a change of unknown outcome stored may be relied on: it is read only when a standby has it too."""
        try:
            with primary.reading() as session:
                self.load(session)
        except MetadataUnavailable as error:
            raise MetadataUnavailable(error.message, outcome="not_written") from error
        self.unsure = False

    def load(self, session: Session) -> None:
        """Adds what is not known yet; a change of unknown outcome may also have stored other replicas and founders."""
        self.deleted |= catalog.deleted_topics(session)
        for name in [n for n, topic in self.topics.items() if str(topic.topic_id) in self.deleted]:
            self.remove_topic(name)
        records = catalog.topic_records(session)
        all_founders = catalog.founders(session)
        for record in records:
            founders = all_founders.get(record["name"])
            if founders is None:
                continue  # deleted between the two queries
            known = self.topics.get(record["name"])
            if known is None:
                self.add_topic(record, founders)
                continue
            for partition, stored in zip(known.partitions, record["partitions"], strict=True):
                partition.replicas = tuple(stored["replicas"])
                if partition.founders != founders[partition.partition_id]:
                    partition.found(founders[partition.partition_id])

    def topic(self, name: str) -> Topic:
        topic = self.topics.get(name)
        if topic is None:
            raise TopicNotFound()
        return topic

    def add_topic(self, record: TopicRecord, founders: Mapping[int, tuple[Founder, ...]]) -> Topic:
        topic = Topic(
            record["name"],
            UUID(record["topic_id"]),
            record["replication"],
            record["retention_ms"],
            record["retention_bytes"],
            [
                # Reported offsets are history here: a leader confirms its own before they count as known.
                Partition(
                    p["partition_id"], p["broker_id"], p["term"], tuple(p["replicas"]), founders[p["partition_id"]]
                )
                for p in record["partitions"]
            ],
        )
        self.topics[topic.name] = self.topics_by_id[str(topic.topic_id)] = topic
        return topic

    def remove_topic(self, name: str) -> None:
        topic = self.topics.pop(name)
        self.deleted.add(str(topic.topic_id))
        del self.topics_by_id[str(topic.topic_id)]

    async def has_producer(self, topic: Topic, producer_id: int) -> bool:
        producer = self.producers.cached(producer_id) or await self.producers.find(producer_id)
        return producer is not None and producer.topic_id == topic.topic_id

    async def consumer(self, consumer_id: int) -> ConsumerIdentity | None:
        """None also when its topic was deleted."""
        consumer = self.consumers.cached(consumer_id) or await self.consumers.find(consumer_id)
        if consumer is None:
            return None
        topic = self.topics.get(consumer.topic)
        return consumer if topic is not None and topic.topic_id == consumer.topic_id else None

    def partition_total(self) -> int:
        return sum(len(topic.partitions) for topic in self.topics.values())


def metadata_cache(primary: Primary, *, nameless_ttl_s: float) -> Directory:
    threads = ThreadPoolExecutor(4, thread_name_prefix="look-ups")

    def producer(producer_id: int) -> tuple[ProducerIdentity, float] | None:
        with primary.reading() as session:
            return registrations.producer(session, producer_id)

    def consumer(consumer_id: int) -> tuple[ConsumerIdentity, float] | None:
        with primary.reading() as session:
            return registrations.consumer(session, consumer_id)

    stamp_after_s = nameless_ttl_s / STAMPS_A_TTL
    return Directory(
        Identities(producer, threads, stamp_after_s=stamp_after_s),
        Identities(consumer, threads, stamp_after_s=stamp_after_s),
    )
