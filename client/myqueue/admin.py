"""Admin: topics, registrations and health of a cluster."""

from datetime import datetime
from enum import Enum
from typing import Any, Self

from myqueue.client_reprs import shown
from myqueue.descriptions import (
    Bounds,
    ClusterInfo,
    ConsumerInfo,
    ExplainedConsumer,
    Lag,
    PartitionInfo,
    Readiness,
    TopicInfo,
    WorstLag,
    cluster_info,
    consumer_info,
    explained_consumer,
    lag_of,
    partition_info,
    topic_info,
    worst_lag,
)
from myqueue.protocol import routes
from myqueue.protocol.errors import ConsumerNotFound, InvalidRequest, NoTopics, TopicExists, TopicNotFound
from myqueue.protocol.limits import DEFAULT_PAGE, DEFAULT_PARTITIONS, MAX_PAGE, STAGING_PREFIX
from myqueue.simple_api import SimpleApi
from myqueue.start_position import Start, seek_position, timestamp_ms
from myqueue.transport import DEFAULT_RETRY, DEFAULT_TIMEOUTS, RetryPolicy, Timeouts, Transport

SHOWN_TOPICS = 5


class Unchanged(Enum):
    """The type of UNCHANGED: a setting that is not given, where None means that there is none."""

    UNCHANGED = "unchanged"


UNCHANGED = Unchanged.UNCHANGED


class Admin:
    """May be shared by threads."""

    def __init__(
        self, url: str | None = None, *, retry: RetryPolicy = DEFAULT_RETRY, timeouts: Timeouts = DEFAULT_TIMEOUTS
    ) -> None:
        """`url`: without it, what the variable MYQUEUE_URL says, or `http://localhost`; so in every client."""
        self._transport = Transport(url, timeouts=timeouts, retry=retry)
        self._api = SimpleApi(self._transport)

    def __repr__(self) -> str:
        return shown("Admin", "closed" if self._transport.is_closed else "open", url=self._transport.url)

    def create_topic(
        self,
        name: str,
        partitions: int = DEFAULT_PARTITIONS,
        replication: int | None = None,
        retention_ms: int | None = None,
        retention_bytes: int | None = None,
    ) -> list[int]:
        """The new topic's partitions; TopicExists if there is one of that name.

        If the connection broke while it was being created, the topic that is then found counts as the new one when it
        has the partitions and replicas that were asked for.
        """
        try:
            body = self._api.create_topic(name, partitions, replication, retention_ms, retention_bytes)
        except TopicExists as error:
            if error.outcome == "not_written":
                raise
            found = self.partitions(name)
            if len(found) != partitions or (replication and any(len(p.replicas) != replication for p in found)):
                raise
            return [partition.partition for partition in found]
        return list(body["partitions"])

    def ensure_topic(
        self,
        name: str,
        partitions: int = DEFAULT_PARTITIONS,
        replication: int | None = None,
        retention_ms: int | None = None,
        retention_bytes: int | None = None,
    ) -> TopicInfo:
        """The topic, new or as it is; TopicExists if it has other settings than these."""
        settings = {
            "partitions": partitions,
            "replication": replication,
            "retention_ms": retention_ms,
            "retention_bytes": retention_bytes,
        }
        given = {setting: value for setting, value in settings.items() if value is not None}
        return topic_info(self._transport.call(routes.PUT_TOPIC, path={"topic": name}, body=given).body)

    def describe_topic(self, name: str) -> TopicInfo:
        return topic_info(self._transport.call(routes.DESCRIBE_TOPIC, path={"topic": name}).body)

    def alter_topic(
        self,
        name: str,
        *,
        retention_ms: int | Unchanged | None = UNCHANGED,
        retention_bytes: int | Unchanged | None = UNCHANGED,
    ) -> TopicInfo:
        """Changes the retention that is given; None removes a limit. Brokers delete by it within a second or so."""
        given = {"retention_ms": retention_ms, "retention_bytes": retention_bytes}
        body = {setting: value for setting, value in given.items() if not isinstance(value, Unchanged)}
        if not body:
            raise InvalidRequest("give retention_ms, retention_bytes or both; None removes a limit")
        return topic_info(self._transport.call(routes.ALTER_TOPIC, path={"topic": name}, body=body).body)

    def delete_topic(self, name: str) -> None:
        """With its messages, producers and consumers."""
        try:
            self._transport.call(routes.DELETE_TOPIC, path={"topic": name})
        except TopicNotFound as error:
            if error.outcome == "not_written":
                raise
            # An earlier attempt, whose response was lost, has deleted it.

    def list_topics(self, *, internal: bool = False) -> list[str]:
        """`internal`: with the topics in which Spark's streams stage what they write (`_staged.…`)."""
        try:
            names: list[str] = self._api.list_topics()["topics"]
        except NoTopics:
            return []
        return [name for name in names if internal or not name.startswith(STAGING_PREFIX)]

    def partitions(self, topic: str) -> list[PartitionInfo]:
        return [partition_info(entry) for entry in self._api.list_partitions(topic)["partitions"]]

    def offsets(self, topic: str) -> dict[int, Bounds]:
        """Where each partition begins and ends, from its leader."""
        body = self._transport.call(routes.TOPIC_OFFSETS, path={"topic": topic}).body
        return {
            int(entry["partition_id"]): Bounds(entry["beginning_offset"], entry["end_offset"])
            for entry in body["partitions"]
        }

    def offset_at(self, topic: str, partition: int, timestamp: int | datetime) -> int:
        """The first offset that was appended at this time or later; the end if there is none yet.

        The time is a datetime, or in ms since 1970.
        """
        moment = timestamp_ms(timestamp, "timestamp")
        path: dict[str, str | int] = {"topic": topic, "partition_id": partition}
        body = self._transport.call(routes.PARTITION_OFFSETS, path=path, query={"timestamp": moment}).body
        offset: int = body["end_offset"] if body["offset"] is None else body["offset"]
        return offset

    def register_producer(self, topic: str, name: str | None = None) -> int:
        """The producer's id; creates the topic if it is missing."""
        producer_id: int = self._api.register_producer(topic, name)["producer_id"]
        return producer_id

    def register_consumer(
        self, topic: str, name: str | None = None, partition: int | None = None, start: Start = "latest"
    ) -> int:
        consumer_id: int = self._api.register_consumer(topic, name, partition, start)["consumer_id"]
        return consumer_id

    def size(self, topic: str, consumer_id: int) -> int:
        """Messages that the consumer has not read yet."""
        size: int = self._api.size(topic, consumer_id)["size"]
        return size

    def consumers(self, topic: str | None = None, *, name: str | None = None) -> list[ConsumerInfo]:
        """All of them, or those of a topic, or those of a name; over all pages."""
        query: dict[str, str | int] = {"limit": MAX_PAGE}
        query |= {key: value for key, value in (("topic", topic), ("name", name)) if value is not None}
        found: list[ConsumerInfo] = []
        while True:
            body = self._transport.call(routes.LIST_CONSUMERS, query=query).body
            found += [consumer_info(entry) for entry in body["consumers"]]
            if body.get("next") is None:
                return found
            query["after"] = body["next"]

    def find_consumer(self, name: str, topic: str | None = None) -> ConsumerInfo:
        """The consumer of that name. Each topic has names of its own: say which topic if several have it."""
        found = self.consumers(topic, name=name)
        if not found:
            raise ConsumerNotFound(f"there is no consumer {name!r}" + ("" if topic is None else f" of topic {topic!r}"))
        if len(found) > 1:
            topics = ", ".join(consumer.topic for consumer in found[:SHOWN_TOPICS])
            more = f" and {len(found) - SHOWN_TOPICS} more" if len(found) > SHOWN_TOPICS else ""
            raise InvalidRequest(f"consumer {name!r} is one of {len(found)} topics ({topics}{more}): say which topic")
        return found[0]

    def _consumer_id(self, consumer: int | str, topic: str | None) -> int:
        return consumer if isinstance(consumer, int) else self.find_consumer(consumer, topic).consumer_id

    def delete_consumer(self, consumer: int | str, topic: str | None = None) -> None:
        """By its id, or by its name as for `find_consumer`; with its cursors."""
        try:
            self._transport.call(routes.DELETE_CONSUMER, path={"consumer_id": self._consumer_id(consumer, topic)})
        except ConsumerNotFound as error:
            if error.outcome == "not_written":
                raise
            # An earlier attempt, whose response was lost, has deleted it.

    def lag(self, consumer: int | str, topic: str | None = None) -> Lag:
        """Of a consumer, by its id or by its name as for `find_consumer`."""
        path = {"consumer_id": self._consumer_id(consumer, topic)}
        return lag_of(self._transport.call(routes.LAG, path=path).body)

    def explain(self, consumer: int | str, topic: str | None = None) -> ExplainedConsumer:
        """Why a consumer, as for `lag`, gets no messages: in all, and in each of its partitions."""
        path = {"consumer_id": self._consumer_id(consumer, topic)}
        return explained_consumer(self._transport.call(routes.EXPLAIN, path=path).body)

    def worst_lag(self, limit: int = DEFAULT_PAGE) -> WorstLag:
        """Of all topics: the consumers that have a name and are furthest behind, in one request."""
        return worst_lag(self._transport.call(routes.LIST_LAG, query={"limit": limit}).body)

    def seek(
        self, consumer: int | str, topic: str | None = None, *, to: int | Start, partition: int | None = None
    ) -> dict[int, int]:
        """Sets the cursors of a consumer, as for `lag`, also back; the cursors after that. As `Consumer.seek`."""
        body: dict[str, Any] = {"to": seek_position(to, partition)} | (
            {} if partition is None else {"partition_id": partition}
        )
        path = {"consumer_id": self._consumer_id(consumer, topic)}
        answer = self._transport.call(routes.SEEK, path=path, body=body).body
        return {cursor["partition_id"]: cursor["offset"] for cursor in answer["cursors"]}

    def cluster(self) -> ClusterInfo:
        """Brokers, managers, databases, and the number of topics and partitions."""
        return cluster_info(self._transport.call(routes.CLUSTER).body)

    def health(self) -> dict[str, Any]:
        """The service that responded; raises if none does."""
        return self._transport.call(routes.HEALTHZ).body

    def ready(self) -> Readiness:
        """Whether the cluster is ready; one attempt, raises only if there is no response."""
        answer = self._transport.probe(routes.READYZ)
        checks = answer.body.get("checks") or {}
        if answer.status != 200 and not checks:
            checks = {"load balancer": str(answer.body.get("message", f"HTTP {answer.status}"))}
        return Readiness(answer.status == 200, checks)

    def close(self) -> None:
        self._api.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
