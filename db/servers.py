"""The PostgreSQL servers one by one: which to connect to next, which to avoid, and which are primary or standby."""

import math
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import psycopg2
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError, DisconnectionError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from db.settings import DatabaseAddress
from db.timeouts import STATEMENT_TIMEOUT_MS, DeadlineExceeded, ServerConnection, install_wait_callback, time_limit
from myqueue.protocol.errors import MetadataUnavailable

CONNECT_TIMEOUT_S = 1.0
PING_TIMEOUT_S = 0.5
ROLES_FRESH_S = 2.0
ROLES_STALE_S = 10.0  # older roles are not answered: the caller waits for fresh ones

Wanted = Literal["primary", "standby", "any"]  # "standby" falls back to the primary
Role = Literal["primary", "standby"]
_ROLE_ORDER: tuple[Role | None, ...] = ("primary", "standby", None)


@dataclass(slots=True, eq=False)
class DatabaseServer:
    """One server and its last known state."""

    address: str
    avoid_s: float  # how long after a failure others are preferred
    now_s: Callable[[], float] = time.monotonic
    is_primary: bool | None = None
    timeline: int = 0  # the highest that it was seen to replay
    failed_s: float = -math.inf  # it could not be connected to
    unreachable_s: float = -math.inf  # it left a new connection without an answer
    hung_s: float = -math.inf  # it left an established connection without an answer

    def hung(self) -> None:
        self.hung_s = self.failed_s = self.now_s()

    def hung_since(self, since_s: float) -> bool:
        return self.hung_s >= since_s

    def answered(self, connection: ServerConnection) -> None:
        self.is_primary, self.hung_s = not _is_standby(connection), -math.inf

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
        try:
            with time_limit(timeout_s):
                connection: ServerConnection = psycopg2.connect(
                    host=host.strip("[]"), port=port, connection_factory=ServerConnection, **parameters
                )
        except psycopg2.OperationalError as error:
            self.failed_s = self.now_s()
            if isinstance(error, DeadlineExceeded):
                self.unreachable_s = self.failed_s
                if self.hung_s != -math.inf:
                    self.hung_s = self.failed_s  # established connections are no better yet
            raise
        connection.server = self
        self.answered(connection)
        self.failed_s = self.unreachable_s = -math.inf
        return connection


class DatabaseServers:
    """Each server has its own deadline, so one that hangs does not use up the time of the others."""

    def __init__(self, address: DatabaseAddress, wanted: Wanted, application: str, *, avoid_s: float) -> None:
        install_wait_callback()
        self._servers = [DatabaseServer(host, avoid_s) for host in address.hosts]
        self._wanted = wanted
        self._spread = address.spread
        self._parameters = {
            "user": address.user,
            "password": address.password.get_secret_value(),
            "dbname": address.name,
            "application_name": application,
            "options": f"-c statement_timeout={STATEMENT_TIMEOUT_MS} -c lock_timeout=1000 -c timezone=UTC",
        }

    def connect(self) -> ServerConnection:
        fallback: ServerConnection | None = None
        failure: psycopg2.OperationalError | None = None
        for server in self._in_order():
            if not server.is_worth_connecting:
                continue
            try:
                connection = server.connect(self._parameters, CONNECT_TIMEOUT_S)
            except psycopg2.OperationalError as error:
                failure = error
                continue
            if self._is_wanted(connection):
                if fallback is not None:
                    fallback.close()
                return connection
            if self._wanted == "standby" and fallback is None:
                fallback = connection
            else:
                connection.close()
        if fallback is not None:
            return fallback
        raise failure or psycopg2.OperationalError("no PostgreSQL server answers that could be used")

    def engine(self, connections: int, *, kept: int | None = None, ping: bool = True) -> Engine:
        """An engine whose pool hands out only connections to servers that are not known to hang."""
        kept = connections if kept is None else kept
        engine = create_engine(
            "postgresql+psycopg2://",
            creator=self.connect,
            pool_size=kept,
            max_overflow=connections - kept,
            pool_timeout=2,
            executemany_mode="values_plus_batch",
        )

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
                except psycopg2.Error as error:
                    raise DisconnectionError("the server does not answer") from error
                connection.server.answered(connection)
                if self._has_better(connection.server):
                    raise DisconnectionError("there is a better server")

        return engine

    def probe(self) -> None:
        """Probe failed servers, so that no request has to."""
        for server in self._servers:
            if not server.is_well:
                try:
                    server.connect(self._parameters, PING_TIMEOUT_S).close()
                except psycopg2.OperationalError:
                    continue  # it is avoided for longer

    def _in_order(self) -> list[DatabaseServer]:
        servers = random.sample(self._servers, len(self._servers)) if self._spread else self._servers
        return sorted(servers, key=lambda server: (server.is_avoided, self._is_fallback(server)))

    def _is_fallback(self, server: DatabaseServer) -> bool:
        return self._wanted == "standby" and server.is_primary is True

    def _has_better(self, server: DatabaseServer) -> bool:
        """Whether another server is preferred to this one, which has just answered."""
        places = {each: 0 if self._spread else place for place, each in enumerate(self._servers)}
        own = (self._is_fallback(server), places[server])
        return any((self._is_fallback(other), places[other]) < own for other in self._servers if not other.is_avoided)

    def _is_wanted(self, connection: ServerConnection) -> bool:
        if self._wanted == "any":
            return True
        if self._wanted == "standby":
            return _is_standby(connection)
        return not _is_standby(connection) and connection.get_parameter_status("default_transaction_read_only") == "off"


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


class ServerRoles:
    """Queries the servers at most every two seconds, however many callers there are.

    A server that hangs delays only the caller that queries; the others get roles that are up to ten seconds old.
    """

    def __init__(self, address: DatabaseAddress, application: str) -> None:
        self._engines = [
            DatabaseServers(address.model_copy(update={"hosts": [host]}), "any", application, avoid_s=0).engine(1)
            for host in address.hosts
        ]
        self._workers = ThreadPoolExecutor(len(self._engines), "server-roles")
        self._querying = threading.Lock()
        self._known: Sequence[Role | None] = ()
        self._queried_s = -math.inf

    def roles(self) -> Sequence[Role | None]:
        """One role for each server, the primary first; None for one that does not answer."""
        if self._age_s() <= ROLES_FRESH_S:
            return self._known
        if self._querying.acquire(blocking=self._age_s() > ROLES_STALE_S):
            try:
                if self._age_s() > ROLES_FRESH_S:  # else another thread queried while this one waited
                    self._known = sorted(self._workers.map(_role, self._engines), key=_ROLE_ORDER.index)
                    self._queried_s = time.monotonic()
            finally:
                self._querying.release()
        return self._known

    def _age_s(self) -> float:
        return time.monotonic() - self._queried_s


def _role(engine: Engine) -> Role | None:
    try:
        with engine.connect() as connection:
            return "standby" if connection.execute(text("SELECT pg_is_in_recovery()")).scalar() else "primary"
    except (DBAPIError, PoolTimeout):
        return None
