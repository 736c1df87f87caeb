"""Admin: topics, registrations and health of a cluster."""

from typing import Any, Self

from myqueue.descriptions import (
    Bounds,
    ClusterInfo,
    ConsumerInfo,
    Lag,
    PartitionInfo,
    Readiness,
    TopicInfo,
    cluster_info,
    consumer_info,
    lag_of,
    partition_info,
    topic_info,
)
from myqueue.protocol import routes
from myqueue.protocol.errors import ConsumerNotFound, InvalidRequest, NoTopics, TopicExists, TopicNotFound
from myqueue.protocol.limits import DEFAULT_PARTITIONS, MAX_PAGE, STAGING_PREFIX
from myqueue.simple_api import SimpleApi, Start
from myqueue.transport import DEFAULT_RETRY, DEFAULT_TIMEOUTS, RetryPolicy, Timeouts, Transport


class Admin:
    """May be shared by threads."""

    def __init__(self, url: str, *, retry: RetryPolicy = DEFAULT_RETRY, timeouts: Timeouts = DEFAULT_TIMEOUTS) -> None:
        self._transport = Transport(url, timeouts=timeouts, retry=retry)
        self._api = SimpleApi(self._transport)

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

    def offset_at(self, topic: str, partition: int, timestamp: int) -> int:
        """The first offset that was appended at this time (ms since 1970) or later; the end if there is none yet."""
        path: dict[str, str | int] = {"topic": topic, "partition_id": partition}
        body = self._transport.call(routes.PARTITION_OFFSETS, path=path, query={"timestamp": timestamp}).body
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

    def consumers(self, topic: str | None = None) -> list[ConsumerInfo]:
        """All of them, over all pages."""
        query: dict[str, str | int] = {"limit": MAX_PAGE} if topic is None else {"limit": MAX_PAGE, "topic": topic}
        found: list[ConsumerInfo] = []
        while True:
            body = self._transport.call(routes.LIST_CONSUMERS, query=query).body
            found += [consumer_info(entry) for entry in body["consumers"]]
            if body.get("next") is None:
                return found
            query["after"] = body["next"]

    def delete_consumer(self, consumer_id: int) -> None:
        """With its cursors."""
        try:
            self._transport.call(routes.DELETE_CONSUMER, path={"consumer_id": consumer_id})
        except ConsumerNotFound as error:
            if error.outcome == "not_written":
                raise
            # An earlier attempt, whose response was lost, has deleted it.

    def lag(self, consumer_id: int) -> Lag:
        return lag_of(self._transport.call(routes.LAG, path={"consumer_id": consumer_id}).body)

    def seek(self, consumer_id: int, *, to: int | Start, partition: int | None = None) -> dict[int, int]:
        """Sets a consumer's cursors, also back; the cursors after that. As `Consumer.seek`."""
        where: Any = {"offset": to} if isinstance(to, int) else to if isinstance(to, str) else dict(to)
        if partition is None and isinstance(where, dict) and "offset" in where:
            raise InvalidRequest("an offset belongs to a partition: say which")
        body = {"to": where} | ({} if partition is None else {"partition_id": partition})
        answer = self._transport.call(routes.SEEK, path={"consumer_id": consumer_id}, body=body).body
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
