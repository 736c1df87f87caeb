"""Statistics: runs of jobs, figures of partitions, consumers and topics, and their history"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "stats_job",
        sa.Column("job", sa.String(length=100), nullable=False),
        sa.Column("query_id", sa.String(length=200), nullable=True),
        sa.Column("batch_id", sa.BigInteger(), nullable=True),
        sa.Column("part", sa.BigInteger(), nullable=True),
        sa.Column("generation", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("tick", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("job"),
    )
    op.create_table(
        "job_run",
        sa.Column("run_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("job", sa.String(length=100), nullable=False),
        sa.Column("holder", sa.String(length=200), nullable=False),
        sa.Column("trigger", sa.String(length=10), nullable=False),
        sa.Column("tick", sa.BigInteger(), nullable=True),
        sa.Column("idempotency_key", sa.String(length=200), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("outcome", sa.String(length=10), nullable=False),
        sa.Column("rows", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("message", sa.String(length=2000), nullable=True),
        sa.CheckConstraint("outcome in ('running', 'succeeded', 'failed', 'lost')", name="run_outcome"),
        sa.ForeignKeyConstraint(["job"], ["stats_job.job"]),
        sa.PrimaryKeyConstraint("run_id"),
    )
    op.create_index("job_run_of_job", "job_run", ["job", "run_id"])
    op.create_index("job_run_of_tick", "job_run", ["job", "tick"])
    op.create_index("job_run_ended", "job_run", ["job", "ended_at"])
    op.create_index("job_run_running", "job_run", ["job"], unique=True, postgresql_where=sa.text("outcome = 'running'"))
    op.create_table(
        "partition_stats",
        sa.Column("topic_id", sa.Uuid(), nullable=False),
        sa.Column("partition_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("job", sa.String(length=100), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in ("first_offset", "end_offset")),
        sa.Column("log_end_offset", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("bytes_exact", sa.Boolean(), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=True) for name in ("first_timestamp", "last_timestamp")),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in ("gaps", "duplicates")),
        sa.Column("rate_per_minute", sa.Float(), nullable=True),
        sa.Column("computed_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["topic_id"], ["topic.topic_id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("topic_id", "partition_id"),
    )
    op.create_table(
        "partition_stats_history",
        sa.Column("topic_id", sa.Uuid(), nullable=False),
        sa.Column("partition_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("computed_at", sa.DateTime(timezone=True), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in ("first_offset", "end_offset", "bytes")),
        sa.Column("rate_per_minute", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("topic_id", "partition_id", "computed_at"),
    )
    op.create_index("partition_stats_history_age", "partition_stats_history", ["computed_at"])
    for name, constraints in (
        (
            "consumer_stats",
            (
                sa.ForeignKeyConstraint(["consumer_id"], ["consumer.consumer_id"], ondelete="CASCADE"),
                sa.PrimaryKeyConstraint("consumer_id", "partition_id"),
            ),
        ),
        ("consumer_stats_history", (sa.PrimaryKeyConstraint("consumer_id", "partition_id", "computed_at"),)),
    ):
        op.create_table(
            name,
            sa.Column("consumer_id", sa.Integer(), autoincrement=False, nullable=False),
            sa.Column("partition_id", sa.Integer(), autoincrement=False, nullable=False),
            sa.Column("computed_at", sa.DateTime(timezone=True), nullable=False),
            *(
                sa.Column(count, sa.BigInteger(), nullable=False)
                for count in ("cursor", "end_offset", "messages", "bytes")
            ),
            sa.Column("seconds", sa.Float(), nullable=False),
            *constraints,
        )
    op.create_index("consumer_stats_history_age", "consumer_stats_history", ["computed_at"])
    op.create_table(
        "topic_minute",
        sa.Column("topic_id", sa.Uuid(), nullable=False),
        sa.Column("minute", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("job", sa.String(length=100), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in ("messages", "bytes")),
        sa.PrimaryKeyConstraint("topic_id", "minute"),
    )
    op.create_index("topic_minute_age", "topic_minute", ["minute"])


def downgrade() -> None:
    for table in (
        "topic_minute",
        "consumer_stats_history",
        "consumer_stats",
        "partition_stats_history",
        "partition_stats",
        "job_run",
        "stats_job",
    ):
        op.drop_table(table)
