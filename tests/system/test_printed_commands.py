"""Every command and every piece of Python that the README and docs/ print runs as it is printed.

Blocks marked `sh` and `console` are run by bash, in a folder that looks like the checkout after `make up`: its
`.myqueue` is the home of the stack that system tests share, and what is sent to http://localhost arrives there. What
cannot run here is listed with the reason, and at least what it names must exist.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from myqueue import Producer
from myqueue.cli.app import app
from tests.cluster import Cluster
from tests.printed import PROMPTED, PYTHON, ROOT, SHELL, TEXT, Block, blocks_of, calls_of, commands_of, pages, spans_of

BLOCK_DEADLINE_S = 60.0
PAGES_AT_ONCE = 3

# How a command begins, and why it does not run here.
NOT_RUN = {
    "make": "works on the checkout itself: its stack, its environment, its secrets",
    "docker": "needs an engine: make compose-test runs the containers",
    "python3 config/make_env.py": "changes the checkout's secrets",
    "python -m spark": "Spark takes long to start; tests/spark runs all jobs",
    "pip install": "would change the environment that the tests run in",
    ".venv/bin/python -m broker": "runs until it is stopped, and the stack is shared",
    "myqueue bench": "takes ten seconds; tests/system/test_cli_cluster.py runs a short one",
    "myqueue cluster watch": "runs until Ctrl-C; tests/system/test_cli_cluster.py runs it on a terminal and in a pipe",
    "myqueue worker": "runs until a signal ends it; tests/system/test_worker.py runs it",
    "myqueue dead-letter": "needs dead letters; tests/system/test_worker.py has some",
    "examples/2P2C": "tests/system/test_scenarios.py runs it, on disk and in memory",
    "examples/5P3C": "as 2P2C",
    "examples/api-test.sh": "tests/system/test_scenarios.py runs it, and sees that it walks every route",
}
# These change nothing: they run where they are printed first.
LOOKS = ("myqueue cluster status", "myqueue doctor")
# Python looks for this module when it starts.
AT_LOCALHOST = """\
import socket

look_up = socket.getaddrinfo

def of_the_stack(host, at, *arguments, **more):
    return look_up(*(("127.0.0.1", {port}) if (host, at) == ("localhost", 80) else (host, at)), *arguments, **more)

socket.getaddrinfo = of_the_stack
"""
COMPOSE_VERBS = (
    "build",
    "config",
    "down",
    "exec",
    "kill",
    "logs",
    "ps",
    "pull",
    "restart",
    "rm",
    "run",
    "start",
    "stop",
    "up",
)
# Its Python is only compiled: a session takes long to start, and tests/spark makes the same calls in its own.
SPARK_PAGE = "docs/spark.md"


def pages_with(*languages: str) -> list[str]:
    return [str(p.relative_to(ROOT)) for p in pages() if any(b.language in languages for b in blocks_of(p))]


def not_to_run(command: str) -> dict[str, list[str]]:
    """Why the line does not run: calls that must not, by how they begin in NOT_RUN."""
    return {
        start: call for call in calls_of(command) for start in NOT_RUN if f"{' '.join(call)} ".startswith(f"{start} ")
    }


# ---- what runs ----


@pytest.fixture(scope="module")
def orders(stack: Cluster) -> str:
    """The topic that the README fills and every page then speaks of."""
    with Producer(stack.url, topic="orders") as producer:
        for partition in range(4):
            producer.send("an order", partition=partition).result(timeout=10)
    return "orders"


def checkout(stack: Cluster, folder: Path) -> Path:
    """Looks like the checkout, with the shared stack as its own. Where commands write, it is a copy."""
    for entry in ROOT.iterdir():
        if entry.name in ("config", "examples"):
            shutil.copytree(entry, folder / entry.name, ignore=shutil.ignore_patterns("__pycache__", "consumer_*.txt"))
        elif entry.name not in (".myqueue", ".git", ".env"):
            (folder / entry.name).symlink_to(entry)
    (folder / ".myqueue").symlink_to(stack.local.home.root)
    return folder


@pytest.fixture(scope="module")
def environment(stack: Cluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    home = tmp_path_factory.mktemp("home")
    port = stack.url.rpartition(":")[2]
    (home / "sitecustomize.py").write_text(AT_LOCALHOST.format(port=port))
    for name in ("pandas", "numpy"):  # pyarrow loads them where they are; the library does not need them
        (home / f"{name}.py").write_text(f"raise ModuleNotFoundError('not installed', name={name!r})\n")
    # Every answer's status goes to stderr: a shell that prints does not fail by itself.
    (home / ".curlrc").write_text(
        f'connect-to = "localhost:80:127.0.0.1:{port}"\nwrite-out = "%{{stderr}}[HTTP %{{http_code}}]\\n"\n'
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MYQUEUE_", "XDG_"))}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return kept | {"PATH": path, "HOME": str(home), "PYTHONPATH": str(home), "MYQUEUE_URL": stack.url}


def run_block(block: Block, script: str, environment: dict[str, str], folder: Path) -> None:
    shell = subprocess.Popen(
        ["bash", "-e", "-o", "pipefail", "-c", script],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = shell.communicate(timeout=BLOCK_DEADLINE_S)
    except subprocess.TimeoutExpired:
        os.killpg(shell.pid, signal.SIGKILL)
        out, err = shell.communicate()
        raise AssertionError(f"{block} does not end:\n{script}\n{out}\n{err}") from None
    statuses = [int(status) for status in re.findall(r"\[HTTP (\d+)\]", err)]
    assert shell.returncode == 0, f"{block} ends with {shell.returncode}:\n{script}\n{out}\n{err}"
    if "curl" in script:
        assert statuses, f"{block}: curl printed no status:\n{script}\n{out}\n{err}"
        assert all(200 <= status < 300 for status in statuses), f"{block}:\n{script}\n{out}\n{err}"


def scripts() -> dict[str, list[tuple[Block, str]]]:
    """What runs of each page."""
    found: dict[str, list[tuple[Block, str]]] = {}
    looked: set[str] = set()
    for page in pages_with(SHELL, PROMPTED):
        found[page] = []
        for block in blocks_of(ROOT / page):
            if block.language in (SHELL, PROMPTED):
                commands = [command for command in commands_of(block) if not not_to_run(command)]
                looks = {command: " ".join(*calls_of(command)) for command in commands if len(calls_of(command)) == 1}
                script = "\n".join(command for command in commands if looks.get(command) not in looked)
                looked |= set(looks.values()) & set(LOOKS)
                if script.strip():
                    found[page].append((block, script))
    return found


def run_page(blocks: list[tuple[Block, str]], environment: dict[str, str], folder: Path) -> None:
    for block, script in blocks:
        run_block(block, script, environment, folder)


@pytest.fixture(scope="module")
def runs(
    orders: str, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory, stack: Cluster
) -> Iterator[dict[str, Future[None]]]:
    """All pages, a few at a time: most commands wait more than they work."""
    with ThreadPoolExecutor(PAGES_AT_ONCE) as workers:
        yield {
            page: workers.submit(run_page, blocks, environment, checkout(stack, tmp_path_factory.mktemp("checkout")))
            for page, blocks in scripts().items()
        }


@pytest.mark.parametrize("page", pages_with(SHELL, PROMPTED))
def test_shell_blocks_run_as_printed(page: str, runs: dict[str, Future[None]]) -> None:
    runs[page].result()


@pytest.fixture
def at_localhost(stack: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", socket.getaddrinfo)  # so that it is put back
    exec(AT_LOCALHOST.format(port=stack.url.rpartition(":")[2]), {})
    monkeypatch.setenv("MYQUEUE_URL", stack.url)


@pytest.mark.parametrize("page", pages_with(PYTHON))
@pytest.mark.usefixtures("at_localhost", "orders")
def test_python_blocks_run_as_printed(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    for block in blocks_of(ROOT / page):
        if block.language == PYTHON:
            code = compile("\n" * (block.line - 1) + block.text, block.page, "exec")
            if page != SPARK_PAGE and "pyspark" not in block.text:
                exec(code, {"__name__": "__main__"})
    capsys.readouterr()


# ---- what does not ----


def test_what_does_not_run_is_there_at_least() -> None:
    unused = dict(NOT_RUN)
    for page in pages():
        for block in blocks_of(page):
            if block.language in (SHELL, PROMPTED):
                for command in commands_of(block):
                    for start, call in not_to_run(command).items():
                        unused.pop(start, None)
                        assert_exists(call, str(block))
    assert not unused, "no page prints these any more"


@pytest.mark.parametrize("page", [str(page.relative_to(ROOT)) for page in pages()])
def test_commands_between_lines_exist(page: str) -> None:
    shown = [line for block in blocks_of(ROOT / page) if block.language == TEXT for line in commands_of(block)]
    for span in [*spans_of(ROOT / page), *shown]:
        for words in calls_of(span):
            if words[0] in ("make", "myqueue") or words[:2] in (["python", "-m"], ["docker", "compose"]):
                assert_exists(words, f"{page}: `{span}`")


def assert_exists(words: list[str], where: str) -> None:
    """What a command names: a verb of make, a module, a script, a service, an extra, a sub-command."""
    if words in (["make"], ["docker", "compose"], ["python", "-m"]):
        return  # prose
    if words[0] == "make":
        verbs = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert words[1] in verbs, where
    elif words[0].endswith("python") and words[1] == "-m":
        assert find_spec(words[2]) is not None, where
    elif words[0] == "myqueue":
        assert_command_exists(words[1:], where)
    elif words[:2] == ["docker", "compose"]:
        assert_compose_knows(words[2:], where)
    elif words[0] == "docker":
        assert words[1] in ("network", "swarm", "volume"), where
    elif words[0] == "python3":
        assert (ROOT / words[1]).is_file(), where
    elif "/" in words[0]:
        assert os.access(ROOT / words[0], os.X_OK), where
    elif words[0] == "pip":
        extra = re.search(r"\[(\w+)\]", words[-1])
        assert extra is not None, where
        assert f"\n{extra[1]} = [" in (ROOT / "client/pyproject.toml").read_text(), where
    else:
        raise AssertionError(f"{where}: how is one to know that {words[0]} exists?")


def assert_compose_knows(words: list[str], where: str) -> None:
    """Files, the sub-command, and services where a sub-command takes them."""
    files, rest = ["docker-compose.yml"], list(words)
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        value = rest.pop(0) if option in ("--env-file", "-f", "-p", "--profile") else ""
        if option in ("--env-file", "-f"):
            assert (ROOT / value).is_file(), where
        if option == "-f":
            files.append(value)
    services = {name for file in files for name in yaml.safe_load((ROOT / file).read_text())["services"]}
    verb = rest.pop(0)
    assert verb in COMPOSE_VERBS, where
    for before, word in pairwise(["", *rest]):
        if before == "--scale":
            assert word.partition("=")[0] in services, where
        elif not word.startswith("-") and before not in ("--tail", "--entrypoint", "--index"):
            assert word.replace("$n", "1") in services, where
            if verb in ("exec", "run"):
                return  # the rest is said to the container


@cache
def root_command() -> Any:
    return typer.main.get_command(app)


def assert_command_exists(words: list[str], where: str) -> None:
    """The sub-command, and all long options."""
    command = root_command()
    for word in words:
        if word.startswith("--"):
            known = {name for parameter in command.params for name in parameter.opts} | {"--help"}
            assert word.partition("=")[0] in known, where
        elif hasattr(command, "commands") and word != "COMMAND":
            assert word in command.commands, where
            command = command.commands[word]
