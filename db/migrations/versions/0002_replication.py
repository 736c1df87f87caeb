"""Replicated partitions: founders, raft addresses, deleted topics, messages that were gone before they were read"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("broker_metadata", sa.Column("raft_address", sa.String(length=300), nullable=True))
    op.execute("UPDATE broker_metadata SET raft_address = ''")  # each tells its own when it registers
    op.alter_column("broker_metadata", "raft_address", nullable=False)
    op.add_column("partition_metadata", sa.Column("founders", postgresql.JSONB(), nullable=True))
    op.execute(
        "UPDATE partition_metadata p SET founders = jsonb_build_array(jsonb_build_array(b.broker_id, b.incarnation))"
        " FROM broker_metadata b WHERE b.broker_id = p.broker_id"
    )
    op.alter_column("partition_metadata", "founders", nullable=False)
    op.add_column(
        "consumer_metadata", sa.Column("skipped", sa.BigInteger(), server_default=sa.text("0"), nullable=False)
    )
    op.create_table(
        "deleted_topic",
        sa.Column("topic_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("deleted_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("topic_id"),
    )


def downgrade() -> None:
    op.drop_table("deleted_topic")
    op.drop_column("consumer_metadata", "skipped")
    op.drop_column("partition_metadata", "founders")
    op.drop_column("broker_metadata", "raft_address")
