"""Damaged and voting replicas of partitions, and the data folders of brokers"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("partition_metadata", sa.Column("damaged", JSONB(), server_default=sa.text("'{}'"), nullable=False))
    op.add_column("partition_metadata", sa.Column("voters", sa.ARRAY(sa.BigInteger()), nullable=True))
    op.create_table(
        "data_folder",
        sa.Column("incarnation", sa.String(16), primary_key=True),
        sa.Column(
            "broker_id",
            sa.Integer(),
            sa.ForeignKey("broker_metadata.broker_id", ondelete="CASCADE"),
            nullable=False,
        ),
        sa.Column("starts", sa.BigInteger(), nullable=False),
        sa.Column("session", sa.String(16), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("last_seen", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("data_folder")
    op.drop_column("partition_metadata", "voters")
    op.drop_column("partition_metadata", "damaged")
