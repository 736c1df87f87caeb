"""A whole stack that tests prod: kill, pause, resume, stop, start, and waits with a deadline, never a sleep."""

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import requests

from stack.local import LocalStack

T = TypeVar("T")

PAUSE_S = 0.05
READ_MANAGERS = ("read-manager-1", "read-manager-2")
BROKERS = ("broker-1", "broker-2", "broker-3")
STANDBYS = ("postgres-2", "postgres-3")
HTTP_SERVICES = ("write-manager-1", *READ_MANAGERS, *BROKERS)


def until(look: Callable[[], T | None], *, within_s: float, what: str) -> T:
    """The first thing that `look` finds; looks again until the deadline."""
    deadline_s = time.monotonic() + within_s
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline_s:
            raise AssertionError(f"not within {within_s} s: {what}; last seen: {found!r}")
        time.sleep(PAUSE_S)


def answer_of(url: str, timeout_s: float = 2.0) -> requests.Response | None:
    """The answer, whatever it says; None when there was none."""
    with suppress(requests.RequestException):
        return requests.get(url, timeout=timeout_s)
    return None


class Cluster:
    def __init__(self, local: LocalStack) -> None:
        self.local = local
        self.url = local.url
        self._paused: dict[str, int] = {}

    @property
    def secret(self) -> str:
        return self.local.secrets.cluster_secret

    @property
    def internal_url(self) -> str:
        """The write manager's internal listener."""
        return self.local.internal_url

    def address_of(self, name: str) -> str:
        return self.local.address_of(name)

    def log_of(self, name: str) -> str:
        return self.local.home.log_file(name).read_text(errors="replace")

    def pid(self, name: str) -> int | None:
        """None while the service is between two lives."""
        try:
            return self.local.pid(name)
        except (FileNotFoundError, ValueError):
            return None

    def kill(self, name: str) -> int:
        """kill -9; the runner brings the service back. Returns the pid that died."""
        pid = until(lambda: self.pid(name), within_s=10, what=f"{name} runs")
        os.kill(pid, signal.SIGKILL)
        return pid

    def pause(self, name: str) -> None:
        pid = self.local.pid(name)
        os.kill(pid, signal.SIGSTOP)
        self._paused[name] = pid

    def resume(self, name: str) -> None:
        pid = self._paused.pop(name, None)
        if pid is not None:
            os.kill(pid, signal.SIGCONT)

    def stop(self, name: str) -> None:
        """Ends it and keeps it down."""
        self.local.stop(name)

    def start(self, name: str) -> None:
        self.local.start(name)

    def heal(self, within_s: float = 30) -> None:
        """Everything runs again, however a test left it."""
        for name in list(self._paused):
            self.resume(name)
        layout = self.local.home.layout()
        assert layout is not None
        for name in layout.services:
            if self.local.home.stop_mark(name).exists():
                self.local.start(name)
        self.await_healthy(within_s=within_s)

    def await_restart(self, name: str, died: int, *, within_s: float) -> None:
        """Another process than the one that died answers for this service."""

        def is_back() -> bool:
            return self.pid(name) not in (None, died) and self._is_ready(name)

        until(is_back, within_s=within_s, what=f"{name} is back after pid {died} died")

    def _is_ready(self, name: str) -> bool:
        if name not in HTTP_SERVICES:
            record = self.local.home.state().processes[name]
            return record.state == "ready"
        answer = answer_of(self.address_of(name) + "/readyz")
        return answer is not None and answer.status_code == 200

    def await_ready(self, *, within_s: float) -> None:
        """The port answers that everything it needs is there."""

        def is_ready() -> bool:
            answer = answer_of(self.url + "/readyz")
            return answer is not None and answer.status_code == 200

        until(is_ready, within_s=within_s, what=f"{self.url}/readyz says 200")

    def await_healthy(self, *, within_s: float) -> None:
        """Every single process is well, not only as many as are needed."""

        def is_healthy() -> bool:
            return self.local.status().is_healthy

        until(is_healthy, within_s=within_s, what="all processes are healthy")
        self.await_ready(within_s=within_s)


@contextmanager
def running_cluster(folder: Path) -> Iterator[Cluster]:
    """A stack of its own in `folder/home`; its logs stay in `folder/log` for whoever must find out what went wrong."""
    local = LocalStack(folder / "home")
    try:
        local.up()
        cluster = Cluster(local)
        cluster.await_healthy(within_s=30)
        yield cluster
    finally:
        try:
            local.down()
            shutil.copytree(local.home.log, folder / "log")
        finally:
            local.clean()
