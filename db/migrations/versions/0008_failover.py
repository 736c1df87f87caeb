"""The lease of the active write manager, and where timelines of the database ended"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "write_manager_lease",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("holder", sa.String(200), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("renewals", sa.BigInteger(), nullable=False),
        sa.Column("released", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.CheckConstraint("id = 1", name="one_lease"),
    )
    op.execute("INSERT INTO write_manager_lease (id, holder, epoch, renewals, released) VALUES (1, '', 0, 0, true)")
    op.create_table(
        "timeline_switch",
        sa.Column("timeline", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("timeline"),
    )


def downgrade() -> None:
    op.drop_table("timeline_switch")
    op.drop_table("write_manager_lease")
