"""The container engine: one that runs already, or one of our own that is ended afterwards."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.compose.failure import CannotRun, StageFailed, TookTooLong
from tests.waiting import until

ASK_S = 20
START_S = 60
STOP_S = 60
LOOK_S = 0.5  # between two looks, as each starts a process
PULL_S = 180
OLDEST_COMPOSE = (1, 29)

Done = subprocess.CompletedProcess[str]


def run(command: Sequence[str], environment: Mapping[str, str], within_s: float, cwd: Path | None = None) -> Done:
    try:
        return subprocess.run(
            command,
            env=environment,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=within_s,
        )
    except subprocess.TimeoutExpired as late:
        raise TookTooLong(f"{' '.join(command)} was not done within {within_s:.0f} s") from late


def last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it did not say why"])[-1]


@dataclass(frozen=True)
class Engine:
    """A docker client that reaches an engine."""

    docker: str
    environment: Mapping[str, str]

    def run(self, *arguments: str, within_s: float = 60) -> str:
        done = self.ask(*arguments, within_s=within_s)
        if done.returncode != 0:
            raise StageFailed(f"docker {' '.join(arguments)} failed: {done.stderr.strip()[-2000:]}")
        return done.stdout

    def ask(self, *arguments: str, within_s: float = 60) -> Done:
        return run([self.docker, *arguments], self.environment, within_s)

    def version(self) -> tuple[str | None, str]:
        """None and why not when no engine answers."""
        try:
            done = self.ask("info", "--format", "{{.ServerVersion}}", within_s=ASK_S)
        except TookTooLong as late:
            return None, str(late)
        output = done.stdout.strip()
        return (output, "") if done.returncode == 0 and output else (None, last_line(done.stderr))

    def inspect(self, ids: Sequence[str]) -> list[dict[str, object]]:
        """Of containers, as far as they are still there."""
        output = self.ask("inspect", "--type", "container", *ids).stdout if ids else "[]"
        found: list[dict[str, object]] = json.loads(output)
        return found

    def label_of(self, image: str, label: str) -> str | None:
        """None without the label, or without the image."""
        done = self.ask("image", "inspect", "--format", "{{json .Config.Labels}}", image)
        labels = json.loads(done.stdout) if done.returncode == 0 else None
        return None if labels is None else labels.get(label)

    def has(self, image: str) -> bool:
        return self.ask("image", "inspect", image).returncode == 0

    def pull(self, image: str) -> str | None:
        """Why it could not be pulled, or None if it was."""
        try:
            done = self.ask("pull", "--quiet", image, within_s=PULL_S)
        except TookTooLong:
            return f"not done within {PULL_S} s"
        return None if done.returncode == 0 else last_line(done.stderr).rpartition(": ")[2]

    def load(self, image: str, write: Callable[[IO[bytes]], None], changes: Sequence[str]) -> None:
        """An image of one layer from the tar that `write` writes."""
        options = [option for change in changes for option in ("--change", change)]
        command = [self.docker, "import", *options, "-", image]
        with subprocess.Popen(
            command, env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        ) as process:
            assert process.stdin is not None
            assert process.stderr is not None
            with suppress(BrokenPipeError), process.stdin:  # the engine says why it would not go on reading
                write(process.stdin)
            problem = process.stderr.read().decode(errors="replace")
        if process.returncode != 0:
            raise StageFailed(f"the engine did not take the stand-in {image}: {last_line(problem)}")


def find_compose(engine: Engine, wanted: str | None) -> tuple[tuple[str, ...], str]:
    """The compose command and its version: `docker compose` before `docker-compose`, unless one is asked for."""
    ways = ((engine.docker, "compose"), ("docker-compose",)) if wanted is None else (tuple(wanted.split()),)
    for command in ways:
        if shutil.which(command[0]) is None:
            continue
        try:
            done = run([*command, "version", "--short"], engine.environment, ASK_S)
        except TookTooLong:
            continue
        version = done.stdout.strip().removeprefix("v")
        if done.returncode == 0 and number(version) >= OLDEST_COMPOSE:
            return command, version
    raise CannotRun(
        "found no Docker Compose: neither `docker compose` nor `docker-compose` 1.29 or later answers"
        if wanted is None
        else f"`{wanted}` is no Docker Compose of version 1.29 or later"
    )


def number(version: str) -> tuple[int, ...]:
    """1.29.2 as (1, 29, 2); what is not a number ends it."""
    parts: list[int] = []
    for part in version.split("."):
        if not part.isdigit():
            break
        parts.append(int(part))
    return tuple(parts)


def clean_environment() -> dict[str, str]:
    """Ours without what would change the stack under test: its settings are those that the tests give."""
    ours = ("MYQUEUE_", "POSTGRES_", "REPLICATION_", "COMPOSE_", "SPARK_", "PYTHON_IMAGE", "NGINX_IMAGE")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


@contextmanager
def found_engine(scratch: Path, storage: Path, say: Callable[[str], None]) -> Iterator[Engine]:
    """The machine's engine if it answers, else one of our own as far as that is possible."""
    docker = shutil.which("docker")
    if docker is None:
        raise CannotRun("there is no docker command on the PATH; install Docker to run these tests")
    engine = Engine(docker, clean_environment())
    version, why = engine.version()
    if version is not None:
        say(f"Docker engine {version}, already running")
        yield engine
        return
    daemon = shutil.which("dockerd") or shutil.which("dockerd", path="/usr/sbin:/usr/local/sbin")
    if daemon is None:
        raise CannotRun(f"no Docker engine answers ({why}), and there is no dockerd to start one")
    if os.geteuid() != 0:
        raise CannotRun(f"no Docker engine answers ({why}), and only root may start one")
    with _own_engine(daemon, docker, scratch, storage) as own:
        say(f"Docker engine {own.version()[0]}, started for these tests; its images stay in {storage}")
        yield own


@contextmanager
def _own_engine(daemon: str, docker: str, scratch: Path, storage: Path) -> Iterator[Engine]:
    storage.mkdir(parents=True, exist_ok=True)
    socket = f"unix://{scratch}/docker.sock"
    log = scratch / "dockerd.log"
    command = [daemon, "--data-root", str(storage), "--exec-root", str(scratch / "exec"), "--host", socket]
    command += ["--pidfile", str(scratch / "dockerd.pid")]
    engine = Engine(docker, {**clean_environment(), "DOCKER_HOST": socket})
    with log.open("w") as file:
        # In a session of its own: Ctrl-C must not end it before its containers are taken down.
        process = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
    try:
        try:
            until(
                lambda: process.poll() is not None or engine.version()[0] is not None,
                within_s=START_S,
                what="the engine answers",
                pause_s=LOOK_S,
            )
        except AssertionError as late:
            raise CannotRun(f"dockerd does not come up: {last_line(log.read_text())}") from late
        if process.poll() is not None:
            raise CannotRun(f"dockerd ended with {process.returncode}: {last_line(log.read_text())}")
        yield engine
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
