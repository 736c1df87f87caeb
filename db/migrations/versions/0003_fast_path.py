"""Producer epochs, brokers' data addresses, remembered commits"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("producer_metadata", sa.Column("epoch", sa.Integer(), nullable=True))
    op.add_column(
        "broker_metadata", sa.Column("data_address", sa.String(length=300), server_default="", nullable=False)
    )
    op.add_column(
        "consumer", sa.Column("recent_commits", postgresql.JSONB(), server_default=sa.text("'[]'"), nullable=False)
    )


def downgrade() -> None:
    op.drop_column("consumer", "recent_commits")
    op.drop_column("broker_metadata", "data_address")
    op.drop_column("producer_metadata", "epoch")
