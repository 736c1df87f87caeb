"""The servers of the trio one by one: which to connect to next, and which not to wait for again."""

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import psycopg2
from sqlalchemy import Engine, event
from sqlalchemy.exc import DisconnectionError

from db.waiting import DeadlineExceeded, ServerConnection, limited

CONNECT_TIMEOUT_S = 1.0
PING_TIMEOUT_S = 0.5

Wanted = Literal["primary", "standby", "any"]  # a standby: or else the primary


@dataclass(slots=True, eq=False)
class Host:
    """One server, and what was last seen of it."""

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
        """Its connections are not used for a while: whoever did would only wait."""
        return self.now_s() - self.hung_s < self.avoid_s

    @property
    def is_worth_connecting(self) -> bool:
        return self.now_s() - max(self.hung_s, self.unreachable_s) >= self.avoid_s

    def connect(self, parameters: dict[str, Any], timeout_s: float) -> ServerConnection:
        host, _, port = self.address.rpartition(":")
        try:
            with limited(timeout_s):
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


@dataclass(slots=True, eq=False)
class Hosts:
    """Each server has its own deadline, so one that hangs does not use up the time of the others."""

    addresses: Sequence[str]
    wanted: Wanted
    parameters: dict[str, Any]
    avoid_s: float
    spread: bool = False  # connections go to all that are equally good, not to the first of them
    _hosts: list[Host] = field(init=False)

    def __post_init__(self) -> None:
        self._hosts = [Host(address, self.avoid_s) for address in self.addresses]

    def connect(self) -> ServerConnection:
        fallback: ServerConnection | None = None
        failure: psycopg2.OperationalError | None = None
        for host in self._in_order():
            if not host.is_worth_connecting:
                continue
            try:
                connection = host.connect(self.parameters, CONNECT_TIMEOUT_S)
            except psycopg2.OperationalError as error:
                failure = error
                continue
            if self._is_wanted(connection):
                if fallback is not None:
                    fallback.close()
                return connection
            if self.wanted == "standby" and fallback is None:
                fallback = connection
            else:
                connection.close()
        if fallback is not None:
            return fallback
        raise failure or psycopg2.OperationalError("no PostgreSQL server answers that could be used")

    def attach(self, engine: Engine, *, ping: bool) -> None:
        """From the engine's pool come only connections to servers that are not known to hang."""

        @event.listens_for(engine, "connect")
        def connected(_: Any, record: Any) -> None:
            record.info["is_new"] = True

        @event.listens_for(engine, "checkout")
        def taken(connection: Any, record: Any, _: Any) -> None:
            if record.info.pop("is_new", False):
                return  # a second refusal in a row would be an error
            if connection.server.is_hanging:
                raise DisconnectionError("the server hangs")
            if ping:
                try:
                    with limited(PING_TIMEOUT_S):
                        engine.dialect.do_ping(connection)
                except psycopg2.Error as error:
                    raise DisconnectionError("the server does not answer") from error
                connection.server.answered(connection)
                if self._has_better(connection.server):
                    raise DisconnectionError("there is a better server")

    def probe(self) -> None:
        """Finds out which of those that failed are well again, so that no request has to."""
        for host in self._hosts:
            if not host.is_well:
                try:
                    host.connect(self.parameters, PING_TIMEOUT_S).close()
                except psycopg2.OperationalError:
                    continue  # it is avoided for longer

    def _in_order(self) -> list[Host]:
        hosts = random.sample(self._hosts, len(self._hosts)) if self.spread else self._hosts
        return sorted(hosts, key=lambda host: (host.is_avoided, self._is_fallback(host)))

    def _is_fallback(self, host: Host) -> bool:
        return self.wanted == "standby" and host.is_primary is True

    def _has_better(self, host: Host) -> bool:
        """Than one that has just answered."""
        places = {each: 0 if self.spread else place for place, each in enumerate(self._hosts)}
        own = (self._is_fallback(host), places[host])
        return any((self._is_fallback(other), places[other]) < own for other in self._hosts if not other.is_avoided)

    def _is_wanted(self, connection: ServerConnection) -> bool:
        if self.wanted == "any":
            return True
        if self.wanted == "standby":
            return _is_standby(connection)
        return not _is_standby(connection) and connection.get_parameter_status("default_transaction_read_only") == "off"


def _is_standby(connection: ServerConnection) -> bool:
    """The server reports it, and each change of it, without being asked."""
    return connection.get_parameter_status("in_hot_standby") == "on"
