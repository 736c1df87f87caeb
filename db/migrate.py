"""Runs the migrations once, under a lock, however many processes start at the same time."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Engine, text

from db.timeouts import time_limit

MIGRATION_TIMEOUT_S = 600
_LOCK = 0x6D7971  # any number, the same in every process


def config() -> Config:
    settings = Config()
    settings.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    return settings


def migrate(engine: Engine) -> None:
    settings = config()
    with time_limit(MIGRATION_TIMEOUT_S, blames_server=False), engine.connect() as connection:
        connection.execute(text("SET statement_timeout = 0"))
        connection.execute(text("SET lock_timeout = 0"))
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
        settings.attributes["connection"] = connection
        command.upgrade(settings, "head")
        connection.commit()
        connection.invalidate()  # its timeouts were lifted
