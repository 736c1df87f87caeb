"""A stack whose services in Python are processes of the test: each from its own release, with settings of its own."""

import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from stack.config import CHECKOUT
from stack.local import LocalStack
from stack.process import Command, kill_group, spawn
from stack.services import NGINX, Plan, Service, postgres_names
from tests import required
from tests.cluster import HTTP_SERVICES, Cluster
from tests.waiting import until

LAST_RELEASE = "df958afcd11cf11dfe1bc364e80b9278fc219830"  # brokers with SQLite, version 2 of the handshake


def last_release(folder: Path) -> Path:
    """The tree of the last release before the brokers' files changed, from the repository's own history."""
    git = ["git", "-C", str(CHECKOUT)]
    found = subprocess.run([*git, "cat-file", "-e", f"{LAST_RELEASE}^{{commit}}"], capture_output=True, check=False)
    if found.returncode != 0:
        asked = subprocess.run(
            [*git, "rev-parse", "--is-shallow-repository"], capture_output=True, check=False, text=True
        )
        if asked.stdout.strip() != "false":
            pytest.skip("no history here: the last release cannot be taken from it")
        required.skip(f"commit {LAST_RELEASE} is not in the history")
    folder.mkdir()
    archive = subprocess.run([*git, "archive", LAST_RELEASE], capture_output=True, check=True)
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    return folder


class ProcessCluster(Cluster):
    def __init__(self, local: LocalStack) -> None:
        super().__init__(local)
        layout = local.home.layout()
        assert layout is not None
        plan = Plan(local.home, replace(layout, services=list(HTTP_SERVICES)))
        self._services = {service.name: service for service in plan.services(_run_nothing)}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.environment: dict[str, str] = {}  # of all that are started from here on
        self.prefix: dict[str, list[str]] = {}  # a command in front of a service's own
        self.release: Path | None = None  # a tree other than this one, for those that are started from here on

    def pid(self, name: str) -> int | None:
        process = self._processes.get(name)
        return None if process is None or process.poll() is not None else process.pid

    def launch(self, name: str) -> None:
        """Does not wait for it to answer."""
        assert self.pid(name) is None, f"{name} runs"
        self._processes[name] = spawn(self._command(self._services[name]), self.local.home.log_file(name))

    def _command(self, service: Service) -> Command:
        command, tree = service.command, self.release or CHECKOUT
        environment = {**command.env, **self.environment, "PYTHONPATH": f"{tree}:{tree / 'client'}"}
        argv = [*self.prefix.get(service.name, ()), *command.argv]
        if self.release is not None:
            argv = [text for part in argv for text in _in_last_release(part)]
        return Command(argv, environment, tree, command.memory_bytes)

    def start(self, name: str) -> None:
        self.launch(name)
        until(lambda: self._answers(name), within_s=30, what=f"{name} is ready")

    def _answers(self, name: str) -> bool:
        assert self.pid(name) is not None, f"{name} ended: {self.log_of(name)[-2000:]}"
        return self._is_ready(name)

    def stop(self, name: str) -> None:
        process = self._processes.get(name)
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGCONT)
            self.exit_status(name, within_s=20)

    def kill(self, name: str) -> int:
        process = self._processes[name]
        kill_group(process.pid)
        process.wait(10)
        return process.pid

    def exit_status(self, name: str, *, within_s: float) -> int:
        return self._processes[name].wait(within_s)

    def erase(self, name: str) -> None:
        assert self.pid(name) is None, f"{name} runs"
        for path in self.data_folder(name).iterdir():  # not the folder: it may be a mount point
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    def start_all(self) -> None:
        # The last release knows one write manager only.
        names = [name for name in HTTP_SERVICES if self.release is None or name != "write-manager-2"]
        for name in names:
            self.launch(name)
        for name in names:
            until(lambda name=name: self._answers(name), within_s=60, what=f"{name} is ready")  # type: ignore[misc]
        self.await_ready(within_s=30)

    def end_all(self) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                kill_group(process.pid)
                process.wait(10)


def _in_last_release(argument: str | Path) -> list[str | Path]:
    """A write manager has one address there."""
    if argument == "--write-manager-urls":
        return ["--write-manager-url"]
    text = str(argument)
    return [text.partition(",")[0]] if text.startswith("http://") and "," in text else [argument]


async def _run_nothing(command: Command, stdin: bytes) -> None:
    raise AssertionError(f"{command.argv[0]} is run by the stack that has nginx and PostgreSQL")


@contextmanager
def process_cluster(folder: Path, data: Mapping[str, Path] | None = None) -> Iterator[ProcessCluster]:
    """nginx and PostgreSQL run; the rest is to be started. `data`: folders of brokers that lie elsewhere."""
    local = LocalStack(folder / "home", services=[NGINX, *postgres_names()], database_hang_s=0)
    try:
        local.up()
        for name, place in (data or {}).items():
            (local.home.data / name).symlink_to(place)
        cluster = ProcessCluster(local)
        try:
            yield cluster
        finally:
            cluster.end_all()
    finally:
        try:
            local.down()
            shutil.copytree(local.home.log, folder / "log")
        finally:
            local.clean()
