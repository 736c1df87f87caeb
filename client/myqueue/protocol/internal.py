"""What the processes say to each other on their internal listeners, with the cluster secret.

Paths that start with /internal/ never go through the load balancer. Bodies are JSON but for batches.
"""

from typing import Literal

from typing_extensions import TypedDict  # pydantic validates these; before 3.12 it needs this one

# Write manager
REGISTER_BROKER = "/internal/brokers"  # POST BrokerRegistration -> BrokerRegistered
BROKER_HEARTBEAT = "/internal/brokers/{broker_id}/heartbeat"  # POST BrokerHeartbeat -> {"status"}
MANAGER_HEARTBEAT = "/internal/managers/heartbeat"  # POST ManagerHeartbeat -> {"status"}
CLAIM = "/internal/claims"  # POST ClaimRequest -> ClaimAnswer
GIVE_BACK = "/internal/claims/give-back"  # POST GiveBack -> {"status", "given_back": bool}
CURSORS = "/internal/consumers/{consumer_id}/cursors"  # GET -> ConsumerCursors
CATALOG_TOPICS = "/internal/topics"  # GET -> {"status", "topics": [name]}
CATALOG_TOPIC = "/internal/topics/{topic}"  # GET -> TopicRecord

# Broker
PARTITION = "/internal/topics/{topic_id}/partitions/{partition_id}"  # PUT PartitionSpec (CreateTopic), DELETE
BROKER_TOPICS = "/internal/topics"  # GET (ListTopic) -> {"status", "topics": [BrokerTopic]}
BROKER_TOPIC = "/internal/topics/{topic_id}"  # GET (CheckTopic) -> BrokerTopic, 404
BATCHES = PARTITION + "/batches"  # POST batch and marks (enqueue) -> AppendAnswer
MESSAGES = (
    PARTITION + "/messages"
)  # GET ?offset&limit (dequeue) -> batch and marks; 204 at the end; 410 below the start
OFFSETS = "/internal/offsets"  # POST OffsetsRequest (size) -> OffsetsAnswer


class BrokerRegistration(TypedDict):
    broker_id: int | None  # the id it had before or was told to take; None: give me one
    endpoint: str  # http://host:port of the broker's internal listener
    hostname: str
    incarnation: str  # 16 hex digits, made with the data file
    partitions: list["PartitionReport"]  # all of them: registering starts the change reports anew


class BrokerRegistered(TypedDict):
    status: Literal["success"]
    broker_id: int
    heartbeat_interval_s: float


class PartitionReport(TypedDict):
    topic_id: str  # UUID
    partition_id: int
    role: Literal["leader", "follower", "learner"]
    term: int
    beginning_offset: int
    end_offset: int
    size_bytes: int


class BrokerHeartbeat(TypedDict):
    incarnation: str
    partitions: list[PartitionReport]  # those that changed since the last answered heartbeat


class ManagerHeartbeat(TypedDict):
    name: str
    endpoint: str


class ClaimRequest(TypedDict):
    topic: str
    consumer_id: int
    partition_id: int | None
    identity: str  # the same identity gets the same message


class Claim(TypedDict):
    topic_id: str
    partition_id: int
    offset: int
    attempt: int  # how often this identity asked; only the last one may give the claim back
    broker_id: int | None
    endpoint: str | None


class ClaimAnswer(TypedDict):
    status: Literal["success"]
    claim: Claim | None  # None: nothing to read
    token: str | None


class GiveBack(TypedDict):
    consumer_id: int
    identity: str
    attempt: int


class Cursor(TypedDict):
    partition_id: int
    offset: int  # the next offset to read
    given_back: int  # messages below the cursor that were given back and will be read again


class ConsumerCursors(TypedDict):
    status: Literal["success"]
    consumer_id: int
    topic: str
    topic_id: str
    cursors: list[Cursor]


class PartitionRecord(TypedDict):
    partition_id: int
    broker_id: int | None  # the leader as far as known
    endpoint: str | None  # its internal address, None when it is not alive
    term: int
    replicas: list[int]
    beginning_offset: int  # as last reported
    end_offset: int
    size_bytes: int


class TopicRecord(TypedDict):
    name: str
    topic_id: str
    replication: int
    retention_ms: int | None
    retention_bytes: int | None
    partitions: list[PartitionRecord]


class PartitionSpec(TypedDict):
    topic: str


class BrokerTopic(TypedDict):
    topic: str
    topic_id: str
    partitions: list[int]


class AppendResult(TypedDict, total=False):
    """One for each message of the batch, in order: an offset, or the error that refused it."""

    offset: int
    duplicate: bool  # the offset is that of an earlier append under the same idempotency key
    error_code: int


class AppendAnswer(TypedDict):
    status: Literal["success"]
    results: list[AppendResult]
    append_time: int
    end_offset: int


class PartitionName(TypedDict):
    topic_id: str
    partition_id: int


class OffsetsRequest(TypedDict):
    partitions: list[PartitionName]
    timestamp: int | None  # when given, `offset_at` is the first offset appended at or after it


class Offsets(TypedDict):
    topic_id: str
    partition_id: int
    beginning_offset: int
    end_offset: int
    size_bytes: int
    offset_at: int | None


class OffsetsAnswer(TypedDict):
    status: Literal["success"]
    offsets: list[Offsets | None]  # None: this broker does not hold the partition
