"""The lease of the active write manager: one row, counted up by its holder and watched by the standby.

Its statements are committed on the primary alone (`synchronous_commit = local`): a renewal must not wait for a standby
of PostgreSQL. What depends on the lease does: the epoch, which is taken after it and confirmed together with it.
"""

import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.exc import DBAPIError

from db.servers import DatabaseServers, execute_first, unavailable_if_lost
from db.session_tokens import timeline_of
from db.settings import DatabaseAddress
from db.timelines import CurrentTimeline

_UNDEFINED_TABLE = "42P01"
NAME_CHARS = 40  # of a manager's name in the names of its sessions, which PostgreSQL cuts at 63 bytes
_HOLDING, _WATCHING = " lease", " standby"

# A primary that has lost its standbys may have been replaced by one of them.
_HAS_STANDBY = """
    (current_setting('synchronous_standby_names') = '' OR EXISTS (
        SELECT FROM pg_stat_replication WHERE state = 'streaming' AND sync_state IN ('sync', 'quorum')
        AND flush_lsn >= %(written)s::pg_lsn
    ))
"""
_NOTHING_WRITTEN = "0/0"

_LOOK = f"""
    SELECT holder, epoch, renewals, released, {_HAS_STANDBY}, EXISTS (
        SELECT FROM pg_stat_activity
        WHERE datname = current_database() AND usename = current_user AND starts_with(application_name, %(named)s)
        AND application_name LIKE '%%{_HOLDING}' AND NOT starts_with(application_name, %(own)s)
    )
    FROM write_manager_lease WHERE id = 1
"""  # noqa: S608 constants
_TAKE = """
    SET synchronous_commit = local;
    UPDATE write_manager_lease SET holder = %(name)s, epoch = 0, renewals = renewals + 1, released = false
    WHERE id = 1 AND holder = %(holder)s AND epoch = %(epoch)s AND renewals = %(renewals)s AND released = %(released)s
    RETURNING renewals
"""
_RENEW = f"""
    SET synchronous_commit = local;
    UPDATE write_manager_lease SET epoch = %(epoch)s, renewals = renewals + 1
    WHERE id = 1 AND holder = %(name)s AND epoch = ANY(%(expected)s) AND NOT released
    RETURNING (SELECT epoch FROM write_manager_epoch WHERE id = 1), pg_walfile_name(pg_current_wal_lsn()),
    pg_current_wal_insert_lsn()::text, {_HAS_STANDBY}
"""  # noqa: S608 constants
_RELEASE = """
    SET synchronous_commit = local;
    UPDATE write_manager_lease SET released = true, renewals = renewals + 1
    WHERE id = 1 AND holder = %(name)s AND epoch = ANY(%(expected)s)
    RETURNING renewals
"""
# A session whose client's machine is gone lives on until TCP notices. Up to 0.9 a session has just its manager's name.
_END_SESSIONS = f"""
    SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
    WHERE datname = current_database() AND usename = current_user AND NOT starts_with(application_name, %(own)s)
    AND application_name NOT LIKE '%%{_WATCHING}'
    AND EXISTS (
        SELECT FROM write_manager_epoch
        WHERE application_name = holder OR starts_with(application_name, left(holder, {NAME_CHARS}) || ' ')
    )
"""  # noqa: S608 constants


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """The row."""

    holder: str
    epoch: int  # 0 until the holder has taken one
    renewals: int
    released: bool


@dataclass(frozen=True, slots=True)
class LeaseLook:
    record: LeaseRecord
    has_standby: bool  # one of PostgreSQL follows, so that the epoch of a new holder can be confirmed
    namesake_lives: bool  # another process with this one's name has a session that renews


@dataclass(frozen=True, slots=True)
class LeaseRenewed:
    epoch: int | None  # of the epoch's row, whoever took it
    timeline: int
    written: str  # the place of this renewal in the write-ahead log
    confirmed: bool  # a standby of PostgreSQL has got the earlier renewal that was asked for


def sessions_of(name: str) -> str:
    """The beginning of the names of a write manager's sessions, whatever process it is."""
    return name[:NAME_CHARS] + " "


class ManagerLease:
    """One thread at a time, except that one may look while another one renews."""

    def __init__(self, address: DatabaseAddress, name: str, *, current: CurrentTimeline | None = None) -> None:
        """`current`: as others in this process see it. A primary that was replaced is not asked any more."""
        self._name = name
        # Another one in each process: a restarted write manager has the name of the one before.
        self.application = sessions_of(name) + secrets.token_hex(4)
        watching = DatabaseServers(address, "primary", self.application + _WATCHING, avoid_s=1.0, current=current)
        holding = DatabaseServers(address, "primary", self.application + _HOLDING, avoid_s=1.0, current=current)
        # Without a ping: a connection that was replaced unnoticed would hide that the server was away.
        self._watching = watching.engine(1, ping=False).execution_options(isolation_level="AUTOCOMMIT")
        self._holding = holding.engine(1, ping=False).execution_options(isolation_level="AUTOCOMMIT")

    def look(self) -> LeaseLook | None:
        """None when no migration has made the table yet."""
        values = {"named": sessions_of(self._name), "own": self.application, "written": _NOTHING_WRITTEN}
        with unavailable_if_lost(), self._watching.connect() as connection:
            try:
                *row, has_standby, namesake_lives = connection.exec_driver_sql(_LOOK, values).one()
            except DBAPIError as error:
                if getattr(error.orig, "pgcode", None) == _UNDEFINED_TABLE:
                    return None
                raise
        return LeaseLook(LeaseRecord(*row), has_standby, namesake_lives)

    def take(self, seen: LeaseRecord) -> bool:
        """False when the row is not as it was seen any more."""
        values = {"name": self._name, "holder": seen.holder, "epoch": seen.epoch}
        values |= {"renewals": seen.renewals, "released": seen.released}
        if self._one_or_none(_TAKE, values) is not None:
            return True
        self._holding.dispose()  # this connection may be dead by the next time, and a failure costs a whole wait
        return False

    def renew(self, epoch: int, expected: Collection[int], written: str | None = None) -> LeaseRenewed | None:
        """None when the lease is another one's. `expected` are the epochs that the row may have, `epoch` is stored.
        `written` is the place of an earlier renewal."""
        values = {"name": self._name, "epoch": epoch, "expected": list(expected)}
        row = self._one_or_none(_RENEW, values | {"written": written or _NOTHING_WRITTEN})
        if row is None:
            return None
        taken, wal_file_name, renewed_at, confirmed = row
        return LeaseRenewed(taken, timeline_of(wal_file_name), renewed_at, confirmed)

    def release(self, expected: Collection[int]) -> bool:
        """The next write manager need not wait. False when the lease was another one's already."""
        return self._one_or_none(_RELEASE, {"name": self._name, "expected": list(expected)}) is not None

    def end_predecessors_sessions(self) -> int:
        """Of the write manager that holds the epoch: what they have not committed is rolled back."""
        with unavailable_if_lost(), self._holding.connect() as connection:
            try:
                ended: int = connection.exec_driver_sql(_END_SESSIONS, {"own": self.application}).scalar_one()
            except DBAPIError as error:
                if getattr(error.orig, "pgcode", None) == _UNDEFINED_TABLE:
                    return 0
                raise
        return ended

    def _one_or_none(self, statement: str, values: dict[str, Any]) -> Sequence[Any] | None:
        """Repeated on a new connection if this one has died: a successor ends this process's sessions, and that must
        not look as if PostgreSQL were away. Of a `take` that was carried out the repetition knows nothing; the next
        look then finds the own name."""
        with unavailable_if_lost(), self._holding.connect() as connection:
            return execute_first(connection, statement, values).one_or_none()

    def stop_watching(self) -> None:
        self._watching.dispose()

    def close(self) -> None:
        self._watching.dispose()
        self._holding.dispose()
