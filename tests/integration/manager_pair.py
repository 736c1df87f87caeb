"""Write managers as processes of the test, on a PostgreSQL trio: killed, paused, stopped, and asked who is active."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import requests

from myqueue.protocol import http_headers, internal
from myqueue.protocol.internal import WriteManagerStatus
from stack.config import CHECKOUT
from stack.local import Database, free_port
from stack.process import Command, kill_group, spawn
from tests.waiting import until

SECRET = "the secret of the pair"
STARTED_S = 60.0  # of a busy machine
ANSWER_S = 10.0


@dataclass
class ManagerProcess:
    name: str
    command: Command
    log_file: Path
    port: int
    internal_port: int
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def internal_url(self) -> str:
        return f"http://127.0.0.1:{self.internal_port}"

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def launch(self) -> None:
        self.process = spawn(self.command, self.log_file)

    def start(self) -> None:
        """Returns when it answers, in whatever role."""
        self.launch()
        until(lambda: self.status() is not None, within_s=STARTED_S, what=f"{self.name} answers: {self.log[-2000:]}")

    def ask(self, route: internal.InternalRoute, body: object = None, timeout_s: float = 2.0) -> requests.Response:
        headers = {http_headers.SECRET: SECRET}
        return requests.request(
            route.method, self.internal_url + route.path, json=body, headers=headers, timeout=timeout_s
        )

    def status(self) -> WriteManagerStatus | None:
        """None when it does not answer."""
        with suppress(requests.RequestException):
            answer = self.ask(internal.WRITE_MANAGER_STATUS, timeout_s=ANSWER_S)
            assert answer.status_code == 200, answer.text
            status: WriteManagerStatus = answer.json()
            return status
        return None

    def is_active(self) -> bool:
        """And takes writes."""
        status = self.status()
        return status is not None and status["active"] and self.is_public()

    def is_standby(self) -> bool:
        status = self.status()
        return status is not None and not status["active"]

    def is_public(self) -> bool:
        try:
            return requests.get(self.url + "/healthz", timeout=ANSWER_S).status_code == 200
        except requests.RequestException:
            return False

    def await_active(self, within_s: float) -> float:
        """How long it took."""
        started_s = time.monotonic()
        until(self.is_active, within_s=within_s, what=f"{self.name} is active", pause_s=0.02)
        return time.monotonic() - started_s

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        assert self.process is not None
        kill_group(self.process.pid)
        self.process.wait(10)

    def exit_status(self, within_s: float) -> int:
        assert self.process is not None
        return self.process.wait(within_s)

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            kill_group(self.process.pid)
            self.process.wait(10)


@dataclass
class ManagerPair:
    database: Database
    folder: Path
    managers: list[ManagerProcess] = field(default_factory=list)

    def add(self, name: str, **settings: object) -> ManagerProcess:
        database = self.database
        port, internal_port = free_port(), free_port()
        flags = {
            "name": name,
            "port": port,
            "internal-port": internal_port,
            "database-hosts": database.hosts,
            "database-user": database.user,
            "database-name": database.name,
            **settings,
        }
        arguments = [text for flag, value in flags.items() for text in (f"--{flag}", str(value))]
        environment = {
            **os.environ,
            "MYQUEUE_CLUSTER_SECRET": SECRET,
            "MYQUEUE_DATABASE_PASSWORD": database.password,
            "PYTHONPATH": f"{CHECKOUT}:{CHECKOUT / 'client'}",
        }
        command = Command([sys.executable, "-m", "write_manager", *arguments], environment, CHECKOUT, 1 << 30)
        log_file = self.folder / f"{name}-{len(self.managers)}.log"
        made = ManagerProcess(name, command, log_file, port, internal_port)
        self.managers.append(made)
        return made


@contextmanager
def manager_pair(database: Database, folder: Path) -> Iterator[ManagerPair]:
    pair = ManagerPair(database, folder)
    try:
        yield pair
    finally:
        for manager in pair.managers:
            manager.end()
