"""Commits that no standby confirms: what becomes of their sessions, and what counts until one does."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import psycopg2
import pytest
from sqlalchemy import Connection, select

from db.models import ManagerMetadata
from db.primary import PRIMARY_CONNECTIONS, Primary
from myqueue.protocol.errors import MetadataUnavailable
from myqueue.protocol.token import Token
from stack.local import LocalStack
from tests.cluster import STANDBYS
from tests.integration.conftest import taken_over
from tests.integration.postgres_servers import as_admin, as_manager, connected
from tests.integration.test_metadata import _write as write
from tests.waiting import until

CLIENTS = 12
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'myqueue'"
STREAMING = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"


@pytest.fixture
def no_standbys(trio: LocalStack, primary: Primary) -> Iterator[None]:
    for name in STANDBYS:
        trio.stop(name)
    yield
    for name in STANDBYS:
        trio.start(name)
    until(lambda: as_admin(trio, "postgres-1", STREAMING) == [(2,)], within_s=20, what="both standbys stream")


def outcome(primary: Primary, name: str) -> str:
    try:
        write(primary, name)
    except MetadataUnavailable as error:
        return str(error.outcome)
    return "written"


def test_a_server_that_dies_after_the_commit_costs_nothing(
    trio: LocalStack, primary: Primary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write is acknowledged, and its connection gives its place in the pool to another one."""
    commit = Primary._commit

    def commit_and_die(self: Primary, connection: Connection) -> Token:
        token = commit(self, connection)
        session: Any = connection.connection.dbapi_connection
        pid = session.info.backend_pid
        assert as_admin(trio, "postgres-1", f"SELECT pg_terminate_backend({pid}, 5000)") == [(True,)]
        return token

    for number in range(PRIMARY_CONNECTIONS + 1):
        assert outcome(primary, f"before-{number}") == "written"
        with monkeypatch.context() as patched:
            patched.setattr(Primary, "_commit", commit_and_die)
            assert outcome(primary, f"last-{number}") == "written"


def test_a_commit_that_is_given_up_leaves_no_session_and_is_not_believed(
    trio: LocalStack, primary: Primary, no_standbys: None
) -> None:
    before = as_admin(trio, "postgres-1", SESSIONS)[0][0]
    with ThreadPoolExecutor(CLIENTS) as clients:
        outcomes = list(clients.map(lambda number: outcome(primary, f"given-up-{number}"), range(CLIENTS)))
    assert set(outcomes) <= {"unknown", "not_written"}
    assert "unknown" in outcomes
    # PostgreSQL ends a session a moment after it got the signal.
    until(lambda: as_admin(trio, "postgres-1", WAITING) == [(0,)], within_s=5, what="no session waits for a standby")
    started_s = time.monotonic()
    assert {outcome(primary, "refused") for _ in range(10)} == {"not_written"}
    assert time.monotonic() - started_s < 5, "each of them began a commit that could not be confirmed"
    with pytest.raises(MetadataUnavailable), primary.reading():
        pass
    assert primary.problem() is None, "it serves what needs no standby"
    assert as_admin(trio, "postgres-1", SESSIONS)[0][0] <= before + 10
    trio.start("postgres-2")
    until(lambda: outcome(primary, "confirmed") == "written", within_s=20, what="a standby confirms again")
    with primary.reading() as session:
        names = set(session.scalars(select(ManagerMetadata.name)))
    assert {f"given-up-{number}" for number, end in enumerate(outcomes) if end == "unknown"} <= names
    assert not names & {"refused", *(f"given-up-{n}" for n, end in enumerate(outcomes) if end == "not_written")}


def test_a_write_manager_takes_over_from_one_that_died_in_a_transaction(trio: LocalStack, primary: Primary) -> None:
    """Its machine is gone, and PostgreSQL has not noticed."""
    with closing(as_manager(trio)) as dead:
        dead.cursor().execute("BEGIN; SELECT epoch FROM write_manager_epoch FOR SHARE")
        before = primary.epoch
        assert before is not None
        assert primary.take_over("successor") == before + 1


def test_a_write_manager_takes_over_from_one_that_died_while_it_waited_for_a_standby(
    trio: LocalStack, primary: Primary, no_standbys: None
) -> None:
    with closing(as_manager(trio)) as dead, ThreadPoolExecutor(1) as waiting:
        cursor = dead.cursor()
        cursor.execute("BEGIN; SELECT epoch FROM write_manager_epoch FOR SHARE; SELECT txid_current()")
        committed = waiting.submit(cursor.execute, "COMMIT")
        until(lambda: as_admin(trio, "postgres-1", WAITING) == [(1,)], within_s=5, what="it waits for a standby")
        with pytest.raises(MetadataUnavailable):
            primary.take_over("successor")
        until(lambda: as_admin(trio, "postgres-1", WAITING) == [(0,)], within_s=5, what="no session waits any more")
        with pytest.raises(psycopg2.OperationalError):
            committed.result()
        trio.start("postgres-3")
        until(lambda: taken_over(primary), within_s=20, what="a standby confirms the epoch")
        assert outcome(primary, "successor") == "written"


def test_a_lock_that_was_not_free_in_time_spoils_no_connection(trio: LocalStack, primary: Primary) -> None:
    with closing(as_manager(trio)) as other:
        other.cursor().execute("BEGIN; SELECT epoch FROM write_manager_epoch FOR UPDATE")
        assert outcome(primary, "locked-out") == "not_written"
        other.cursor().execute("ROLLBACK")
    assert {outcome(primary, "let-in") for _ in range(3)} == {"written"}


def test_standbys_and_operators_connect_when_the_managers_have_used_up_all_connections(trio: LocalStack) -> None:
    with ExitStack() as opened:

        def use_up() -> None:
            while True:
                opened.enter_context(closing(as_manager(trio)))

        with pytest.raises(psycopg2.OperationalError, match="connection slots"):
            use_up()
        # A standby in a container asks its primary something before it streams.
        connected(trio, "postgres-1", "replicator", trio.secrets.replication_password).close()
        trio.stop("postgres-2")
        trio.start("postgres-2")
        until(lambda: as_admin(trio, "postgres-1", STREAMING) == [(2,)], within_s=20, what="the standby streams")
