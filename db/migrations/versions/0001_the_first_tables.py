"""The first tables"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "broker_metadata",
        sa.Column("broker_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("endpoint", sa.String(length=300), nullable=False),
        sa.Column("hostname", sa.String(length=255), nullable=False),
        sa.Column("incarnation", sa.String(length=16), nullable=False),
        sa.Column("status", sa.String(length=10), nullable=False),
        sa.Column("last_heartbeat", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("status in ('active', 'inactive')", name="broker_status"),
        sa.PrimaryKeyConstraint("broker_id"),
        sa.UniqueConstraint("endpoint"),
    )
    op.create_table(
        "id_counter",
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("next_id", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("kind"),
    )
    op.create_table(
        "manager_metadata",
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("endpoint", sa.String(length=300), nullable=False),
        sa.Column("status", sa.String(length=10), nullable=False),
        sa.Column("last_heartbeat", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("status in ('active', 'inactive')", name="manager_status"),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "topic",
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("topic_id", sa.Uuid(), nullable=False),
        sa.Column("replication", sa.Integer(), nullable=False),
        sa.Column("retention_ms", sa.BigInteger(), nullable=True),
        sa.Column("retention_bytes", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("name"),
        sa.UniqueConstraint("topic_id"),
    )
    op.create_table(
        "write_manager_epoch",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("holder", sa.String(length=200), nullable=False),
        sa.Column("taken_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("id = 1", name="one_row"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "consumer",
        sa.Column("consumer_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("topic_name", sa.String(length=200), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=True),
        sa.Column("partition_id", sa.Integer(), nullable=True),
        sa.Column("next_partition", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column(
            "recent_claims", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'[]'"), nullable=False
        ),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["topic_name"], ["topic.name"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("consumer_id"),
        sa.UniqueConstraint("topic_name", "name", name="consumer_name"),
    )
    op.create_table(
        "partition_metadata",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("topic_name", sa.String(length=200), nullable=False),
        sa.Column("partition_id", sa.Integer(), nullable=False),
        sa.Column("broker_id", sa.Integer(), nullable=True),
        sa.Column("term", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("replicas", postgresql.ARRAY(sa.BigInteger()), nullable=False),
        sa.Column("size", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("beginning_offset", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("end_offset", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["broker_id"],
            ["broker_metadata.broker_id"],
        ),
        sa.ForeignKeyConstraint(["topic_name"], ["topic.name"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("topic_name", "partition_id", name="partition_of_topic"),
    )
    op.create_table(
        "producer_metadata",
        sa.Column("producer_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("topic_name", sa.String(length=200), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["topic_name"], ["topic.name"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("producer_id"),
        sa.UniqueConstraint("topic_name", "name", name="producer_name"),
    )
    op.create_table(
        "consumer_metadata",
        sa.Column("consumer_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("partition_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("topic_name", sa.String(length=200), nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
        sa.Column("given_back", postgresql.ARRAY(sa.BigInteger()), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["consumer_id"], ["consumer.consumer_id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("consumer_id", "partition_id"),
    )
    op.create_index("consumer_metadata_topic", "consumer_metadata", ["topic_name"], unique=False)


def downgrade() -> None:
    op.drop_index("consumer_metadata_topic", table_name="consumer_metadata")
    op.drop_table("consumer_metadata")
    op.drop_table("producer_metadata")
    op.drop_table("partition_metadata")
    op.drop_table("consumer")
    op.drop_table("write_manager_epoch")
    op.drop_table("topic")
    op.drop_table("manager_metadata")
    op.drop_table("id_counter")
    op.drop_table("broker_metadata")
