"""The stack in containers, from a copy of the checkout and under a project name of its own, so that the user's own
containers, volumes and .env are left alone."""

import json
import re
import shutil
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from config.make_env import SECRETS
from myqueue.protocol import http_headers
from tests.compose.engine import LOOK_S, Engine, run
from tests.compose.failure import StageFailed
from tests.waiting import until

PROJECT = "myqueue-test"
HOST = "127.0.0.1"
USUAL_PORT = 80
CHECKOUT = Path(__file__).resolve().parents[2]
BUILD_S = 900
UP_S = 300
DOWN_S = 120
LINES_OF_A_LOG = 40
WRITE_MANAGERS = ("write-manager-1", "write-manager-2")
PROFILES = ("spark", "spark-cluster")
# Run in a write manager's own container: the secret is in its environment.
ASK_STATUS = f"""
import os, urllib.request as u
headers = {{"{http_headers.SECRET}": os.environ["MYQUEUE_CLUSTER_SECRET"]}}
print(u.urlopen(u.Request("http://127.0.0.1:5100/internal/status", headers=headers), timeout=5).read().decode())
"""
READ_PROCESSES = """
import json, pathlib
found = {}
for folder in pathlib.Path("/proc").glob("[0-9]*"):
    try:
        words = (folder / "cmdline").read_bytes()
        if not words:
            continue  # a zombie
        words += (folder / "environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        continue  # it has ended
    found[folder.name] = words.replace(b"\\0", b" ").decode(errors="replace")
print(json.dumps(found))
"""
_WAITING = re.compile(r"^myqueue_waiting_requests (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Container:
    id: str
    name: str
    service: str
    state: str
    health: str | None
    address: str  # in the stack's own network: only to recognise it in the load balancer's log
    started_at: str
    restarts: int

    @property
    def is_well(self) -> bool:
        return self.state == "running" and self.health in (None, "healthy")


def container_of(inspected: Mapping[str, object]) -> Container:
    """From the output of `docker inspect` for one."""
    state, config, networks = inspected["State"], inspected["Config"], inspected["NetworkSettings"]
    assert isinstance(state, dict)
    assert isinstance(config, dict)
    assert isinstance(networks, dict)
    addresses = [network["IPAddress"] for network in networks["Networks"].values() if network["IPAddress"]]
    restarts = inspected["RestartCount"]
    assert isinstance(restarts, int)
    return Container(
        id=str(inspected["Id"]),
        name=str(inspected["Name"]).removeprefix("/"),
        service=config["Labels"]["com.docker.compose.service"],
        state=state["Status"],
        health=state["Health"]["Status"] if "Health" in state else None,
        address=addresses[0] if addresses else "",
        started_at=state["StartedAt"],
        restarts=restarts,
    )


def upstreams(access_log: str) -> Counter[str]:
    """Successful requests by the address that gave the answer, from lines of the load balancer's log."""
    found: Counter[str] = Counter()
    for line in access_log.splitlines():
        if line.startswith("{") and '"upstream":' in line:
            entry = json.loads(line)
            if entry["status"] < 400 and entry["upstream"]:
                # Tried one after another, in one group of servers or several; the last one answered.
                last = re.split(r", | : ", entry["upstream"])[-1]
                found[last.rpartition(":")[0]] += 1
    return found


def options_of(profiles: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(word for profile in profiles for word in ("--profile", profile))


def copy_checkout(target: Path) -> None:
    """What git knows or would take; never the user's .env."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listed.stdout.split("\0"):
        source = CHECKOUT / name
        if name and name != ".env" and source.is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name)


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except PermissionError:  # the engine may be allowed what this user is not
            return probe.connect_ex((HOST, port)) != 0
        except OSError:
            return False
    return True


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class ImageBuild:
    process: subprocess.Popen[bytes]
    log: Path

    def await_end(self) -> None:
        try:
            code = self.process.wait(BUILD_S)
        except subprocess.TimeoutExpired as late:
            raise StageFailed(f"the image was not built within {BUILD_S} s; see {self.log}") from late
        if code != 0:
            raise StageFailed(f"the image could not be built:\n{self.log.read_text(errors='replace')[-3000:]}")


class Deployment:
    def __init__(
        self, engine: Engine, compose: tuple[str, ...], images: Mapping[str, str], folder: Path, port: int
    ) -> None:
        self.engine = engine
        self.url = f"http://{HOST}" if port == USUAL_PORT else f"http://{HOST}:{port}"
        self._compose = compose
        self._folder = folder
        self._environment = {
            "COMPOSE_HTTP_TIMEOUT": "300",  # of docker-compose 1.29, for slow machines
            **engine.environment,
            **images,
            "MYQUEUE_BIND": HOST,
            "MYQUEUE_PORT": str(port),
            "MYQUEUE_IMAGE": PROJECT,
            "MYQUEUE_POSTGRES_IMAGE": f"{PROJECT}-postgres",
            "MYQUEUE_SPARK_IMAGE": f"{PROJECT}-spark",
        }
        self._options: tuple[str, ...] = ()
        self._variables: Mapping[str, str] = {}

    def choose(self, env_file: str | None = None, profiles: tuple[str, ...] = (), **variables: str) -> None:
        """For all that follows: an env file of the checkout, profiles, variables of the compose file."""
        self._options = (() if env_file is None else ("--env-file", env_file)) + options_of(profiles)
        self._variables = variables

    def compose(self, *arguments: str, within_s: float) -> str:
        command = [*self._compose, "-p", PROJECT, *self._options, *arguments]
        done = run(command, {**self._environment, **self._variables}, within_s, self._folder)
        if done.returncode != 0:
            raise StageFailed(f"{' '.join(command)} failed:\n{(done.stdout + done.stderr).strip()[-3000:]}")
        return done.stdout

    def make_secrets(self) -> None:
        command = [sys.executable, str(self._folder / "config" / "make_env.py")]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=self._folder)

    def secrets(self) -> dict[str, str]:
        lines = (self._folder / ".env").read_text().splitlines()
        settings = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
        return {name: settings[name] for name in SECRETS}

    def set(self, settings: Mapping[str, str]) -> None:
        """In .env, as an administrator would: for containers that are created from now on."""
        with (self._folder / ".env").open("a") as file:
            file.writelines(f"{name}={value}\n" for name, value in settings.items())

    def build(self, *services: str) -> None:
        self.compose("build", *services, within_s=BUILD_S)

    def up(self, *arguments: str) -> None:
        self.compose("up", "-d", *arguments, within_s=UP_S)

    def scale(self, service: str, count: int) -> None:
        """This service only: how the others are does not matter to it."""
        self.up("--no-deps", "--no-recreate", "--scale", f"{service}={count}", service)

    @contextmanager
    def building(self, profile: str, log: Path) -> Iterator[ImageBuild]:
        """The image of a profile's service of the same name, while the block does other things."""
        command = [*self._compose, "-p", PROJECT, "--profile", profile, "build", profile]
        with log.open("w") as file:
            process = subprocess.Popen(
                command,
                env=self._environment,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        try:
            yield ImageBuild(process, log)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()

    def down(self, *, volumes: bool = True) -> None:
        """Images stay, the next run builds faster."""
        options = ("--volumes", "--timeout", "0") if volumes else ()  # what is thrown away need not end in peace
        self.compose(*options_of(PROFILES), "down", *options, "--remove-orphans", within_s=DOWN_S)

    def containers(self, service: str | None = None) -> list[Container]:
        """All of the project, those that ended too."""
        label = f"label=com.docker.compose.project={PROJECT}"
        ids = self.engine.run("ps", "--all", "--quiet", "--no-trunc", "--filter", label).split()
        found = [container_of(inspected) for inspected in self.engine.inspect(ids)]
        return sorted((one for one in found if service in (None, one.service)), key=lambda one: one.name)

    def progress(self) -> str:
        """For the progress of a step."""
        found = self.containers()
        slow = ", ".join(one.name.removeprefix(f"{PROJECT}-") for one in found if not one.is_well)
        return f"{sum(one.is_well for one in found)} of {len(found)} containers are healthy" + (
            slow and f", not {slow}"
        )

    def volumes(self) -> list[str]:
        label = f"label=com.docker.compose.project={PROJECT}"
        return self.engine.run("volume", "ls", "--quiet", "--filter", label).split()

    def await_well(self, *, within_s: float) -> list[Container]:
        """Every container runs and its own check is content with it."""

        def look() -> list[Container] | None:
            found = self.containers()
            return found if found and all(one.is_well for one in found) else None

        try:
            return until(look, within_s=within_s, what="all containers are healthy", pause_s=LOOK_S)
        except AssertionError as late:
            bad = ", ".join(f"{one.name} ({one.state}, {one.health})" for one in self.containers() if not one.is_well)
            raise StageFailed(f"not healthy within {within_s:.0f} s: {bad or 'nothing is there'}") from late

    def kill_inside(self, victim: Container) -> None:
        """kill -9 of all that runs in it. `docker kill` would count as a wish that it stays down."""
        done = self.engine.ask("exec", victim.id, "sh", "-c", "kill -9 -1")
        until(
            lambda: self._life_of(victim) != (victim.started_at, "running"),
            within_s=20,
            what=f"{victim.name} died ({done.stderr.strip()})",
            pause_s=LOOK_S,
        )

    def words_of(self, one: Container) -> dict[int, str]:
        """Command line and environment of every process in it, by pid there; 0 is what the container was made with."""
        [inspected] = self.engine.inspect([one.id])
        found: dict[str, str] = json.loads(self.engine.run("exec", one.id, "python", "-c", READ_PROCESSES))
        return {0: json.dumps(inspected["Config"]), **{int(pid): words for pid, words in found.items()}}

    def await_return(self, victim: Container, *, within_s: float) -> Container:
        """The same container in another life, and well: its restart policy brought it back."""

        def look() -> Container | None:
            found = [one for one in self.containers(victim.service) if one.id == victim.id]
            is_back = found and found[0].started_at != victim.started_at and found[0].is_well
            return found[0] if is_back else None

        what = f"{victim.name} is back by its restart policy"
        return until(look, within_s=within_s, what=what, pause_s=LOOK_S)

    def _life_of(self, one: Container) -> tuple[str, str]:
        [inspected] = self.engine.inspect([one.id])
        now = container_of(inspected)
        return now.started_at, now.state

    def answered_by(self, service: str, since: str) -> dict[str, int]:
        """How many requests each container of a service has answered, by the load balancer's log."""
        balancer = self.containers("nginx")[0]
        counts = upstreams(self.engine.run("logs", "--since", since, balancer.id))
        return {one.name: counts[one.address] for one in self.containers(service)}

    def active_write_manager(self) -> Container:
        def look() -> Container | None:
            for one in self.containers():
                if one.service in WRITE_MANAGERS:
                    done = self.engine.ask("exec", one.id, "python", "-c", ASK_STATUS)
                    if done.returncode == 0 and json.loads(done.stdout)["active"]:
                        return one
            return None

        return until(look, within_s=20, what="a write manager is active", pause_s=LOOK_S)

    def waiting_polls(self) -> int:
        """Requests that wait for messages at all read managers, by their metrics."""
        ask = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:5001/metrics', timeout=5).read().decode())"
        metrics = [self.engine.run("exec", one.id, "python", "-c", ask) for one in self.containers("read-manager")]
        return sum(int(float(number)) for text in metrics for number in _WAITING.findall(text))

    def logs(self, lines: int | None = None) -> Iterator[tuple[Container, str]]:
        tail = ("--tail", str(lines)) if lines is not None else ()
        for one in self.containers():
            done = self.engine.ask("logs", *tail, one.id)
            yield one, done.stdout + done.stderr

    def tell_unwell(self, say: Callable[[str], None]) -> None:
        """The last lines of those that do not do well."""
        for one, log in self.logs(LINES_OF_A_LOG):
            if not one.is_well:
                say(f"---- {one.name}: {one.state}, {one.health}, {one.restarts} restarts; its last lines:")
                for line in log.splitlines():
                    say(f"  {line}")
