"""Runs the migrations once, under a lock, however many processes start at the same time."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, text

from db.timeouts import time_limit

MIGRATION_TIMEOUT_S = 600
MIGRATIONS_LOCK = 0x6D7971  # any number, the same in every process


def config() -> Config:
    settings = Config()
    settings.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    return settings


def migrate(engine: Engine) -> None:
    settings = config()
    if _is_migrated(engine, settings):
        return
    # Without limits of its own, but not on a server that another connection has found hanging.
    with time_limit(MIGRATION_TIMEOUT_S), engine.connect() as connection:
        connection.execute(text("SET statement_timeout = 0"))
        connection.execute(text("SET lock_timeout = 0"))
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": MIGRATIONS_LOCK})
        settings.attributes["connection"] = connection
        command.upgrade(settings, "head")
        connection.commit()
        connection.invalidate()  # its timeouts were lifted


def _is_migrated(engine: Engine, settings: Config) -> bool:
    """Almost always: a takeover does not wait for a lock, nor longer than for any other statement."""
    heads = ScriptDirectory.from_config(settings).get_heads()
    with engine.connect() as connection:
        return set(MigrationContext.configure(connection).get_current_heads()) == set(heads)
