"""Connections to the PostgreSQL trio: the primary for the write manager, a standby for each read manager."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, SecretStr
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session

from db.hosts import Host, Hosts, Wanted
from db.unconfirmed import Unconfirmed
from db.waiting import COMMIT_TIMEOUT_S, STATEMENT_TIMEOUT_MS, bound_waits, limited
from myqueue.protocol.errors import MetadataUnavailable
from myqueue.protocol.token import Token

# The pools of all managers together fit into max_connections, less what is reserved: see db/postgresql.conf.
PRIMARY_CONNECTIONS = 16
STANDBY_CONNECTIONS = 8
_LOCK_NOT_AVAILABLE = "55P03"


class Address(BaseModel):
    """Where the trio is. The order of hosts is the order of preference."""

    hosts: Sequence[str]
    user: str
    password: SecretStr
    name: str
    spread: bool = False  # over hosts that are equally good, instead of preferring the first

    def servers(self, wanted: Wanted, application: str, avoid_s: float) -> Hosts:
        bound_waits()
        parameters = {
            "user": self.user,
            "password": self.password.get_secret_value(),
            "dbname": self.name,
            "application_name": application,
            "options": f"-c statement_timeout={STATEMENT_TIMEOUT_MS} -c lock_timeout=1000 -c timezone=UTC",
        }
        return Hosts(self.hosts, wanted, parameters, avoid_s, self.spread)


def engine_of(servers: Hosts, connections: int, *, kept: int | None = None, ping: bool = True) -> Engine:
    kept = connections if kept is None else kept
    engine = create_engine(
        "postgresql+psycopg2://",
        creator=servers.connect,
        pool_size=kept,
        max_overflow=connections - kept,
        pool_timeout=2,
        executemany_mode="values_plus_batch",
    )
    servers.attach(engine, ping=ping)
    return engine


class Fenced(MetadataUnavailable):
    """Another write manager took over: this process must not write any more."""

    default_message = "another write manager has taken over"
    default_outcome = "not_written"


@dataclass(slots=True)
class Transaction:
    session: Session
    token: Token | None = None  # set when the transaction has committed


_BEGIN = "BEGIN; SELECT epoch FROM write_manager_epoch WHERE id = 1 FOR SHARE"
_COMMIT = "COMMIT; SELECT pg_current_wal_lsn()::text, pg_walfile_name(pg_current_wal_lsn())"
_TAKE_OVER = """
    INSERT INTO write_manager_epoch (id, epoch, holder) VALUES (1, 1, %(holder)s)
    ON CONFLICT (id) DO UPDATE
    SET epoch = write_manager_epoch.epoch + 1, holder = %(holder)s, taken_at = now() RETURNING epoch
"""
# Its client may have died: nobody else would end a session that waits for a standby, or for its client.
_END_PREDECESSOR = """
    SELECT pg_terminate_backend(pid, 500) FROM pg_stat_activity
    WHERE datname = current_database() AND usename = current_user AND pid <> pg_backend_pid()
    AND (wait_event = 'SyncRep' OR state LIKE 'idle in transaction%%')
    AND pid IN (SELECT pid FROM pg_locks WHERE relation = 'write_manager_epoch'::regclass AND granted)
"""


class Primary:
    """Write transactions: fenced by the epoch, committed only when a standby has confirmed."""

    def __init__(self, address: Address, application: str, on_fenced: Callable[[], None]) -> None:
        servers = address.servers("primary", application, avoid_s=1.0)
        self.engine = engine_of(servers, PRIMARY_CONNECTIONS, kept=8, ping=False)
        # Begin and fence travel together, and so do commit and position: claims wait for these round trips.
        self._manual = self.engine.execution_options(isolation_level="AUTOCOMMIT")
        self._on_fenced = on_fenced
        # A connection of its own: the others may all be waiting for a standby.
        self._looks = engine_of(servers, 1)
        self._unconfirmed = Unconfirmed(self._looks)
        self.epoch: int | None = None

    def take_over(self, holder: str) -> int:
        """From here on, every other write manager is fenced.

        A standby that has confirmed this commit has all earlier ones too. So everything that is read afterwards is
        confirmed, whatever became of the write manager before and of its sessions.
        """
        self._unconfirmed.check()
        with _unavailable_if_lost():
            try:
                epoch = self._take_epoch(holder)
            except DBAPIError as error:
                if getattr(error.orig, "pgcode", None) != _LOCK_NOT_AVAILABLE:
                    raise
                with self._manual.connect() as connection:
                    connection.exec_driver_sql(_END_PREDECESSOR)
                epoch = self._take_epoch(holder)
        self.epoch = epoch
        return epoch

    def _take_epoch(self, holder: str) -> int:
        with self._manual.connect() as connection:
            _first(connection, "BEGIN; SELECT 1")
            with _rolled_back_on_error(connection):
                epoch: int = connection.exec_driver_sql(_TAKE_OVER, {"holder": holder}).scalar_one()
            self._commit(connection)
        return epoch

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        self._unconfirmed.check()
        with _unavailable_if_lost(), self._manual.connect() as connection:
            with _rolled_back_on_error(connection):
                if _first(connection, _BEGIN) != self.epoch:
                    self._on_fenced()
                    raise Fenced()
                with Session(connection, expire_on_commit=False) as session:
                    transaction = Transaction(session)
                    yield transaction
                    session.flush()
            transaction.token = self._commit(connection)

    def _commit(self, connection: Connection) -> Token:
        """Raises unless a standby confirmed: a wait that was cut short has committed here but may be lost by a
        failover."""
        session: Any = connection.connection.dbapi_connection
        server, server_process = session.server, session.info.backend_pid
        session.notices.clear()
        try:
            with limited(COMMIT_TIMEOUT_S, blames_server=False):
                lsn, file_name = connection.exec_driver_sql(_COMMIT).one()
        except DBAPIError as error:
            self._unconfirmed.give_up((server, server_process))
            raise MetadataUnavailable(outcome="unknown") from error
        if any("synchronous replication" in notice for notice in session.notices):
            self._unconfirmed.give_up(None)
            raise MetadataUnavailable(
                "no standby of the metadata database confirmed the write in time", outcome="unknown"
            )
        return Token(_timeline_of(file_name), position_of(lsn))

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """Of what a standby has confirmed. A commit that was given up meanwhile may have been seen: then it raises."""
        self._unconfirmed.check()
        with self._session() as session:
            yield session
        self._unconfirmed.check()

    @contextmanager
    def _session(self) -> Iterator[Session]:
        with _unavailable_if_lost(), self.engine.connect() as connection, Session(connection) as session:
            _first(connection, "SELECT 1")
            yield session

    def problem(self) -> str | None:
        """Reads and produce need no standby, so that none confirms is no reason to hand requests elsewhere."""
        try:
            with self._session() as session:
                epoch = session.execute(text("SELECT epoch FROM write_manager_epoch WHERE id = 1")).scalar()
        except MetadataUnavailable as error:
            return error.message
        return None if epoch == self.epoch else "another write manager has taken over"

    def close(self) -> None:
        self.engine.dispose()
        self._looks.dispose()


@contextmanager
def _unavailable_if_lost() -> Iterator[None]:
    try:
        yield
    except IntegrityError:
        raise
    except (DBAPIError, PoolTimeout) as error:
        raise MetadataUnavailable(outcome="not_written") from error


def _first(connection: Connection, statement: str) -> Any:
    """The first statement on a pooled connection, which may have died with its server: then another one tries."""
    try:
        return connection.exec_driver_sql(statement).scalar()
    except DBAPIError as error:
        if not error.connection_invalidated:
            raise
        connection.rollback()
        return connection.exec_driver_sql(statement).scalar()


@contextmanager
def _rolled_back_on_error(connection: Connection) -> Iterator[None]:
    """The driver knows nothing of a transaction that was begun by a statement of its own."""
    try:
        yield
    except BaseException:
        if not connection.invalidated:
            connection.exec_driver_sql("ROLLBACK")
        raise


class Standby:
    """Reads for one read manager, from the first standby that answers; from the primary only while none does."""

    def __init__(self, address: Address, application: str) -> None:
        self._servers = address.servers("standby", application, avoid_s=5.0)
        self._engine = engine_of(self._servers, STANDBY_CONNECTIONS)

    @contextmanager
    def reading(self) -> Iterator[Session]:
        with _unavailable_if_lost(), self._engine.connect() as connection, Session(connection) as session:
            yield session

    def probe(self) -> None:
        """Every few seconds: while servers fail, no request is to find out whether they still do."""
        self._servers.probe()

    def problem(self) -> str | None:
        try:
            with self.reading() as session:
                session.execute(text("SELECT 1"))
        except MetadataUnavailable as error:
            return error.message
        return None

    def close(self) -> None:
        self._engine.dispose()


def position_of(lsn: str) -> int:
    """PostgreSQL writes a log position as two hexadecimal halves: 0/3000148."""
    high, low = lsn.split("/")
    return (int(high, 16) << 32) | int(low, 16)


def _timeline_of(file_name: str) -> int:
    return int(file_name[:8], 16)


# What a standby receives from a timeline it also replays from there: it could not follow it otherwise. Without a
# primary it receives nothing; then the control file has a timeline that was replayed, if not always the latest.
_REPLAYED = text("""
    SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END::text,
    CASE WHEN NOT pg_is_in_recovery() THEN pg_walfile_name(pg_current_wal_lsn()) END,
    greatest(
        (SELECT received_tli FROM pg_stat_wal_receiver),
        (SELECT timeline_id FROM pg_control_checkpoint()),
        (SELECT min_recovery_end_timeline FROM pg_control_recovery())
    )
""")


def wait_for_replay(session: Session, token: Token, patience_s: float) -> bool:
    """True when this connection sees everything up to the token. Replay is usually a few milliseconds behind."""
    deadline = time.monotonic() + patience_s
    while True:
        lsn, file_name, timeline = session.execute(_REPLAYED).one()
        server: Host = session.connection().connection.dbapi_connection.server  # type: ignore[union-attr]
        session.rollback()  # the next look, and the read itself, need a snapshot of their own
        if file_name is not None:
            timeline = _timeline_of(file_name)  # of a primary; one that was replaced is still on its old timeline
        else:
            # No server goes back to an earlier timeline: what was seen before holds after its primary is gone.
            timeline = server.timeline = max(timeline, server.timeline)
        if timeline >= token.timeline and position_of(lsn) >= token.position:
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.003)
