"""PySpark's daemon of Python workers, without tracebacks of workers whose Java has hung up.

Spark closes a worker's connection when a query or the session ends, or when it needs no more rows. The worker notices
by a farewell that cannot be delivered, and PySpark prints that as an error after everything has succeeded. Whatever
fails in a task reaches Spark over the same connection: where that is closed, nobody waits for it.

Imports nothing but PySpark's daemon: workers are forked from this process, which must have no threads.
"""

import socket

from pyspark import daemon

_worker = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    try:
        return _worker(sock, authenticated)
    except (BrokenPipeError, ConnectionResetError):
        return 1


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
