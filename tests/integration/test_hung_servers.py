"""PostgreSQL servers that hang or are gone: what reads cost meanwhile, and where they go afterwards."""

import os
import resource
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from db.migrate import MIGRATIONS_LOCK, migrate
from db.primary import Primary
from db.session_tokens import wait_for_replay
from db.standby import STANDBY_CONNECTIONS, Standby
from myqueue.protocol.token import Token
from read_manager.metadata import Metadata
from read_manager.write_manager_client import WriteManagerClient
from service.active_manager import ManagerCaller, WriteManagerFollower
from service.calls import Caller
from stack.local import LocalStack
from tests.integration.conftest import address
from tests.integration.postgres_servers import as_manager, hanging
from tests.waiting import until

READS = 30


@pytest.fixture
def standby(trio: LocalStack) -> Iterator[Standby]:
    with closing(Standby(address(trio, "postgres-2"), "test")) as opened:
        yield opened


def read_from(standby: Standby) -> int:
    """The port of the server that answered."""
    with standby.reading() as session:
        return int(session.execute(text("SELECT inet_server_port()")).scalar_one())


def fill_pool(standby: Standby) -> None:
    with ExitStack() as sessions:
        for _ in range(STANDBY_CONNECTIONS):
            sessions.enter_context(standby.reading()).execute(text("SELECT 1"))


def returns_to(standby: Standby, port: int) -> None:
    def is_back() -> bool:
        standby.probe()
        return read_from(standby) == port

    until(is_back, within_s=15, what="reads go back to the preferred standby")


@pytest.mark.parametrize("hung", [("postgres-2",), ("postgres-2", "postgres-3")])
def test_a_hung_server_costs_one_timeout_once(trio: LocalStack, standby: Standby, hung: tuple[str, ...]) -> None:
    """Not one for each connection that was pooled, nor for each request; and the next server has its own time."""
    fill_pool(standby)
    next_best = trio.port_of("postgres-3" if len(hung) == 1 else "postgres-1")
    with hanging(trio, *hung):
        started_s = time.monotonic()
        with ThreadPoolExecutor(4) as readers:
            ports = list(readers.map(lambda _: read_from(standby), range(READS)))
        took_s = time.monotonic() - started_s
    assert set(ports) == {next_best}
    assert took_s < 5
    returns_to(standby, trio.port_of("postgres-2"))


def test_reads_leave_the_primary_when_a_standby_is_back(trio: LocalStack, standby: Standby) -> None:
    fill_pool(standby)
    trio.stop("postgres-2")
    trio.stop("postgres-3")
    try:
        assert read_from(standby) == trio.port_of("postgres-1")
        fill_pool(standby)
    finally:
        trio.start("postgres-3")
        returns_to(standby, trio.port_of("postgres-3"))
        trio.start("postgres-2")
        returns_to(standby, trio.port_of("postgres-2"))


def test_descriptors_above_1023_are_waited_for(standby: Standby) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
    with ExitStack() as opened, socket.socket() as some:
        while True:
            descriptor = os.dup(some.fileno())
            opened.callback(os.close, descriptor)
            if descriptor > 1100:
                break
        fill_pool(standby)
    standby.close()


def test_the_write_manager_is_asked_with_no_connection_in_hand(trio: LocalStack, standby: Standby) -> None:
    """Else as many slow answers of the write manager as there are connections stop all reads."""

    asked: list[str] = []

    class WriteManager(WriteManagerClient):
        def topics(self, token: Token | None) -> list[str]:
            asked.append("topics")
            fill_pool(standby)
            return ["answered"]

    write_manager = WriteManager(ManagerCaller(Caller(""), WriteManagerFollower(["http://127.0.0.1:1"])))
    metadata = Metadata(standby, write_manager, replay_timeout_s=0)
    assert metadata.topics(Token(1 << 30, 0)) == ["answered"]
    assert asked == ["topics"]


def test_a_token_is_answered_without_a_primary(trio: LocalStack, standby: Standby) -> None:
    """By a standby that has replayed it, and never for a place that it has not."""
    with closing(Primary(address(trio), "test", on_fenced=lambda: None)) as primary:
        migrate(primary.engine)
        primary.take_over("test")
        with primary.transaction() as transaction:
            transaction.session.execute(text("SELECT txid_current()"))
    token = transaction.token
    assert token is not None
    later = Token(token.timeline + 1, token.position)
    with closing(Standby(address(trio, only=True), "test")) as replaced, replaced.reading() as session:
        assert wait_for_replay(session, token, 0)
        assert not wait_for_replay(session, later, 0), "a primary that was replaced has not seen it"
    trio.stop("postgres-1")
    try:
        with standby.reading() as session:
            receiving = text("SELECT count(*) FROM pg_stat_wal_receiver")
            until(lambda: session.execute(receiving).scalar() == 0, within_s=10, what="the standby receives nothing")
            assert wait_for_replay(session, token, 2)
            assert not wait_for_replay(session, later, 0.1)
            assert not wait_for_replay(session, Token(token.timeline, token.position + (1 << 24)), 0.1)
    finally:
        trio.start("postgres-1")


def test_a_database_that_is_migrated_is_not_migrated_again(trio: LocalStack) -> None:
    """A takeover must not wait for the migrations' lock, or without limits, when there is nothing to do."""
    with closing(Primary(address(trio), "test", on_fenced=lambda: None)) as primary:
        migrate(primary.engine)
        with ThreadPoolExecutor(1) as threads, closing(as_manager(trio)) as other:
            other.cursor().execute(f"SELECT pg_advisory_lock({MIGRATIONS_LOCK})")
            threads.submit(migrate, primary.engine).result(20)


def test_a_migration_ends_with_a_server_that_hangs(trio: LocalStack) -> None:
    with closing(Primary(address(trio), "test", on_fenced=lambda: None)) as primary:
        migrate(primary.engine)
        with ThreadPoolExecutor(1) as threads, closing(as_manager(trio)) as other:
            revision = _one(other, "SELECT version_num FROM alembic_version")
            other.cursor().execute("UPDATE alembic_version SET version_num = '0007'")
            other.cursor().execute(f"SELECT pg_advisory_lock({MIGRATIONS_LOCK})")
            migrating = threads.submit(migrate, primary.engine)
            waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            until(lambda: _one(other, waits) == 1, within_s=20, what="the migration waits for its lock")
            primary.servers.probe()
            with hanging(trio, "postgres-1"):
                primary.servers.probe()  # as the write manager does every second
                with pytest.raises(OperationalError):
                    migrating.result(20)
            other.cursor().execute(f"UPDATE alembic_version SET version_num = '{revision}'")


def _one(connection: Any, statement: str) -> Any:
    cursor = connection.cursor()
    cursor.execute(statement)
    return cursor.fetchone()[0]
