"""A Spark cluster of processes: a master and workers on loopback, each of which may be killed."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.waiting import until

CHECKOUT = Path(__file__).resolve().parents[2]
HOST = "127.0.0.1"
START_S = 90.0
EXECUTOR = "CoarseGrainedExecutorBackend"


class StandaloneCluster:
    def __init__(self, folder: Path, secret: str) -> None:
        self._folder = folder
        # Everybody who starts processes has it in his environment; executors must not.
        self._environment = {**os.environ, "MYQUEUE_CLUSTER_SECRET": secret, "MYQUEUE_SPARK_DIR": str(folder)}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.url = ""

    def start(self, workers: int) -> None:
        self._spawn("master", "master", "--host", HOST, "--port", "0")
        self.url = until(self._address, within_s=START_S, what="the master says its address")
        for number in range(1, workers + 1):
            self.start_worker(f"worker-{number}")

    def start_worker(self, name: str) -> None:
        self._spawn(name, "worker", self.url, "--host", HOST, "--cores", "1", "--memory", "600m")
        until(lambda: "Successfully registered with master" in self.log(name), within_s=START_S, what=f"{name} is in")

    def log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text(errors="replace")

    def kill(self, name: str) -> None:
        """With its executors, as when the machine dies."""
        process = self._processes.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(20)

    def executors(self, name: str) -> list[int]:
        """Of one worker: they are in its process group."""
        group = self._processes[name].pid
        return [pid for pid in _pids() if _group(pid) == group and EXECUTOR in _words(pid, "cmdline")]

    def words_of_all(self) -> dict[int, str]:
        """Command line and environment of every process of the cluster, by pid; Python workers are children."""
        found = {process.pid for process in self._processes.values()}
        while more := {pid for pid in _pids() if _parent(pid) in found} - found:
            found |= more
        return {pid: _words(pid, "cmdline") + " " + _words(pid, "environ") for pid in found}

    def end(self) -> None:
        for name in list(self._processes):
            self.kill(name)

    def _address(self) -> str | None:
        assert self._processes["master"].poll() is None, self.log("master")
        said = re.search(rf"Starting Spark master at (spark://{re.escape(HOST)}:\d+)", self.log("master"))
        return said[1] if said else None

    def _spawn(self, name: str, *arguments: str) -> None:
        with (self._folder / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                [sys.executable, "-m", "spark", *arguments],
                cwd=CHECKOUT,
                env=self._environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]


def _words(pid: int, what: str) -> str:
    try:
        return Path(f"/proc/{pid}/{what}").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""  # it has ended


def _stat(pid: int) -> list[str]:
    text = _words(pid, "stat")
    return text[text.rfind(")") + 1 :].split()


def _parent(pid: int) -> int | None:
    stat = _stat(pid)
    return int(stat[1]) if stat else None


def _group(pid: int) -> int | None:
    stat = _stat(pid)
    return int(stat[2]) if stat else None


@contextmanager
def standalone_cluster(folder: Path, secret: str, workers: int) -> Iterator[StandaloneCluster]:
    cluster = StandaloneCluster(folder, secret)
    try:
        cluster.start(workers)
        yield cluster
    finally:
        cluster.end()
