"""PySpark's daemon of Python workers: with what they need loaded once, and without tracebacks of workers whose Java has
hung up.

Spark forks a worker for each task that runs at a time, and PySpark imports everything in each of them. Here it is
imported before the fork. If that has started a thread, the daemon starts again without.

Spark closes a worker's connection when a query or the session ends, or when it needs no more rows. The worker notices
by a farewell that cannot be delivered, and PySpark prints that as an error after everything has succeeded. Whatever
fails in a task reaches Spark over the same connection: where that is closed, nobody waits for it.
"""

import os
import socket
import sys

from pyspark import daemon

_RAISE = "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE"  # else PySpark prints the traceback itself
_PRELOAD = "MYQUEUE_SPARK_PRELOAD"

_worker = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    try:
        return _worker(sock, authenticated)
    except (BrokenPipeError, ConnectionResetError):
        return 1


def run() -> None:
    os.environ[_RAISE] = "true"
    daemon.worker = worker
    daemon.manager()


def main() -> None:
    from spark import preloading  # which imports this module

    if os.environ.get(_PRELOAD) != "no" and not preloading.preload():
        restart = [sys.executable, "-m", "spark.worker_daemon", *sys.argv[1:]]
        os.execve(sys.executable, restart, {**os.environ, _PRELOAD: "no"})  # noqa: S606
    run()


if __name__ == "__main__":
    main()
