"""Tables of the metadata database. Migrations in db/migrations make exactly these."""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, CheckConstraint, DateTime, ForeignKey, Index, String, UniqueConstraint, func, text
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

Offset = BigInteger


class Base(DeclarativeBase):
    pass


def _created() -> Mapped[datetime]:
    return mapped_column(DateTime(timezone=True), server_default=func.now())


def _last_seen() -> Mapped[datetime]:
    """When it was last used, to within a fraction of the time after which those without a name expire."""
    return mapped_column(DateTime(timezone=True), server_default=func.now())


class TopicRow(Base):
    """A deleted and recreated topic has another topic_id, so its old messages can never be taken for new ones."""

    __tablename__ = "topic"

    name: Mapped[str] = mapped_column(String(200), primary_key=True)
    topic_id: Mapped[UUID] = mapped_column(unique=True)
    replication: Mapped[int]
    retention_ms: Mapped[int | None] = mapped_column(BigInteger)
    retention_bytes: Mapped[int | None] = mapped_column(BigInteger)
    created_at: Mapped[datetime] = _created()


class BrokerMetadata(Base):
    __tablename__ = "broker_metadata"
    __table_args__ = (CheckConstraint("status in ('active', 'inactive')", name="broker_status"),)

    broker_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    endpoint: Mapped[str] = mapped_column(String(300), unique=True)
    raft_address: Mapped[str] = mapped_column(String(300))
    data_address: Mapped[str] = mapped_column(String(300), server_default="")
    hostname: Mapped[str] = mapped_column(String(255))
    incarnation: Mapped[str] = mapped_column(String(16))
    status: Mapped[str] = mapped_column(String(10))
    last_heartbeat: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    created_at: Mapped[datetime] = _created()


class DataFolderRow(Base):
    """The data folders that a broker has had, by their incarnation: one that comes with less is an older copy."""

    __tablename__ = "data_folder"

    incarnation: Mapped[str] = mapped_column(String(16), primary_key=True)
    broker_id: Mapped[int] = mapped_column(ForeignKey("broker_metadata.broker_id", ondelete="CASCADE"))
    starts: Mapped[int] = mapped_column(BigInteger)  # the highest count of starts it registered with
    session: Mapped[str] = mapped_column(String(16))  # of the process that registered with it
    sequence: Mapped[int] = mapped_column(BigInteger)  # a lower bound of its last journal frame
    last_seen: Mapped[datetime] = _last_seen()


class PartitionMetadata(Base):
    """`broker_id` is the leader as a hint, with the term in which it led; it reported bytes and offsets.

    `size` is the number of messages as last measured by a statistics job, see PartitionStatsRow.
    """

    __tablename__ = "partition_metadata"
    __table_args__ = (UniqueConstraint("topic_name", "partition_id", name="partition_of_topic"),)

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    topic_name: Mapped[str] = mapped_column(ForeignKey("topic.name", ondelete="CASCADE"))
    partition_id: Mapped[int]
    broker_id: Mapped[int | None] = mapped_column(ForeignKey("broker_metadata.broker_id"))
    term: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    replicas: Mapped[list[int]] = mapped_column(ARRAY(BigInteger))
    # The initial voters of its Raft group, [[broker id, incarnation], …]: every replica is created from the same ones.
    initial_voters: Mapped[list[Any]] = mapped_column("founders", JSONB)
    size: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    size_bytes: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    beginning_offset: Mapped[int] = mapped_column(Offset, server_default=text("0"))
    end_offset: Mapped[int] = mapped_column(Offset, server_default=text("0"))
    damaged: Mapped[dict[str, str]] = mapped_column(JSONB, server_default=text("'{}'"))  # why, by broker id
    voters: Mapped[list[int] | None] = mapped_column(ARRAY(BigInteger))  # brokers whose replica votes
    created_at: Mapped[datetime] = _created()


class ProducerMetadata(Base):
    """As a consumer, it counts only while the topic of its `topic_id` exists."""

    __tablename__ = "producer_metadata"
    __table_args__ = (
        UniqueConstraint("topic_id", "name", name="producer_name"),
        Index("producer_metadata_silent", "last_seen", postgresql_where=text("name IS NULL")),
    )

    producer_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    topic_id: Mapped[UUID]
    topic_name: Mapped[str] = mapped_column(String(200))
    name: Mapped[str | None] = mapped_column(String(200))
    epoch: Mapped[int | None]  # the last one given out; null before the first
    created_at: Mapped[datetime] = _created()
    last_seen: Mapped[datetime] = _last_seen()


class ConsumerRow(Base):
    """A consumer's identity, round-robin position and claims; its cursors are rows of ConsumerMetadata.

    It counts only while the topic of its `topic_id` exists. No foreign key: a cascade over all consumers of a topic
    would take too long to delete the topic. Rows of a deleted topic are deleted later, in slices.
    """

    __tablename__ = "consumer"
    __table_args__ = (
        UniqueConstraint("topic_id", "name", name="consumer_name"),
        Index("consumer_silent", "last_seen", postgresql_where=text("name IS NULL")),
    )

    consumer_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    topic_id: Mapped[UUID]
    topic_name: Mapped[str] = mapped_column(String(200))
    name: Mapped[str | None] = mapped_column(String(200))
    partition_id: Mapped[int | None]
    next_partition: Mapped[int] = mapped_column(server_default=text("0"))
    # Claims that were not reported as delivered yet, with the lifetime of each; bounded.
    claims_in_flight: Mapped[list[Any]] = mapped_column(JSONB, server_default=text("'[]'"))
    # The last delivered claims by request identity: a repeated request gets the same message, also after a restart.
    recent_claims: Mapped[list[Any]] = mapped_column(JSONB, server_default=text("'[]'"))
    recent_commits: Mapped[list[Any]] = mapped_column(JSONB, server_default=text("'[]'"))  # and so do commits
    created_at: Mapped[datetime] = _created()
    last_seen: Mapped[datetime] = _last_seen()


class ConsumerMetadata(Base):
    """One cursor: the next offset to read. `given_back` are claimed offsets below it that were not delivered."""

    __tablename__ = "consumer_metadata"
    __table_args__ = (Index("consumer_metadata_topic", "topic_name"),)

    consumer_id: Mapped[int] = mapped_column(
        ForeignKey("consumer.consumer_id", ondelete="CASCADE"), primary_key=True, autoincrement=False
    )
    partition_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    topic_name: Mapped[str] = mapped_column(String(200))
    offset: Mapped[int] = mapped_column(Offset)
    given_back: Mapped[list[int]] = mapped_column(ARRAY(BigInteger), server_default=text("'{}'"))
    skipped: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))  # by retention, before they were read
    updated_at: Mapped[datetime] = mapped_column(DateTime(timezone=True), server_default=func.now())


class DeletedTopic(Base):
    """Brokers may delete its replicas. Those of an unknown topic, such as after a restore, they must keep."""

    __tablename__ = "deleted_topic"

    topic_id: Mapped[UUID] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(200))
    deleted_at: Mapped[datetime] = mapped_column(DateTime(timezone=True), server_default=func.now())


class ManagerMetadata(Base):
    __tablename__ = "manager_metadata"
    __table_args__ = (CheckConstraint("status in ('active', 'inactive')", name="manager_status"),)

    name: Mapped[str] = mapped_column(String(200), primary_key=True)
    endpoint: Mapped[str] = mapped_column(String(300))
    status: Mapped[str] = mapped_column(String(10))
    last_heartbeat: Mapped[datetime] = mapped_column(DateTime(timezone=True))


class StatsJob(Base):
    """How far a job's results have come: the last batch of its query that was applied.

    Another query that takes over is a new generation: the sums of earlier ones do not count any more.
    """

    __tablename__ = "stats_job"

    job: Mapped[str] = mapped_column(String(100), primary_key=True)
    query_id: Mapped[str | None] = mapped_column(String(200))
    batch_id: Mapped[int | None] = mapped_column(BigInteger)
    part: Mapped[int | None] = mapped_column(BigInteger)
    generation: Mapped[int] = mapped_column(server_default=text("0"))
    tick: Mapped[int | None] = mapped_column(BigInteger)  # the last one for which a run has begun, in ms


class JobRun(Base):
    """At most one of a job is running. Whether its lease has expired is decided in memory."""

    __tablename__ = "job_run"
    __table_args__ = (
        CheckConstraint("outcome in ('running', 'succeeded', 'failed', 'lost')", name="run_outcome"),
        Index("job_run_running", "job", unique=True, postgresql_where=text("outcome = 'running'")),
        Index("job_run_of_job", "job", "run_id"),
        Index("job_run_of_tick", "job", "tick"),
        Index("job_run_ended", "job", "ended_at"),
    )

    run_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    job: Mapped[str] = mapped_column(ForeignKey("stats_job.job"))
    holder: Mapped[str] = mapped_column(String(200))
    trigger: Mapped[str] = mapped_column(String(10))
    tick: Mapped[int | None] = mapped_column(BigInteger)
    idempotency_key: Mapped[str | None] = mapped_column(String(200))
    started_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    ended_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
    outcome: Mapped[str] = mapped_column(String(10))
    rows: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    left_out: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    message: Mapped[str | None] = mapped_column(String(2000))


class PartitionStatsRow(Base):
    """Figures of a partition's messages from `first_offset` to `end_offset`."""

    __tablename__ = "partition_stats"

    topic_id: Mapped[UUID] = mapped_column(ForeignKey("topic.topic_id", ondelete="CASCADE"), primary_key=True)
    partition_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    job: Mapped[str] = mapped_column(String(100))
    generation: Mapped[int]
    first_offset: Mapped[int] = mapped_column(Offset)
    end_offset: Mapped[int] = mapped_column(Offset)
    log_end_offset: Mapped[int] = mapped_column(Offset)
    bytes: Mapped[int] = mapped_column(BigInteger)  # of the payload
    bytes_exact: Mapped[bool]
    stored_bytes: Mapped[int | None] = mapped_column(BigInteger)
    first_timestamp: Mapped[int | None] = mapped_column(BigInteger)
    last_timestamp: Mapped[int | None] = mapped_column(BigInteger)
    gaps: Mapped[int] = mapped_column(BigInteger)
    duplicates: Mapped[int] = mapped_column(BigInteger)
    rate_per_minute: Mapped[float | None]
    rate_out_per_minute: Mapped[float | None]
    computed_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))


class PartitionStatsHistoryRow(Base):
    """A point of every run; with age, fewer of them are kept.

    Rows of deleted topics are pruned by age: a cascade over millions of them would take too long to delete the topic.
    """

    __tablename__ = "partition_stats_history"
    __table_args__ = (Index("partition_stats_history_age", "computed_at"),)

    topic_id: Mapped[UUID] = mapped_column(primary_key=True)
    partition_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    computed_at: Mapped[datetime] = mapped_column(DateTime(timezone=True), primary_key=True)
    first_offset: Mapped[int] = mapped_column(Offset)
    end_offset: Mapped[int] = mapped_column(Offset)
    bytes: Mapped[int] = mapped_column(BigInteger)
    stored_bytes: Mapped[int | None] = mapped_column(BigInteger)
    rate_per_minute: Mapped[float | None]
    rate_out_per_minute: Mapped[float | None]


class TopicStatsHistoryRow(Base):
    """Sums over all partitions of a topic, as PartitionStatsHistoryRow. The newest row holds the current figures."""

    __tablename__ = "topic_stats_history"
    __table_args__ = (Index("topic_stats_history_age", "computed_at"),)

    topic_id: Mapped[UUID] = mapped_column(primary_key=True)
    computed_at: Mapped[datetime] = mapped_column(DateTime(timezone=True), primary_key=True)
    partitions: Mapped[int]
    messages: Mapped[int] = mapped_column(BigInteger)
    payload_bytes: Mapped[int] = mapped_column(BigInteger)
    stored_bytes: Mapped[int | None] = mapped_column(BigInteger)
    end_offsets: Mapped[int] = mapped_column(BigInteger)
    skew: Mapped[float | None]
    rate_in_per_minute: Mapped[float | None]
    rate_out_per_minute: Mapped[float | None]


class ConsumerStatsRow(Base):
    """How far a consumer was behind in one partition."""

    __tablename__ = "consumer_stats"

    consumer_id: Mapped[int] = mapped_column(
        ForeignKey("consumer.consumer_id", ondelete="CASCADE"), primary_key=True, autoincrement=False
    )
    partition_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    cursor: Mapped[int] = mapped_column(Offset)
    end_offset: Mapped[int] = mapped_column(Offset)
    messages: Mapped[int] = mapped_column(BigInteger)
    bytes: Mapped[int] = mapped_column(BigInteger)  # as stored
    seconds: Mapped[float]
    rate_in_per_minute: Mapped[float | None]
    rate_out_per_minute: Mapped[float | None]
    computed_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))


class ConsumerStatsHistoryRow(Base):
    """As PartitionStatsHistoryRow."""

    __tablename__ = "consumer_stats_history"
    __table_args__ = (Index("consumer_stats_history_age", "computed_at"),)

    consumer_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    partition_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    computed_at: Mapped[datetime] = mapped_column(DateTime(timezone=True), primary_key=True)
    cursor: Mapped[int] = mapped_column(Offset)
    end_offset: Mapped[int] = mapped_column(Offset)
    messages: Mapped[int] = mapped_column(BigInteger)
    bytes: Mapped[int] = mapped_column(BigInteger)  # as stored
    seconds: Mapped[float]
    rate_in_per_minute: Mapped[float | None]
    rate_out_per_minute: Mapped[float | None]


class ConsumerTotalsHistoryRow(Base):
    """Sums over all partitions of a consumer, as TopicStatsHistoryRow."""

    __tablename__ = "consumer_totals_history"
    __table_args__ = (Index("consumer_totals_history_age", "computed_at"),)

    consumer_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    computed_at: Mapped[datetime] = mapped_column(DateTime(timezone=True), primary_key=True)
    partitions: Mapped[int]
    messages: Mapped[int] = mapped_column(BigInteger)
    stored_bytes: Mapped[int] = mapped_column(BigInteger)
    seconds: Mapped[float]
    cursors: Mapped[int] = mapped_column(BigInteger)
    end_offsets: Mapped[int] = mapped_column(BigInteger)
    rate_in_per_minute: Mapped[float | None]
    rate_out_per_minute: Mapped[float | None]
    catch_up_seconds: Mapped[float | None]


class StatsThinning(Base):
    """How far the points of a table are thinned to one for each `step_s`."""

    __tablename__ = "stats_thinning"

    table_name: Mapped[str] = mapped_column(String(100), primary_key=True)
    step_s: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    thinned_to: Mapped[datetime] = mapped_column(DateTime(timezone=True))


class TopicMinuteRow(Base):
    """Messages and bytes that were appended to a topic in one minute. Rows of deleted topics are pruned by age."""

    __tablename__ = "topic_minute"
    __table_args__ = (Index("topic_minute_age", "minute"),)

    topic_id: Mapped[UUID] = mapped_column(primary_key=True)
    minute: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)  # its start, in ms
    job: Mapped[str] = mapped_column(String(100))
    generation: Mapped[int]
    messages: Mapped[int] = mapped_column(BigInteger)
    bytes: Mapped[int] = mapped_column(BigInteger)


class IdCounter(Base):
    """Ids count from 0 without holes: a PostgreSQL sequence would jump after a crash."""

    __tablename__ = "id_counter"

    kind: Mapped[str] = mapped_column(String(20), primary_key=True)
    next_id: Mapped[int]


class WriteManagerEpoch(Base):
    """One row. Every write transaction checks it, so a write manager that was replaced cannot write any more."""

    __tablename__ = "write_manager_epoch"
    __table_args__ = (CheckConstraint("id = 1", name="one_row"),)

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    epoch: Mapped[int] = mapped_column(BigInteger)
    holder: Mapped[str] = mapped_column(String(200))
    taken_at: Mapped[datetime] = mapped_column(DateTime(timezone=True), server_default=func.now())


class WriteManagerLease(Base):
    """One row: the right to be the active write manager. Its holder counts `renewals` up; the standby takes over when
    they stand still. Not the epoch's row: every write transaction locks that one."""

    __tablename__ = "write_manager_lease"
    __table_args__ = (CheckConstraint("id = 1", name="one_lease"),)

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    holder: Mapped[str] = mapped_column(String(200))
    epoch: Mapped[int] = mapped_column(BigInteger)  # of the holder; 0 until it has taken one
    renewals: Mapped[int] = mapped_column(BigInteger)
    released: Mapped[bool]  # the holder has stopped: the next one need not wait


class TimelineSwitch(Base):
    """Where a timeline of the database ended: a position on the next one that has everything confirmed before it."""

    __tablename__ = "timeline_switch"

    timeline: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)  # the one that ended
    position: Mapped[int] = mapped_column(BigInteger)  # in the write-ahead log, as a session token has it
