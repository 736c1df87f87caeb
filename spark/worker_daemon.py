"""PySpark's daemon of Python workers: with what they need loaded once, and without tracebacks of workers whose Java has
hung up.

Spark forks a worker for each task that runs at a time, and PySpark imports everything in each of them: a process that
forks must have no threads, and an import may start some. Here it is imported once, before the fork, with settings under
which no library starts a thread; if one does all the same, the daemon starts again without.

Spark closes a worker's connection when a query or the session ends, or when it needs no more rows. The worker notices
by a farewell that cannot be delivered, and PySpark prints that as an error after everything has succeeded. Whatever
fails in a task reaches Spark over the same connection: where that is closed, nobody waits for it.
"""

import importlib
import os
import socket
import sys
from pathlib import Path

from pyspark import daemon

# Of numpy's OpenBLAS and of the jemalloc in pyarrow.
_NO_THREADS = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
_PRELOAD = "MYQUEUE_SPARK_PRELOAD"
_DATA_SOURCE = ("myqueue.spark.datasource", "myqueue.spark.sink", "pyspark.sql.conversion")

_worker = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    try:
        return _worker(sock, authenticated)
    except (BrokenPipeError, ConnectionResetError):
        return 1


def preload(worker_module: str) -> None:
    """Imports what the workers will; does not return if that has started a thread."""
    os.environ.update({name: value for name, value in _NO_THREADS.items() if name not in os.environ})
    for module in (worker_module, *_DATA_SOURCE):
        importlib.import_module(module)
    if threads() > 1:
        restart = [sys.executable, "-m", "spark.worker_daemon", *sys.argv[1:]]
        os.execve(sys.executable, restart, {**os.environ, _PRELOAD: "no"})  # noqa: S606


def threads() -> int:
    """Of this process, also those that Python does not know of."""
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.exists() else 2  # where it cannot be known, none is risked


if __name__ == "__main__":
    if os.environ.get(_PRELOAD) != "no":
        preload(sys.argv[1] if len(sys.argv) > 1 and sys.argv[1].startswith("pyspark") else "pyspark.worker")
    daemon.worker = worker
    daemon.manager()
