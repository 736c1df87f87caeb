"""Admin: topics, registrations and health of a cluster."""

from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from myqueue.protocol import routes
from myqueue.protocol.errors import NoTopics, TopicExists
from myqueue.protocol.limits import DEFAULT_PARTITIONS
from myqueue.retry import DEFAULT_RETRY, RetryPolicy
from myqueue.simple_api import SimpleApi, Start
from myqueue.transport import DEFAULT_TIMEOUTS, Timeouts, Transport


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    partition: int
    leader: int | None  # a broker's id, None when unknown
    replicas: tuple[int, ...]
    term: int
    beginning_offset: int
    end_offset: int
    size: int  # messages
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Readiness:
    ready: bool
    checks: dict[str, str]  # what was checked: "ok", or what is wrong


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

    def list_topics(self) -> list[str]:
        try:
            return list(self._api.list_topics()["topics"])
        except NoTopics:
            return []

    def partitions(self, topic: str) -> list[PartitionInfo]:
        return [_partition_info(entry) for entry in self._api.list_partitions(topic)["partitions"]]

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

    def health(self) -> dict[str, Any]:
        """Which service answered; raises if none does."""
        return self._transport.call(routes.HEALTHZ).body

    def ready(self) -> Readiness:
        """Whether the cluster can work right now; asks once and raises only if nothing answers."""
        answer = self._transport.probe(routes.READYZ)
        checks = answer.body.get("checks") or {}
        if answer.status != 200 and not checks:
            checks = {"load balancer": str(answer.body.get("message", f"HTTP {answer.status}"))}
        return Readiness(answer.status == 200, checks)

    def close(self) -> None:
        self._api.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _partition_info(entry: dict[str, Any]) -> PartitionInfo:
    return PartitionInfo(
        partition=entry["partition_id"],
        leader=entry["leader"],
        replicas=tuple(entry["replicas"]),
        term=entry["term"],
        beginning_offset=entry["beginning_offset"],
        end_offset=entry["end_offset"],
        size=entry["size"],
        size_bytes=entry["size_bytes"],
    )
