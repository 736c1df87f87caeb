"""A point of every run: totals of topics and consumers, stored bytes, rates, and how far points are thinned"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("job_run", sa.Column("left_out", sa.BigInteger(), server_default=sa.text("0"), nullable=False))
    for table in ("partition_stats", "partition_stats_history"):
        op.add_column(table, sa.Column("stored_bytes", sa.BigInteger(), nullable=True))
        op.add_column(table, sa.Column("rate_out_per_minute", sa.Float(), nullable=True))
    for table in ("consumer_stats", "consumer_stats_history"):
        op.add_column(table, sa.Column("rate_in_per_minute", sa.Float(), nullable=True))
        op.add_column(table, sa.Column("rate_out_per_minute", sa.Float(), nullable=True))
    op.create_table(
        "topic_stats_history",
        sa.Column("topic_id", sa.Uuid(), nullable=False),
        sa.Column("computed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("partitions", sa.Integer(), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in ("messages", "payload_bytes")),
        sa.Column("stored_bytes", sa.BigInteger(), nullable=True),
        sa.Column("end_offsets", sa.BigInteger(), nullable=False),
        *(sa.Column(name, sa.Float()) for name in ("skew", "rate_in_per_minute", "rate_out_per_minute")),
        sa.PrimaryKeyConstraint("topic_id", "computed_at"),
    )
    op.create_index("topic_stats_history_age", "topic_stats_history", ["computed_at"])
    op.create_table(
        "consumer_totals_history",
        sa.Column("consumer_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("computed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("partitions", sa.Integer(), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in ("messages", "stored_bytes")),
        sa.Column("seconds", sa.Float(), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in ("cursors", "end_offsets")),
        *(sa.Column(name, sa.Float()) for name in ("rate_in_per_minute", "rate_out_per_minute", "catch_up_seconds")),
        sa.PrimaryKeyConstraint("consumer_id", "computed_at"),
    )
    op.create_index("consumer_totals_history_age", "consumer_totals_history", ["computed_at"])
    op.create_table(
        "stats_thinning",
        sa.Column("table_name", sa.String(length=100), nullable=False),
        sa.Column("step_s", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("thinned_to", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("table_name", "step_s"),
    )


def downgrade() -> None:
    for table in ("stats_thinning", "consumer_totals_history", "topic_stats_history"):
        op.drop_table(table)
    for table in ("consumer_stats", "consumer_stats_history"):
        op.drop_column(table, "rate_in_per_minute")
        op.drop_column(table, "rate_out_per_minute")
    for table in ("partition_stats", "partition_stats_history"):
        op.drop_column(table, "stored_bytes")
        op.drop_column(table, "rate_out_per_minute")
    op.drop_column("job_run", "left_out")
