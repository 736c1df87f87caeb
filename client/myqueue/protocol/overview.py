"""The cluster at a glance, as the console shows it, and what the active write manager contributes to that."""

from typing import Literal

from pydantic import BaseModel, Field
from typing_extensions import TypedDict  # pydantic validates these; before 3.12 it needs this one

from myqueue.protocol.answers import Answer

MAX_LISTED_PARTITIONS = 100
MAX_LISTED_TOPICS = 1000
MAX_LISTED_CONSUMERS = 20

Severity = Literal["critical", "warning", "info"]
ProcessRole = Literal["load_balancer", "read_manager", "write_manager", "broker", "postgres"]


# What the active write manager knows in memory.


class BrokerState(TypedDict):
    broker_id: int
    endpoint: str
    active: bool
    heartbeat_age_s: float
    leaders: int
    replicas: int
    stored_bytes: int


class ReadManagerState(TypedDict):
    name: str
    endpoint: str
    active: bool
    heartbeat_age_s: float


class TopicState(TypedDict):
    topic: str
    partitions: int
    messages: int | None
    stored_bytes: int | None
    messages_in_per_s: float | None


class PlacedPartition(TypedDict):
    topic: str
    partition_id: int
    missing: list[int]


class ConsumerBehind(TypedDict):
    consumer_id: int
    topic: str
    name: str
    messages: int
    members: int
    growth_per_s: float | None


class JobState(TypedDict):
    job: str
    failed: bool
    succeeded_ms: int | None


class ClusterState(TypedDict):
    status: Literal["success"]
    brokers: list[BrokerState]
    read_managers: list[ReadManagerState]
    load_balancer_age_s: float | None  # since nginx last asked for addresses
    topics: list[TopicState]
    topic_count: int
    partition_count: int
    leaderless: list[PlacedPartition]
    leaderless_count: int
    under_replicated: list[PlacedPartition]
    under_replicated_count: int
    damaged_count: int
    consumers: list[ConsumerBehind] | None  # the most behind; None: not measured
    jobs: list[JobState]


# What read managers answer.


class OverviewProcess(BaseModel):
    name: str
    role: ProcessRole
    healthy: bool
    detail: str = Field(description="What is wrong with it, or what it is doing; may be empty.")
    address: str | None = Field(description="Where the other processes reach it; null: not told.")


class OverviewRates(BaseModel):
    """Over all brokers and the last seconds; null until two samples are there."""

    messages_in_per_s: float | None
    messages_out_per_s: float | None
    bytes_in_per_s: float | None
    bytes_out_per_s: float | None


class LeaderlessPartition(BaseModel):
    topic: str
    partition_id: int


class UnderReplicatedPartition(LeaderlessPartition):
    missing: list[int] = Field(description="Brokers whose replica does not count for a majority right now.")


class OverviewBroker(BaseModel):
    broker_id: int
    healthy: bool
    leaders: int
    replicas: int
    disk_used_bytes: int | None = Field(description="Stored bytes of its replicas, by their leaders.")
    disk_free_bytes: int | None
    heartbeat_age_s: float | None
    address: str
    messages_in_per_s: float | None
    messages_out_per_s: float | None


class OverviewDatabase(BaseModel):
    name: str = Field(description="By its place in the settings.")
    role: Literal["primary", "standby"] | None
    healthy: bool
    detail: str
    replay_lag_bytes: int | None = Field(description="Of a standby.")
    replay_lag_s: float | None = Field(description="Of a standby; a lower bound if it is far behind.")


class OverviewTopic(BaseModel):
    topic: str
    partitions: int
    messages: int | None
    stored_bytes: int | None
    messages_in_per_s: float | None


class BehindConsumer(BaseModel):
    consumer_id: int
    topic: str
    name: str
    messages: int
    members: int


class Alert(BaseModel):
    severity: Severity
    code: str = Field(description="Stable: programs may compare it.")
    text: str
    action: str = Field(description="What to do.")


class Overview(Answer):
    at_ms: int
    state_age_s: float | None = Field(
        description="How old what the write manager said is: more than a few seconds while none is active; null: never."
    )
    processes: list[OverviewProcess]
    rates: OverviewRates
    topic_count: int | None
    partition_count: int | None
    under_replicated: list[UnderReplicatedPartition] = Field(description=f"At most {MAX_LISTED_PARTITIONS}.")
    under_replicated_count: int | None
    leaderless: list[LeaderlessPartition] = Field(description=f"At most {MAX_LISTED_PARTITIONS}.")
    leaderless_count: int | None
    brokers: list[OverviewBroker]
    postgres: list[OverviewDatabase]
    topics: list[OverviewTopic] = Field(description=f"At most {MAX_LISTED_TOPICS}, the highest rates first.")
    consumers: list[BehindConsumer] | None = Field(
        description=f"Of those that have a name the {MAX_LISTED_CONSUMERS} that are most behind; null: not measured."
    )
    alerts: list[Alert] = Field(description="The worst first.")
