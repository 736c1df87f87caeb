"""One statement on one PostgreSQL server, as its administrator, with a deadline, on the runner's event loop.

The administrator's connections are reserved (superuser_reserved_connections): clients cannot use them up.
"""

import asyncio
import contextlib
from typing import Any

import psycopg2
from psycopg2 import extensions

from stack.ports import HOST

Row = tuple[Any, ...]


class NoAnswer(Exception):
    """Nothing came in time, or there is nobody."""


class Answered(Exception):
    """The server refused or failed the statement: it runs, and does not hang."""


async def query(port: int, password: str, statement: str, *, timeout_s: float, replication: bool = False) -> list[Row]:
    """`replication`: a command of the replication protocol instead of SQL."""
    parameters: dict[str, Any] = {"replication": "database"} if replication else {}
    try:
        async with asyncio.timeout(timeout_s):
            connection: Any = psycopg2.connect(
                host=HOST, port=port, user="postgres", password=password, dbname="postgres",
                application_name="runner", async_=1, **parameters,
            )  # fmt: skip
            with contextlib.closing(connection):
                await _wait(connection)
                with connection.cursor() as cursor:
                    cursor.execute(statement)
                    await _wait(connection)
                    return [] if cursor.description is None else cursor.fetchall()
    except TimeoutError:
        raise NoAnswer(f"no answer within {timeout_s:g} s") from None
    except psycopg2.Error as error:
        # A message of the server has a severity; one of the network has not.
        text = str(error).strip()
        if error.pgcode is None and "FATAL:" not in text:
            raise NoAnswer(text) from None
        raise Answered(text) from None


async def _wait(connection: Any) -> None:
    loop = asyncio.get_running_loop()
    while (state := connection.poll()) != extensions.POLL_OK:
        ready = asyncio.Event()
        descriptor = connection.fileno()
        if state == extensions.POLL_READ:
            loop.add_reader(descriptor, ready.set)
        else:
            loop.add_writer(descriptor, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(descriptor)
            loop.remove_writer(descriptor)
