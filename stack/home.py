"""The folder of one stack: paths, secrets, locks, and the state that commands and runner share."""

import contextlib
import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stack.config import StackConfig


def write_atomic(path: Path, text: str, mode: int = 0o644) -> None:
    """Readers see the old text or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    temporary.replace(path)


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None


@dataclass(frozen=True)
class Secrets:
    cluster_secret: str
    admin_password: str
    database_password: str
    replication_password: str


@dataclass(frozen=True)
class Layout:
    """How this stack was started, so that `status`, `stop` and the runner do not depend on the environment."""

    config: dict[str, Any]
    url: str
    port: int
    ports: dict[str, int]
    services: list[str]
    shelter: str | None = None  # folder of the unprivileged user's files when it cannot reach the home

    def stack_config(self) -> StackConfig:
        return StackConfig.model_validate(self.config)


@dataclass
class ProcessRecord:
    """The runner's last record of a service. `start_ticks` distinguishes the process from a later one with its pid."""

    state: str = "waiting"  # waiting, preparing, starting, ready, stopped, failed
    pid: int | None = None
    start_ticks: int | None = None
    restarts: int = 0
    problem: str | None = None  # why it does not start, for a person


@dataclass
class RunnerState:
    boot_id: str = ""
    processes: dict[str, ProcessRecord] = field(default_factory=dict)
    scales: bool = False  # the runner follows the layout on SIGHUP; one of 0.10 ends by that signal


class Home:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.run = root / "run"
        self.log = root / "log"
        self.data = root / "data"
        self.url_file = self.run / "url"
        self.lock_file = self.run / "runner.lock"
        self.ports_file = self.run / "ports.json"
        self.promotion_request = self.run / "promotion-request.json"
        self.promotion_answer = self.run / "promotion-answer.json"

    def create(self, mode: int) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        self.root.chmod(mode)
        for folder in (self.run, self.log):
            folder.mkdir(exist_ok=True)
            folder.chmod(0o700)
        self.data.mkdir(exist_ok=True)
        self.data.chmod(mode)

    def pid_file(self, name: str) -> Path:
        return self.run / f"{name}.pid"

    def log_file(self, name: str) -> Path:
        return self.log / f"{name}.log"

    def stop_mark(self, name: str) -> Path:
        """While this file exists the runner keeps the service down."""
        return self.run / f"{name}.stopped"

    def secrets(self) -> Secrets:
        path = self.root / "secrets.json"
        stored = read_json(path)
        if stored is None:
            stored = asdict(Secrets(*(secrets.token_hex(24) for _ in range(4))))
            write_atomic(path, json.dumps(stored), mode=0o600)
        return Secrets(**stored)

    def save_layout(self, layout: Layout) -> None:
        write_atomic(self.run / "stack.json", json.dumps(asdict(layout), indent=2, default=str))

    def layout(self) -> Layout | None:
        stored = read_json(self.run / "stack.json")
        return None if stored is None else Layout(**stored)

    def save_state(self, state: RunnerState) -> None:
        write_atomic(self.run / "state.json", json.dumps(asdict(state), indent=2))

    def state(self) -> RunnerState:
        stored = read_json(self.run / "state.json")
        if stored is None:
            return RunnerState()
        records = {name: ProcessRecord(**record) for name, record in stored["processes"].items()}
        return RunnerState(stored["boot_id"], records, stored.get("scales", False))

    def runner_pid(self) -> int | None:
        """The pid in the file, running or not; `is_locked` shows whether a runner is running."""
        try:
            return int(self.pid_file("runner").read_text())
        except (FileNotFoundError, ValueError):
            return None

    def is_locked(self) -> bool:
        """True while a runner, or the guard that cleans up after it, is at work on this home."""
        try:
            descriptor = os.open(self.lock_file, os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def try_lock(self) -> int | None:
        """The held lock as a file descriptor; it is released when the last process that inherited it ends."""
        descriptor = os.open(self.lock_file, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    @contextlib.contextmanager
    def command_lock(self) -> Iterator[None]:
        """Commands that change the stack exclude each other."""
        self.run.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.run / "command.lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)
