"""Commits that were given up before a standby confirmed them: what they wrote may be lost by a failover."""

import threading
from contextlib import suppress

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from myqueue.protocol.errors import MetadataUnavailable

# Whatever it is doing: a session that has not come to its COMMIT yet would commit later, unseen.
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


TURN_S = 0.5


class Unconfirmed:
    """While there is something unconfirmed, nothing read from the primary counts and no further commit is begun.

    A session that waits for a standby does so until one answers, long after its client has gone. So it is ended, which
    makes what it committed visible to everybody.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._looking = threading.Lock()
        self._changing = threading.Lock()
        self._sessions: set[tuple[object, int]] = set()  # server and process: given up, not known to have ended
        self._given_up = 0
        self._position: tuple[int, str] | None = None  # of the last so many given up ones, all have ended before it
        self._exists = False

    def give_up(self, session: tuple[object, int] | None) -> None:
        """A commit of that server's process has an unknown outcome; None: it has committed, and its session goes on."""
        with self._changing:  # before the session ends: nobody may see what it wrote and not hear of it
            self._exists = True
            self._given_up += 1
            if session is not None:
                self._sessions.add(session)
        with suppress(DBAPIError, PoolTimeout):  # the next check tries again
            self._look()

    def check(self) -> None:
        """Raises while there is something unconfirmed. Asks the server only if there was."""
        if not self._exists:
            return
        try:
            is_confirmed = self._look()
        except (DBAPIError, PoolTimeout) as error:
            raise MetadataUnavailable(outcome="not_written") from error
        if not is_confirmed:
            raise MetadataUnavailable(
                "no standby of the metadata database has confirmed the writes before", outcome="not_written"
            )

    def _look(self) -> bool:
        """Who has waited for another's look that long need not look itself: the server hangs."""
        if not self._looking.acquire(timeout=TURN_S):
            return False
        try:
            return self._ask()
        finally:
            self._looking.release()

    def _ask(self) -> bool:
        with self._engine.connect() as connection:
            server = getattr(connection.connection.dbapi_connection, "server", None)
            with self._changing:
                sessions, given_up = set(self._sessions), self._given_up
            if sessions:
                # The number of a process on another server means somebody else here, and what was there is not here.
                here = [pid for where, pid in sessions if where is server]
                ended = connection.exec_driver_sql(_END_SESSIONS, {"sessions": here})
                sessions -= {(server, pid) for pid, has_ended in ended if not has_ended}
                with self._changing:
                    self._sessions -= sessions
                if self._sessions:
                    return False
            if self._position is None or self._position[0] != given_up:
                self._position = given_up, connection.exec_driver_sql(_POSITION).scalar_one()
            is_confirmed = connection.exec_driver_sql(_IS_CONFIRMED, {"position": self._position[1]}).scalar_one()
            with self._changing:
                if is_confirmed and self._given_up == given_up:
                    self._exists = False
            return not self._exists
