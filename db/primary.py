"""Write transactions on the primary of the metadata database."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from db.servers import DatabaseServers, execute_first, unavailable_if_lost
from db.session_tokens import position_of, timeline_of
from db.settings import DatabaseAddress
from db.timelines import CurrentTimeline, record_switches
from db.timeouts import COMMIT_TIMEOUT_S, time_limit
from db.unconfirmed_commits import UnconfirmedCommits
from myqueue.protocol.errors import MetadataUnavailable
from myqueue.protocol.token import Token

# The pools of all managers together fit into max_connections, less the reserved ones: see db/postgresql.conf.
PRIMARY_CONNECTIONS = 16
_LOCK_NOT_AVAILABLE = "55P03"


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
# One statement: a process that is paused between two would fence the one that took the lease meanwhile.
_TAKE_OVER = """
    INSERT INTO write_manager_epoch (id, epoch, holder)
    SELECT 1, 1, %(holder)s WHERE NOT %(leased)s OR EXISTS (
        SELECT FROM write_manager_lease WHERE id = 1 AND holder = %(holder)s AND epoch = 0 AND NOT released
    )
    ON CONFLICT (id) DO UPDATE
    SET epoch = write_manager_epoch.epoch + 1, holder = %(holder)s, taken_at = now() RETURNING epoch
"""
_RAISE = "UPDATE write_manager_epoch SET epoch = GREATEST(epoch, %(above)s) WHERE id = 1 AND epoch = %(own)s"
# The client of that session may have died: PostgreSQL itself would not end a session that waits for a standby.
_END_PREDECESSOR = """
    SELECT pg_terminate_backend(pid, 500) FROM pg_stat_activity
    WHERE datname = current_database() AND usename = current_user AND pid <> pg_backend_pid()
    AND (wait_event = 'SyncRep' OR state LIKE 'idle in transaction%%')
    AND pid IN (SELECT pid FROM pg_locks WHERE relation = 'write_manager_epoch'::regclass AND granted)
"""


class Primary:
    """Write transactions: fenced by the epoch, committed only when a standby has confirmed."""

    def __init__(
        self,
        address: DatabaseAddress,
        application: str,
        on_fenced: Callable[[], None],
        *,
        current: CurrentTimeline | None = None,
    ) -> None:
        servers = DatabaseServers(address, "primary", application, avoid_s=1.0, current=current)
        self.engine = servers.engine(PRIMARY_CONNECTIONS, kept=8, ping=False)
        # Begin and fence travel together, and so do commit and position: claims wait for these round trips.
        self._manual = self.engine.execution_options(isolation_level="AUTOCOMMIT")
        self._on_fenced = on_fenced
        self.servers = servers
        # A connection of its own: the others may all be waiting for a standby.
        self._confirmations = servers.engine(1)
        self._unconfirmed = UnconfirmedCommits(self._confirmations)
        self.epoch: int | None = None
        self.epoch_timeline: int | None = None  # on which the epoch was taken

    def take_over(self, holder: str, *, leased: bool = False) -> int:
        """From here on, every other write manager is fenced. `leased`: only if the holder has the lease.

        A standby that has confirmed this commit has all earlier ones too. So everything that is read afterwards is
        confirmed, whatever became of the write manager before and of its sessions.
        """
        self._unconfirmed.check()
        with unavailable_if_lost():
            try:
                epoch, timeline = self._take_epoch(holder, leased=leased)
            except DBAPIError as error:
                if getattr(error.orig, "pgcode", None) != _LOCK_NOT_AVAILABLE:
                    raise
                with self._manual.connect() as connection:
                    connection.exec_driver_sql(_END_PREDECESSOR)
                epoch, timeline = self._take_epoch(holder, leased=leased)
        self.epoch, self.epoch_timeline = epoch, timeline
        return epoch

    def _take_epoch(self, holder: str, *, leased: bool) -> tuple[int, int]:
        """With the timeline."""
        with self._manual.connect() as connection:
            execute_first(connection, "BEGIN; SELECT 1")
            with _rolled_back_on_error(connection):
                values = {"holder": holder, "leased": leased}
                epoch: int | None = connection.exec_driver_sql(_TAKE_OVER, values).scalar_one_or_none()
                if epoch is None:
                    raise Fenced()
                record_switches(connection)
            token = self._commit(connection)
        return epoch, token.timeline

    def raise_epoch(self, above: int) -> None:
        """Brokers know that epoch and this database does not: it was restored. The next take-over goes above it.

        Only by the write manager that holds the newest epoch here, which is fenced afterwards like any other. A commit
        of unknown outcome may be repeated.
        """
        self._unconfirmed.check()
        with unavailable_if_lost(), self._manual.connect() as connection:
            execute_first(connection, "BEGIN; SELECT 1")
            with _rolled_back_on_error(connection):
                connection.exec_driver_sql(_RAISE, {"above": above, "own": self.epoch})
            self._commit(connection)
        self._on_fenced()

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        self._unconfirmed.check()
        with unavailable_if_lost(), self._manual.connect() as connection:
            with _rolled_back_on_error(connection):
                if execute_first(connection, _BEGIN).scalar() != self.epoch:
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
            with time_limit(COMMIT_TIMEOUT_S, blames_server=False):
                lsn, file_name = connection.exec_driver_sql(_COMMIT).one()
        except DBAPIError as error:
            self._unconfirmed.mark_unconfirmed((server, server_process))
            raise MetadataUnavailable(outcome="unknown") from error
        if any("synchronous replication" in notice for notice in session.notices):
            self._unconfirmed.mark_unconfirmed(None)
            raise MetadataUnavailable(
                "no standby of the metadata database confirmed the write in time", outcome="unknown"
            )
        return Token(timeline_of(file_name), position_of(lsn))

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """Read what a standby has confirmed. Raises if a commit timed out meanwhile: its rows may have been read."""
        self._unconfirmed.check()
        with self._session() as session:
            yield session
        self._unconfirmed.check()

    @contextmanager
    def _session(self) -> Iterator[Session]:
        with unavailable_if_lost(), self.engine.connect() as connection, Session(connection) as session:
            execute_first(connection, "SELECT 1")
            yield session

    def problem(self) -> str | None:
        """Not a problem: no standby confirms. Reads and produce need none, so the process stays ready."""
        try:
            with self._session() as session:
                epoch = session.execute(text("SELECT epoch FROM write_manager_epoch WHERE id = 1")).scalar()
        except MetadataUnavailable as error:
            return error.message
        return None if epoch == self.epoch else "another write manager has taken over"

    def close(self) -> None:
        self.engine.dispose()
        self._confirmations.dispose()
        self.servers.close()


@contextmanager
def _rolled_back_on_error(connection: Connection) -> Iterator[None]:
    """In autocommit mode the driver does not roll back a transaction that a BEGIN statement began."""
    try:
        yield
    except BaseException:
        if not connection.invalidated:
            connection.exec_driver_sql("ROLLBACK")
        raise
