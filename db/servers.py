"""The PostgreSQL servers one by one: which to connect to next, which to avoid, which to trust as primary or standby."""

import math
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import psycopg2
from sqlalchemy import Connection, CursorResult, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError, DisconnectionError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from db.settings import DatabaseAddress
from db.timelines import CurrentTimeline, ServerState
from db.timeouts import STATEMENT_TIMEOUT_MS, DeadlineExceeded, ServerConnection, install_wait_callback, time_limit
from myqueue.protocol.errors import MetadataUnavailable

CONNECT_TIMEOUT_S = 1.0
LAST_CONNECT_TIMEOUT_S = 0.6  # for each server after the first one has used up the time
PING_TIMEOUT_S = 0.5
SURVEY_S = 2.0  # how old the states of the other servers may be when one is accepted as primary
DETACHED_AFTER_S = 5.0

Wanted = Literal["primary", "standby"]  # "standby" falls back to the primary

# What a standby receives from a timeline it also replays from there: it could not follow it otherwise. Without a
# primary it receives nothing; then the control file has a timeline that was replayed, if not always the latest.
STATE = """
    SELECT NOT pg_is_in_recovery(),
    CASE WHEN pg_is_in_recovery() THEN greatest(
        (SELECT received_tli FROM pg_stat_wal_receiver),
        (SELECT timeline_id FROM pg_control_checkpoint()),
        (SELECT min_recovery_end_timeline FROM pg_control_recovery())
    ) ELSE ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint END,
    coalesce(
        CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END - '0/0', 0
    )::bigint,
    (SELECT received_tli FROM pg_stat_wal_receiver WHERE status = 'streaming'),
    CASE WHEN NOT pg_is_in_recovery() AND current_setting('synchronous_standby_names') <> '' THEN
        (SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming' AND sync_state IN ('sync', 'quorum'))
    END
"""


@dataclass(slots=True, eq=False)
class DatabaseServer:
    """One server and its last known state."""

    address: str
    avoid_s: float  # how long after a failure others are preferred
    current: CurrentTimeline = field(default_factory=CurrentTimeline)
    now_s: Callable[[], float] = time.monotonic
    state: ServerState | None = None
    timeline: int = 0  # the highest that it was seen to replay or write
    asked_s: float = -math.inf  # when its state was last asked for
    streamed_s: float = math.inf  # when it was last seen to stream the current timeline
    failed_s: float = -math.inf  # it could not be connected to
    unreachable_s: float = -math.inf  # it left a new connection without an answer
    hung_s: float = -math.inf  # it left an established connection without an answer

    def hung(self) -> None:
        self.hung_s = self.failed_s = self.now_s()

    def hung_since(self, since_s: float) -> bool:
        return self.hung_s >= since_s

    def answered(self, connection: ServerConnection) -> None:
        self.hung_s = -math.inf
        if self.is_primary is _is_standby(connection):  # it was promoted, or demoted
            self.ask(connection)

    def ask(self, connection: ServerConnection) -> None:
        """For its state, on a connection that is in no transaction."""
        self.asked_s = self.now_s()
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(STATE)
            [answer] = cursor.fetchall()
            self.learn(*answer)
        connection.autocommit = False

    def learn(
        self, is_primary: bool, timeline: int, position: int, streams: int | None, standbys: int | None
    ) -> ServerState:
        """Its answer to STATE."""
        # No server goes back to an earlier timeline: what was seen before holds after its primary is gone. A primary
        # that was replaced is on its old timeline; its data folder may have been that of a standby.
        self.timeline = timeline if is_primary else max(timeline, self.timeline)
        self.current.seen(self.timeline)
        self.state = ServerState(is_primary, self.timeline, position, streams, standbys)
        if is_primary or streams == self.current.highest or self.streamed_s == math.inf:
            self.streamed_s = self.now_s()  # one that is seen for the first time gets as long as the others
        return self.state

    @property
    def is_primary(self) -> bool | None:
        return None if self.state is None else self.state.is_primary

    @property
    def is_replaced(self) -> bool:
        """It claims to be primary, and another one was promoted since. It must be neither read nor written."""
        return self.is_primary is True and self.timeline < self.current.highest

    @property
    def is_detached(self) -> bool:
        """A standby that falls behind without limit: it has not streamed the current timeline for a while."""
        if self.state is None or self.state.is_primary or self.state.streams == self.current.highest:
            return False
        return self.now_s() - self.streamed_s >= DETACHED_AFTER_S

    @property
    def is_well(self) -> bool:
        return self.failed_s == -math.inf

    @property
    def is_avoided(self) -> bool:
        return self.now_s() - self.failed_s < self.avoid_s

    @property
    def is_hanging(self) -> bool:
        """Its pooled connections are not used for a while: a request on one would only wait."""
        return self.now_s() - self.hung_s < self.avoid_s

    @property
    def is_worth_connecting(self) -> bool:
        return self.now_s() - max(self.hung_s, self.unreachable_s) >= self.avoid_s

    def connect(self, parameters: dict[str, Any], timeout_s: float) -> ServerConnection:
        host, _, port = self.address.rpartition(":")
        self.asked_s = self.now_s()
        try:
            with time_limit(timeout_s):
                connection: ServerConnection = psycopg2.connect(
                    host=host.strip("[]"), port=port, connection_factory=ServerConnection, **parameters
                )
                self.ask(connection)
        except psycopg2.OperationalError as error:
            self.failed_s = self.now_s()
            if isinstance(error, DeadlineExceeded):
                self.unreachable_s = self.failed_s
                if self.hung_s != -math.inf:
                    self.hung_s = self.failed_s  # established connections are no better yet
            raise
        connection.server = self
        self.failed_s = self.unreachable_s = self.hung_s = -math.inf
        return connection


class DatabaseServers:
    """Each server has its own deadline, so one that hangs does not use up the time of the others."""

    def __init__(
        self,
        address: DatabaseAddress,
        wanted: Wanted,
        application: str,
        *,
        avoid_s: float,
        current: CurrentTimeline | None = None,
    ) -> None:
        install_wait_callback()
        self.current = current or CurrentTimeline()
        self.servers = [DatabaseServer(host, avoid_s, self.current) for host in address.hosts]
        self._wanted = wanted
        self._spread = address.spread
        self._watching: dict[DatabaseServer, ServerConnection] = {}
        self._parameters = {
            "user": address.user,
            "password": address.password.get_secret_value(),
            "dbname": address.name,
            "application_name": application,
            "options": f"-c statement_timeout={STATEMENT_TIMEOUT_MS} -c lock_timeout=1000 -c timezone=UTC",
        }

    def connect(self, *, detached: bool = False) -> ServerConnection:
        """`detached`: a standby that does not stream is better than none."""
        fallback: ServerConnection | None = None
        failure: psycopg2.OperationalError | None = None
        deadline_s = time.monotonic() + CONNECT_TIMEOUT_S
        for server in self._in_order():
            if not server.is_worth_connecting:
                continue
            try:
                left_s = max(LAST_CONNECT_TIMEOUT_S, deadline_s - time.monotonic())
                connection = server.connect(self._parameters, left_s)
            except psycopg2.OperationalError as error:
                failure = error
                continue
            if server.is_primary:
                self._survey()
            if self._is_refused(server, detached=detached):
                connection.close()
            elif self._is_wanted(connection):
                if fallback is not None:
                    fallback.close()
                return connection
            elif self._wanted == "standby" and fallback is None:
                fallback = connection
            else:
                connection.close()
        if fallback is not None:
            return fallback
        raise failure or psycopg2.OperationalError("no PostgreSQL server answers that could be used")

    def engine(self, connections: int, *, kept: int | None = None, ping: bool = True, detached: bool = False) -> Engine:
        """An engine whose pool hands out only connections to servers that are not known to hang."""
        kept = connections if kept is None else kept
        engine = create_engine(
            "postgresql+psycopg2://",
            creator=partial(self.connect, detached=detached),
            pool_size=kept,
            max_overflow=connections - kept,
            pool_timeout=2,
            executemany_mode="values_plus_batch",
        )
        engine.dialect.set_isolation_level = _set_autocommit  # type: ignore[method-assign, assignment]

        @event.listens_for(engine, "connect")
        def connected(_: Any, record: Any) -> None:
            record.info["is_new"] = True

        @event.listens_for(engine, "checkout")
        def checked_out(connection: Any, record: Any, _: Any) -> None:
            if record.info.pop("is_new", False):
                return  # a second refusal in a row would be an error
            if connection.server.is_hanging:
                raise DisconnectionError("the server hangs")
            if ping:
                try:
                    with time_limit(PING_TIMEOUT_S):
                        engine.dialect.do_ping(connection)
                        connection.server.answered(connection)
                except psycopg2.Error as error:
                    raise DisconnectionError("the server does not answer") from error
                if self._has_better(connection.server):
                    raise DisconnectionError("there is a better server")
            if self._is_refused(connection.server, detached=detached):
                raise DisconnectionError("the server is not on the current timeline")

        return engine

    def probe(self, timeout_s: float = PING_TIMEOUT_S) -> None:
        """Ask every server for its state on a connection of its own, so that no request has to find out.

        One that does not answer in time counts as hung, also for the requests that wait for it.
        """
        with ThreadPoolExecutor(len(self.servers), "probe") as threads:
            list(threads.map(partial(self._probe, timeout_s=timeout_s), self.servers))

    def _probe(self, server: DatabaseServer, *, timeout_s: float) -> None:
        connection = self._watching.pop(server, None)
        try:
            if connection is None or connection.closed or not server.is_well:
                if connection is not None:
                    connection.close()
                connection = server.connect(self._parameters, timeout_s)
            else:
                with time_limit(timeout_s):
                    server.ask(connection)
        except psycopg2.Error:
            server.failed_s = server.now_s()
            if connection is not None:
                connection.close()
        else:
            self._watching[server] = connection

    def close(self) -> None:
        for connection in self._watching.values():
            connection.close()
        self._watching.clear()

    def _survey(self) -> None:
        """A server that was replaced as primary does not know it: the others do."""
        for server in self.servers:
            if server.is_worth_connecting and server.now_s() - server.asked_s >= SURVEY_S:
                with suppress(psycopg2.OperationalError):
                    server.connect(self._parameters, PING_TIMEOUT_S).close()

    def _is_refused(self, server: DatabaseServer, *, detached: bool) -> bool:
        return server.is_replaced or (self._wanted == "standby" and server.is_detached and not detached)

    def _in_order(self) -> list[DatabaseServer]:
        servers = random.sample(self.servers, len(self.servers)) if self._spread else self.servers
        return sorted(
            servers,
            key=lambda server: (
                server.is_avoided,
                server.is_replaced or server.is_detached,
                self._is_fallback(server),
            ),
        )

    def _is_fallback(self, server: DatabaseServer) -> bool:
        return self._wanted == "standby" and server.is_primary is True

    def _has_better(self, server: DatabaseServer) -> bool:
        """Whether another server is preferred to this one, which has just answered."""
        places = {each: 0 if self._spread else place for place, each in enumerate(self.servers)}
        own = (self._is_fallback(server), places[server])
        return any(
            (self._is_fallback(other), places[other]) < own
            for other in self.servers
            if not other.is_avoided and not other.is_replaced and not other.is_detached
        )

    def _is_wanted(self, connection: ServerConnection) -> bool:
        if self._wanted == "standby":
            return _is_standby(connection)
        return not _is_standby(connection) and connection.get_parameter_status("default_transaction_read_only") == "off"


def _set_autocommit(connection: Any, level: str) -> None:
    """The driver's own method asks the server when a connection goes back to the pool. One that has died since its
    commit would fail a request that has succeeded, and would never return to the pool."""
    connection.autocommit = level == "AUTOCOMMIT"


def _is_standby(connection: ServerConnection) -> bool:
    """The server reports this parameter, and each change of it, without a query."""
    return connection.get_parameter_status("in_hot_standby") == "on"


@contextmanager
def unavailable_if_lost() -> Iterator[None]:
    try:
        yield
    except IntegrityError:
        raise
    except (DBAPIError, PoolTimeout) as error:
        raise MetadataUnavailable(outcome="not_written") from error


def execute_first(connection: Connection, statement: str, values: dict[str, Any] | None = None) -> CursorResult[Any]:
    """Run the first statement on a pooled connection; if the connection died with its server, retry on a new one.

    For statements that may run twice: the first one may have been carried out.
    """
    try:
        return connection.exec_driver_sql(statement, values)
    except DBAPIError as error:
        if not error.connection_invalidated or isinstance(error.orig, DeadlineExceeded):
            raise  # of a server that hangs, the time is used up
        connection.rollback()
        return connection.exec_driver_sql(statement, values)
