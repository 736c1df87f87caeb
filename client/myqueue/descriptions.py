"""Topics, partitions, consumers, brokers and managers as `Admin` returns them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]


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
    damaged: tuple[tuple[int, str], ...] = ()  # brokers whose replica is to be rebuilt, and why
    voters: tuple[int, ...] | None = None  # brokers whose replica counts for a majority, None when unknown


@dataclass(frozen=True, slots=True)
class TopicInfo:
    name: str
    topic_id: str
    partitions: int
    replication: int
    retention_ms: int | None
    retention_bytes: int | None


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of a partition, from its leader."""

    beginning_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class ConsumerInfo:
    consumer_id: int
    topic: str
    name: str | None
    partition: int | None  # None: it reads all of them


@dataclass(frozen=True, slots=True)
class PartitionLag:
    cursor: int
    end_offset: int
    messages: int
    bytes: int  # stored ones: what the unread messages take on the leader's disk
    seconds: float
    member: str | None  # that has the partition on lease
    client_id: str | None = None  # of that member
    host: str | None = None

    @property
    def stored_bytes(self) -> int:
        return self.bytes


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a consumer is behind, counted from what is committed. `seconds`: age of the oldest unread message."""

    messages: int
    bytes: int  # stored ones
    seconds: float
    partitions: dict[Any, PartitionLag]  # by number; by TopicPartition if the consumer is subscribed to several topics

    @property
    def stored_bytes(self) -> int:
        return self.bytes


@dataclass(frozen=True, slots=True)
class Explained:
    """Why there are no messages. `reason` is a stable code, `action` says what to do."""

    reason: str
    text: str
    action: str


@dataclass(frozen=True, slots=True)
class ExplainedConsumer(Explained):
    consumer_id: int
    topic: str
    partitions: dict[int, Explained]


@dataclass(frozen=True, slots=True)
class NamedLag:
    consumer_id: int
    topic: str
    name: str
    messages: int  # not read yet
    members: int  # that have a partition on lease


@dataclass(frozen=True, slots=True)
class WorstLag:
    """Consumers that have a name, the one that is furthest behind first, by what brokers reported a second ago."""

    consumers: tuple[NamedLag, ...]
    others: int  # that are less behind
    not_measured: int  # beyond what the cluster measures


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    broker_id: int
    state: str  # "active" or "inactive"
    leads: int  # partitions
    holds: int  # partitions of which it has a replica
    last_heartbeat: int


@dataclass(frozen=True, slots=True)
class ManagerInfo:
    name: str
    state: str  # "active" or "inactive"
    last_heartbeat: int


@dataclass(frozen=True, slots=True)
class WriterInfo:
    name: str
    epoch: int


@dataclass(frozen=True, slots=True)
class WriteManagerInfo:
    name: str | None  # None while it does not answer
    state: str  # "active", "standby" or "inactive"
    epoch: int | None
    problem: str | None = None  # what the active one has to do without


@dataclass(frozen=True, slots=True)
class DatabaseInfo:
    role: str | None  # "primary" or "standby", None while it does not answer, or if it was replaced as primary
    state: str  # "active" or "inactive"
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    brokers: tuple[BrokerInfo, ...]
    read_managers: tuple[ManagerInfo, ...]
    write_manager: WriterInfo | None
    databases: tuple[DatabaseInfo, ...]
    topics: int
    partitions: int
    write_managers: tuple[WriteManagerInfo, ...] = ()
    degraded: tuple[str, ...] = ()  # what does not work, or would not survive the next failure


@dataclass(frozen=True, slots=True)
class Readiness:
    ready: bool
    checks: dict[str, str]  # by check: "ok", or the problem


def partition_info(entry: Json) -> PartitionInfo:
    return PartitionInfo(
        partition=entry["partition_id"],
        leader=entry["leader"],
        replicas=tuple(entry["replicas"]),
        term=entry["term"],
        beginning_offset=entry["beginning_offset"],
        end_offset=entry["end_offset"],
        size=entry["size"],
        size_bytes=entry["size_bytes"],
        damaged=tuple((damage["broker_id"], damage["reason"]) for damage in entry.get("damaged", [])),
        voters=None if entry.get("voters") is None else tuple(entry["voters"]),
    )


def topic_info(body: Json) -> TopicInfo:
    return TopicInfo(
        name=body["topic"],
        topic_id=body["topic_id"],
        partitions=body["partitions"],
        replication=body["replication"],
        retention_ms=body["retention_ms"],
        retention_bytes=body["retention_bytes"],
    )


def consumer_info(entry: Json) -> ConsumerInfo:
    return ConsumerInfo(entry["consumer_id"], entry["topic"], entry["name"], entry["partition_id"])


def lag_of(body: Json) -> Lag:
    partitions = {
        int(entry["partition_id"]): PartitionLag(
            cursor=entry["cursor"],
            end_offset=entry["end_offset"],
            messages=entry["messages"],
            bytes=entry["bytes"],
            seconds=entry["seconds"],
            member=entry["member"],
            client_id=entry.get("client_id"),
            host=entry.get("host"),
        )
        for entry in body["partitions"]
    }
    return Lag(body["messages"], body["bytes"], body["seconds"], partitions)


def explained_consumer(body: Json) -> ExplainedConsumer:
    def fields(of: Json) -> tuple[str, str, str]:
        return of["reason"], of["text"], of["action"]

    partitions = {entry["partition_id"]: Explained(*fields(entry)) for entry in body["partitions"]}
    return ExplainedConsumer(*fields(body["summary"]), body["consumer_id"], body["topic"], partitions)


def sum_of_lags(lags: Iterable[Lag], partitions: dict[Any, PartitionLag]) -> Lag:
    """Of several topics; of one, itself."""
    messages, stored, seconds = 0, 0, 0.0
    for lag in lags:
        messages, stored, seconds = messages + lag.messages, stored + lag.bytes, max(seconds, lag.seconds)
    return Lag(messages, stored, seconds, partitions)


def worst_lag(body: Json) -> WorstLag:
    consumers = tuple(
        NamedLag(entry["consumer_id"], entry["topic"], entry["name"], entry["messages"], entry["members"])
        for entry in body["consumers"]
    )
    return WorstLag(consumers, body["others"], body["not_measured"])


def cluster_info(body: Json) -> ClusterInfo:
    writer = body["write_manager"]
    return ClusterInfo(
        brokers=tuple(
            BrokerInfo(entry["broker_id"], entry["state"], entry["leads"], entry["holds"], entry["last_heartbeat"])
            for entry in body["brokers"]
        ),
        read_managers=tuple(
            ManagerInfo(entry["name"], entry["state"], entry["last_heartbeat"]) for entry in body["read_managers"]
        ),
        write_manager=None if writer is None else WriterInfo(writer["name"], writer["epoch"]),
        databases=tuple(
            DatabaseInfo(entry["role"], entry["state"], entry.get("problem")) for entry in body.get("databases", ())
        ),
        topics=body["topics"],
        partitions=body["partitions"],
        write_managers=tuple(
            WriteManagerInfo(entry["name"], entry["state"], entry["epoch"], entry.get("problem"))
            for entry in body.get("write_managers", ())
        ),
        degraded=tuple(body.get("degraded", ())),
    )
