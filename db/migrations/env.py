"""Alembic's entry: runs on the connection that db.migrate hands over, inside its transaction and lock."""

from alembic import context

from db.models import Base

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=Base.metadata, compare_server_default=True)
context.run_migrations()
