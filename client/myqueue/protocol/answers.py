"""Responses of the public API, for servers and for OpenAPI."""

from typing import Any, Literal

from pydantic import BaseModel, Field

from myqueue.protocol.models import JsonBytes


class Answer(BaseModel):
    status: Literal["success"] = "success"


class TopicCreated(Answer):
    message: str
    partitions: list[int]


class Done(Answer):
    message: str


class TopicList(Answer):
    topics: list[str]


class ReplicaDamage(BaseModel):
    broker_id: int
    reason: str


class Partition(BaseModel):
    partition_id: int
    leader: int | None
    replicas: list[int]
    term: int
    beginning_offset: int
    end_offset: int
    size: int
    size_bytes: int = Field(description="What it takes on its leader's disk: its stored bytes.")
    damaged: list[ReplicaDamage] = Field(description="Replicas that are to be rebuilt, as last reported.")
    voters: list[int] | None = Field(
        description="Brokers whose replica counts for a majority, as last reported: one that is being filled does not."
    )


class PartitionList(Answer):
    topic: str
    partitions: list[Partition]


class ProducerRegistered(Answer):
    producer_id: int


class ConsumerRegistered(Answer):
    consumer_id: int


class Produced(Answer):
    partition_id: int
    offset: int


class Consumed(Answer):
    message: JsonBytes
    key: JsonBytes | None
    partition_id: int
    offset: int
    timestamp: int
    producer_id: int | None


class TopicDescription(Answer):
    topic: str
    topic_id: str
    partitions: int
    replication: int
    retention_ms: int | None
    retention_bytes: int | None


class ProducerOpened(Answer):
    producer_id: int
    epoch: int
    topic_id: str


class MessageAppended(BaseModel):
    """Where a message is stored; or with an error code, why it is not."""

    partition_id: int
    partition: int = Field(description="Older name of partition_id.", json_schema_extra={"deprecated": True})
    offset: int | None = None
    error_code: int | None = None
    message: str | None = None
    retriable: bool | None = None
    outcome: Literal["not_written", "unknown"] | None = None


class MessagesAppended(Answer):
    offsets: list[MessageAppended] = Field(description="One for each message, in order.")


class BatchAppended(Answer):
    base_offset: int
    count: int
    append_time: int
    end_offset: int
    duplicate: bool = Field(description="It was stored before, at these offsets.")


class StoredHeader(BaseModel):
    key: str
    value: JsonBytes | None


class StoredMessage(BaseModel):
    partition_id: int
    offset: int
    timestamp: int
    append_time: int
    key: JsonBytes | None
    value: JsonBytes
    headers: list[StoredHeader]
    producer_id: int | None


class MessageList(Answer):
    messages: list[StoredMessage]
    next_offset: int
    beginning_offset: int
    end_offset: int


class MessageRange(Answer):
    topic: str
    topic_id: str
    partition_id: int
    messages: list[StoredMessage]


class PartitionOffsets(Answer):
    beginning_offset: int
    end_offset: int
    offset: int | None = Field(None, description="With a timestamp: the first offset appended then or later.")


class PartitionBounds(BaseModel):
    partition_id: int
    beginning_offset: int
    end_offset: int
    stored_bytes: int = Field(description="What it takes on its leader's disk.")


class TopicOffsets(Answer):
    topic: str
    topic_id: str
    partitions: list[PartitionBounds]


class ConsumerDescription(Answer):
    consumer_id: int
    topic: str
    name: str | None
    partition_id: int | None


class LeasedPartition(BaseModel):
    partition_id: int
    generation: int
    cursor: int
    revoking: bool = Field(description="Another member is to have it: finish, commit, then name it in `released`.")


class Polled(Answer):
    consumer_id: int
    topic: str
    topic_id: str
    leases: list[LeasedPartition]
    lease_ms: int
    assignment: str = Field(description="Identifies these leases: the next poll may wait until they change.")
    messages: list[StoredMessage]


class CursorAt(BaseModel):
    partition_id: int
    offset: int


class Committed(Answer):
    cursors: list[CursorAt]


class SoughtCursor(CursorAt):
    generation: int


class Sought(Answer):
    cursors: list[SoughtCursor]


class PartitionLag(BaseModel):
    partition_id: int
    cursor: int
    end_offset: int
    messages: int
    stored_bytes: int
    bytes: int = Field(description="The former name of stored_bytes.")
    seconds: float
    member: str | None = Field(description="Who has the partition on lease.")
    client_id: str | None = Field(None, description="Of that member, as its polls name it.")
    host: str | None = Field(None, description="Of that member, as its polls name it.")


class Lag(Answer):
    consumer_id: int
    topic: str
    partitions: list[PartitionLag]
    messages: int
    stored_bytes: int
    bytes: int = Field(description="The former name of stored_bytes.")
    seconds: float = Field(description="Age of the oldest message that was not read.")


ReasonCode = Literal[
    "messages_waiting",
    "retention_passed",
    "no_leader",
    "revoking",
    "held_by_member",
    "claims_in_flight",
    "at_end",
    "topic_empty",
    "topic_deleted",
]


class Reason(BaseModel):
    reason: ReasonCode
    text: str
    action: str = Field(description="What to do about it.")


class ExplainedPartition(Reason):
    partition_id: int
    cursor: int
    beginning_offset: int | None = Field(description="Null without a leader, as the next two.")
    end_offset: int | None
    unread: int | None
    in_flight: int = Field(description="Messages claimed by consume and not known to be delivered.")
    member: str | None = Field(description="Who has the partition on lease.")
    client_id: str | None = None
    host: str | None = None


class Explanation(Answer):
    consumer_id: int
    topic: str
    partitions: list[ExplainedPartition]
    summary: Reason


class RoutedPartition(BaseModel):
    partition_id: int
    leader: int | None
    term: int
    replicas: list[int]
    path: str | None = Field(description="Where its batches go; null while it has no leader.")


class Routing(Answer):
    topic: str
    topic_id: str
    partitions: list[RoutedPartition]
    grant: str
    expires_at: int


class ClusterBroker(BaseModel):
    broker_id: int
    state: Literal["active", "inactive"]
    leads: int = Field(description="Partitions that it leads.")
    holds: int = Field(description="Partitions of which it has a replica.")
    last_heartbeat: int


class ClusterManager(BaseModel):
    name: str
    state: Literal["active", "inactive"]
    last_heartbeat: int


class ClusterWriter(BaseModel):
    name: str
    epoch: int


class ClusterWriteManager(BaseModel):
    name: str | None = Field(description="Null while it does not answer.")
    state: Literal["active", "standby", "inactive"]
    epoch: int | None = Field(description="Of the active one.")
    problem: str | None = Field(None, description="What the active one has to do without; null: nothing.")


class ClusterDatabase(BaseModel):
    role: Literal["primary", "standby"] | None = Field(
        description="Null while it does not answer, and for a primary that was replaced."
    )
    state: Literal["active", "inactive"] = Field(description="Inactive: managers do not use it.")
    timeline: int | None = Field(None, description="Of PostgreSQL: each promotion begins another one.")
    problem: str | None = Field(None, description="What is wrong with it; null: nothing.")


class Cluster(Answer):
    brokers: list[ClusterBroker]
    read_managers: list[ClusterManager]
    write_manager: ClusterWriter | None = Field(description="The last one that became active.")
    write_managers: list[ClusterWriteManager] = Field([], description="As each of them answers now.")
    databases: list[ClusterDatabase] = Field(description="PostgreSQL servers, the primary first.")
    degraded: list[str] = Field(
        [], description="What does not work, or would not survive the next failure; empty: nothing."
    )
    topics: int
    partitions: int


class QueueSize(Answer):
    size: int = Field(description="Messages this consumer has not read yet.")


class ListedConsumer(BaseModel):
    consumer_id: int
    topic: str
    name: str | None
    partition_id: int | None = Field(description="Null: it reads all partitions of the topic.")


class ConsumerList(Answer):
    consumers: list[ListedConsumer]
    next: int | None = Field(description="Ask with `after` set to this for the next page; null: this is the last.")


class NamedConsumerLag(BaseModel):
    consumer_id: int
    topic: str
    name: str
    messages: int
    members: int = Field(description="That have a partition on lease.")


class LagList(Answer):
    consumers: list[NamedConsumerLag] = Field(description="By what brokers last reported, about a second ago.")
    others: int = Field(description="Consumers that are less behind and not listed.")
    not_measured: int = Field(description="Consumers beyond those that the write manager measures.")


class Health(Answer):
    service: str
    checks: dict[str, Any] = {}


class Failure(BaseModel):
    status: Literal["failure"] = "failure"
    error_code: int
    message: str
    retriable: bool
    outcome: Literal["not_written", "unknown"] | None = None
    request_id: str | None
    details: dict[str, Any] | None = None
