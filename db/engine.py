"""Connections to the PostgreSQL trio: the primary for the write manager, a standby for each read manager."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, SecretStr
from sqlalchemy import URL, Connection, Engine, create_engine, text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session

from db.waiting import bound_waits
from myqueue.protocol.errors import MetadataUnavailable
from myqueue.protocol.token import Token

# The server gives up on a statement first, so that its answer still arrives. A COMMIT that waits for a standby knows no
# server-side limit: there the second one counts.
STATEMENT_TIMEOUT_MS = 1500
ANSWER_TIMEOUT_S = 1.8


class Address(BaseModel):
    """Where the trio is. The order of hosts is the order of preference."""

    hosts: Sequence[str]
    user: str
    password: SecretStr
    name: str

    def engine(self, session_attributes: str, application: str, pool_size: int) -> Engine:
        bound_waits(ANSWER_TIMEOUT_S)
        url = URL.create(
            "postgresql+psycopg2",
            username=self.user,
            password=self.password.get_secret_value(),
            database=self.name,
            query={"host": list(self.hosts)},
        )
        return create_engine(
            url,
            connect_args={
                "target_session_attrs": session_attributes,
                "application_name": application,
                "connect_timeout": 2,
                "options": f"-c statement_timeout={STATEMENT_TIMEOUT_MS} -c lock_timeout=1000 -c timezone=UTC",
            },
            pool_size=pool_size,
            max_overflow=pool_size,
            pool_timeout=2,
            pool_pre_ping=session_attributes != "read-write",
            executemany_mode="values_plus_batch",
        )


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


class Primary:
    """Write transactions: fenced by the epoch, committed only when a standby has confirmed."""

    def __init__(self, address: Address, application: str, on_fenced: Callable[[], None]) -> None:
        self.engine = address.engine("read-write", application, pool_size=8)
        # Begin and fence travel together, and so do commit and position: claims wait for these round trips.
        self._manual = self.engine.execution_options(isolation_level="AUTOCOMMIT")
        self._on_fenced = on_fenced
        self.epoch: int | None = None

    def take_over(self, holder: str) -> int:
        """From here on, every other write manager is fenced."""
        with _unavailable_if_lost(), self._manual.connect() as connection:
            connection.exec_driver_sql("BEGIN")
            epoch: int = connection.exec_driver_sql(_TAKE_OVER, {"holder": holder}).scalar_one()
            _commit(connection)
        self.epoch = epoch
        return epoch

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        with _unavailable_if_lost(), self._begun() as connection:
            try:
                with Session(connection, expire_on_commit=False) as session:
                    transaction = Transaction(session)
                    yield transaction
                    session.flush()
            except BaseException:
                if not connection.invalidated:
                    connection.exec_driver_sql("ROLLBACK")
                raise
            transaction.token = _commit(connection)

    @contextmanager
    def _begun(self) -> Iterator[Connection]:
        with self._manual.connect() as connection:
            epoch = _first(connection, _BEGIN)
            if epoch != self.epoch:
                connection.exec_driver_sql("ROLLBACK")
                self._on_fenced()
                raise Fenced()
            yield connection

    @contextmanager
    def reading(self) -> Iterator[Session]:
        with _unavailable_if_lost(), self.engine.connect() as connection, Session(connection) as session:
            _first(connection, "SELECT 1")
            yield session

    def problem(self) -> str | None:
        try:
            with self.reading() as session:
                epoch = session.execute(text("SELECT epoch FROM write_manager_epoch WHERE id = 1")).scalar()
        except MetadataUnavailable as error:
            return error.message
        return None if epoch == self.epoch else "another write manager has taken over"

    def close(self) -> None:
        self.engine.dispose()


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


def _commit(connection: Connection) -> Token:
    """Raises unless a standby confirmed: a wait that was cut short has committed here but may be lost by a failover."""
    notices = connection.connection.dbapi_connection.notices  # type: ignore[union-attr]
    notices.clear()
    try:
        lsn, file_name = connection.exec_driver_sql(_COMMIT).one()
    except DBAPIError as error:
        raise MetadataUnavailable(outcome="unknown") from error
    if any("synchronous replication" in notice for notice in notices):
        raise MetadataUnavailable("no standby of the metadata database confirmed the write in time", outcome="unknown")
    return Token(int(file_name[:8], 16), position_of(lsn))


class Standby:
    """Reads for one read manager, from the first standby that answers."""

    def __init__(self, address: Address, application: str) -> None:
        self._engine = address.engine("prefer-standby", application, pool_size=8)

    @contextmanager
    def reading(self) -> Iterator[Session]:
        with _unavailable_if_lost(), self._engine.connect() as connection, Session(connection) as session:
            yield session

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


def wait_for_replay(session: Session, token: Token, patience_s: float) -> bool:
    """True when this connection sees everything up to the token. Replay is usually a few milliseconds behind."""
    deadline = time.monotonic() + patience_s
    while True:
        in_recovery, lsn, timeline = session.execute(
            text(
                "SELECT pg_is_in_recovery(), pg_last_wal_replay_lsn()::text,"
                " (SELECT received_tli FROM pg_stat_wal_receiver)"
            )
        ).one()
        session.rollback()  # the next look, and the read itself, need a snapshot of their own
        if not in_recovery:
            return True
        if timeline is not None and timeline >= token.timeline and position_of(lsn) >= token.position:
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.003)
