"""Commits that ended before a standby confirmed them: a failover may lose what they wrote."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from myqueue.protocol.errors import MetadataUnavailable

# In any state: a session that has not reached its COMMIT yet would commit later, unseen.
_END_SESSIONS = """
    SELECT pid, pg_terminate_backend(pid, 500) FROM pg_stat_activity
    WHERE pid = ANY(%(sessions)s) AND datname = current_database() AND usename = current_user
"""
_POSITION = "SELECT pg_current_wal_flush_lsn()::text"
# A server that has less than the position is another one, promoted since: a standby has to have what it has. One that
# is set up to wait for no standby confirms its commits alone.
_IS_CONFIRMED = """
    SELECT current_setting('synchronous_standby_names') = '' OR EXISTS (
        SELECT FROM pg_stat_replication WHERE state = 'streaming' AND sync_state IN ('sync', 'quorum')
        AND flush_lsn >= least(%(position)s::pg_lsn, pg_current_wal_flush_lsn())
    )
"""

CHECK_LOCK_S = 0.5


class UnconfirmedCommits:
    """While a commit is unconfirmed, reads from the primary do not count and no further commit begins.

    A session that waits for a standby waits until one answers, long after its client has gone. So it is terminated,
    which makes its commit visible.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._checking = threading.Lock()
        self._changing = threading.Lock()
        self._background = ThreadPoolExecutor(1, "confirmations")
        self._sessions: set[tuple[object, int]] = set()  # server and backend pid, until the session has ended
        self._marked = 0
        self._position: tuple[int, str] | None = None  # how many had been marked, and an LSN after all of them
        self._exists = False

    def mark_unconfirmed(self, session: tuple[object, int] | None) -> None:
        """The commit of this session has an unknown outcome. None: it committed, and its session goes on."""
        with self._changing:  # before the session ends: from then on others can read what it wrote
            self._exists = True
            self._marked += 1
            if session is not None:
                self._sessions.add(session)
        self._background.submit(self._confirm_quietly)  # the time of its request is used up

    def _confirm_quietly(self) -> None:
        with suppress(DBAPIError, PoolTimeout):  # the next check tries again
            self._try_confirm()

    def check(self) -> None:
        """Raise while a commit is unconfirmed. Queries the server only if there was one."""
        if not self._exists:
            return
        try:
            is_confirmed = self._try_confirm()
        except (DBAPIError, PoolTimeout) as error:
            raise MetadataUnavailable(outcome="not_written") from error
        if not is_confirmed:
            raise MetadataUnavailable(
                "no standby of the metadata database has confirmed the writes before", outcome="not_written"
            )

    def _try_confirm(self) -> bool:
        """False also when another thread holds the check for too long: the server hangs."""
        if not self._checking.acquire(timeout=CHECK_LOCK_S):
            return False
        try:
            return self._confirm()
        finally:
            self._checking.release()

    def _confirm(self) -> bool:
        with self._engine.connect() as connection:
            server = getattr(connection.connection.dbapi_connection, "server", None)
            with self._changing:
                sessions, marked = set(self._sessions), self._marked
            if sessions:
                # A backend pid of another server means another session here, and its commit is not on this server.
                here = [pid for where, pid in sessions if where is server]
                ended = connection.exec_driver_sql(_END_SESSIONS, {"sessions": here})
                sessions -= {(server, pid) for pid, has_ended in ended if not has_ended}
                with self._changing:
                    self._sessions -= sessions
                if self._sessions:
                    return False
            if self._position is None or self._position[0] != marked:
                self._position = marked, connection.exec_driver_sql(_POSITION).scalar_one()
            is_confirmed = connection.exec_driver_sql(_IS_CONFIRMED, {"position": self._position[1]}).scalar_one()
            with self._changing:
                if is_confirmed and self._marked == marked:
                    self._exists = False
            return not self._exists
