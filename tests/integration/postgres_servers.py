"""What tests do to single servers of the PostgreSQL trio."""

import os
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import psutil
import psycopg2

from db.timeouts import time_limit
from stack.local import LocalStack


@contextmanager
def hanging(stack: LocalStack, *names: str) -> Iterator[None]:
    """With every process of them stopped, as on a machine that hangs: connections are accepted, nothing answers."""
    stopped: list[psutil.Process] = []
    try:
        for name in names:
            server = psutil.Process(stack.pid(name))
            for process in (server, *server.children(recursive=True)):
                os.kill(process.pid, signal.SIGSTOP)
                stopped.append(process)
        yield
    finally:
        for process in stopped:
            if process.is_running():
                os.kill(process.pid, signal.SIGCONT)


def connected(stack: LocalStack, name: str, user: str, password: str, database: str = "postgres") -> Any:
    connection = psycopg2.connect(
        host="127.0.0.1", port=stack.port_of(name), user=user, password=password, dbname=database
    )
    connection.autocommit = True
    return connection


def as_admin(stack: LocalStack, name: str, statement: str) -> list[Any]:
    # The managers' deadline, which holds in this process too, is not for it.
    limit = time_limit(30, blames_server=False)
    with limit, closing(connected(stack, name, "postgres", stack.secrets.admin_password)) as connection:
        cursor = connection.cursor()
        cursor.execute(statement)
        return list(cursor.fetchall())


def as_manager(stack: LocalStack, name: str = "postgres-1") -> Any:
    database = stack.database()
    return connected(stack, name, database.user, database.password, database.name)
