"""Every wait for PostgreSQL has a deadline, also for a server that is stopped but still accepts bytes."""

import select
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg2
from psycopg2 import extensions

_patience = threading.local()


@contextmanager
def patient(timeout_s: float) -> Iterator[None]:
    """For work that may take longer in this thread, such as a migration."""
    _patience.timeout_s = timeout_s
    try:
        yield
    finally:
        del _patience.timeout_s


def bound_waits(timeout_s: float) -> None:
    """Once per process: psycopg2 then waits in Python, where a deadline can end it."""

    def wait(connection: Any) -> None:
        limit_s = getattr(_patience, "timeout_s", timeout_s)
        deadline = time.monotonic() + limit_s
        while True:
            state = connection.poll()
            if state == extensions.POLL_OK:
                return
            left = deadline - time.monotonic()
            if left <= 0:
                # psycopg2 closes the connection when this raises; closing it here would wait for its own lock.
                raise psycopg2.OperationalError(f"PostgreSQL did not answer within {limit_s} s")
            if state == extensions.POLL_READ:
                select.select([connection.fileno()], [], [], left)
            elif state == extensions.POLL_WRITE:
                select.select([], [connection.fileno()], [], left)

    extensions.set_wait_callback(wait)
