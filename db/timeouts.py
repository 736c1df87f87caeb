"""Timeouts: every wait for PostgreSQL has a deadline, also for a server that is stopped but still accepts bytes."""

import math
import select
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import psycopg2
from psycopg2 import extensions

# The server cancels a statement first, so that its error still arrives. A COMMIT that waits for a standby has no
# server-side limit: it has the same time, and its session must be ended after it.
STATEMENT_TIMEOUT_MS = 1500
COMMIT_TIMEOUT_S = 1.5
ANSWER_TIMEOUT_S = 1.8
# How often a wait checks whether another connection has found the server hanging.
RECHECK_S = 0.05

_EVENTS = {extensions.POLL_READ: select.POLLIN, extensions.POLL_WRITE: select.POLLOUT}


class DeadlineExceeded(psycopg2.OperationalError):
    """The server did not answer in time. psycopg2 has closed the connection."""


class Server(Protocol):
    """The server at the other end of a connection."""

    def hung(self) -> None: ...

    def hung_since(self, since_s: float) -> bool: ...


class ServerConnection(extensions.connection):
    server: Server | None = None  # None until it is connected


@dataclass(frozen=True, slots=True)
class _Limit:
    timeout_s: float
    blames_server: bool = True


class _Limits(threading.local):
    current = _Limit(ANSWER_TIMEOUT_S)


_limits = _Limits()


@contextmanager
def time_limit(timeout_s: float, *, blames_server: bool = True) -> Iterator[None]:
    """Limit every wait in this thread. `blames_server=False`: a late answer does not mark the server as hung."""
    before, _limits.current = _limits.current, _Limit(timeout_s, blames_server)
    try:
        yield
    finally:
        _limits.current = before


def install_wait_callback() -> None:
    """Once per process: psycopg2 then waits in Python, where a deadline can end the wait."""
    extensions.set_wait_callback(_wait)


def _wait(connection: Any) -> None:
    limit = _limits.current
    server = getattr(connection, "server", None) if limit.blames_server else None
    started_s = time.monotonic()
    deadline_s = started_s + limit.timeout_s
    while True:
        state = connection.poll()
        if state == extensions.POLL_OK:
            return
        left_s = deadline_s - time.monotonic()
        if left_s <= 0 and server is not None:
            server.hung()
        if left_s <= 0 or (server is not None and server.hung_since(started_s)):
            # psycopg2 closes the connection when this raises; closing it here would wait for its own lock.
            raise DeadlineExceeded(f"PostgreSQL did not answer within {limit.timeout_s} s")
        # Not select(), which takes no descriptors above 1023.
        poll = select.poll()
        poll.register(connection.fileno(), _EVENTS[state])
        poll.poll(math.ceil(1000 * (left_s if server is None else min(left_s, RECHECK_S))))
