"""Producers and consumers belong to a topic by its id, and tell when they were last used"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

TABLES = (("producer_metadata", "producer_name"), ("consumer", "consumer_name"))


def upgrade() -> None:
    for table, name in TABLES:
        # Without indexes and foreign keys on what changes, one pass over a million rows takes seconds.
        op.drop_constraint(f"{table}_topic_name_fkey", table, type_="foreignkey")
        op.drop_constraint(name, table, type_="unique")
        op.add_column(table, sa.Column("topic_id", sa.Uuid(), nullable=True))
        op.add_column(
            table,
            sa.Column("last_seen", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        )
        op.execute(
            f"UPDATE {table} SET topic_id = topic.topic_id FROM topic WHERE topic.name = {table}.topic_name"  # noqa: S608
        )
        op.alter_column(table, "topic_id", nullable=False)
        op.create_unique_constraint(name, table, ["topic_id", "name"])
        op.create_index(f"{table}_silent", table, ["last_seen"], postgresql_where=sa.text("name IS NULL"))


def downgrade() -> None:
    for table, name in TABLES:
        op.execute(f"DELETE FROM {table} WHERE topic_id NOT IN (SELECT topic_id FROM topic)")  # noqa: S608
        op.drop_index(f"{table}_silent", table)
        op.drop_constraint(name, table, type_="unique")
        op.drop_column(table, "last_seen")
        op.drop_column(table, "topic_id")
        op.create_unique_constraint(name, table, ["topic_name", "name"])
        op.create_foreign_key(f"{table}_topic_name_fkey", table, "topic", ["topic_name"], ["name"], ondelete="CASCADE")
