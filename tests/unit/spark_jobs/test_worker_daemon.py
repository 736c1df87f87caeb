"""A worker whose Java has hung up ends quietly; any other error is still one. Workers find their modules loaded."""

import os
import socket
import subprocess
import sys

import pytest

from spark import preloading, worker_daemon

_FAREWELL = """
import socket
import pyspark.worker
from pyspark import daemon
from spark import worker_daemon

daemon.manager = lambda: None
pyspark.worker.main = lambda infile, outfile: outfile.write(b"farewell")
worker_daemon.run()
ours, spark = socket.socketpair()
spark.close()
print(daemon.worker(ours, True))
"""


@pytest.mark.parametrize("error", [BrokenPipeError(), ConnectionResetError()])
def test_nobody_is_left_to_tell(monkeypatch: pytest.MonkeyPatch, error: OSError) -> None:
    def hung_up(sock: socket.socket, authenticated: bool) -> int:
        raise error

    monkeypatch.setattr(worker_daemon, "_worker", hung_up)
    with socket.socket() as sock:
        assert worker_daemon.worker(sock, True) == 1


def test_other_errors_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(sock: socket.socket, authenticated: bool) -> int:
        raise OSError("no space left")

    monkeypatch.setattr(worker_daemon, "_worker", broken)
    with socket.socket() as sock, pytest.raises(OSError, match="no space"):
        worker_daemon.worker(sock, True)


def test_a_farewell_that_cannot_be_delivered_prints_nothing() -> None:
    """PySpark's own worker, in a process of its own as it changes signals."""
    done = subprocess.run([sys.executable, "-c", _FAREWELL], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_workers_find_everything_loaded_by_a_process_without_threads() -> None:
    code = (
        "import sys; from spark import preloading; print(preloading.preload(), preloading.threads(),"
        "{'pyspark.worker', 'myqueue.spark.sink', 'pandas'} <= set(sys.modules))"
    )
    environment = {**os.environ, **preloading.NO_THREADS}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=60, check=True
    )
    assert done.stdout.split() == ["True", "1", "True"]


def test_a_library_that_starts_threads_is_not_loaded_before_the_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[list[str], str]] = []
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(os, "execve", lambda _, words, env: started.append((words, env["MYQUEUE_SPARK_PRELOAD"])))
    monkeypatch.setattr(sys, "argv", ["worker_daemon.py", "pyspark.worker"])
    monkeypatch.setattr(worker_daemon, "run", lambda: None)
    monkeypatch.setattr(preloading, "MODULES", ())
    monkeypatch.setattr(preloading, "threads", lambda: 2)
    worker_daemon.main()
    assert started == [([sys.executable, "-m", "spark.worker_daemon", "pyspark.worker"], "no")]
