"""Programs that the fork server forks are to Spark as those that it starts itself; without the server they start."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark import fork_client, fork_server
from spark.config import CHECKOUT
from spark.runtime import worker_python
from tests.waiting import until

WITHIN_S = 30
_SERVE = "from spark import fork_server, preloading; preloading.MODULES = {modules!r}; fork_server.main({address!r})"
_PROGRAM = """
import os, sys
print(os.getpid(), os.getppid(), sys.argv[1:], sys.stdin.read(), os.environ["COLOUR"], os.getcwd(), sep="|", flush=True)
print("on stderr", file=sys.stderr)
sys.exit(7)
"""
_WAITING = """
import os, select
open("pid", "w").write(str(os.getpid()))
select.select([], [], [], 60)
"""


class Server:
    def __init__(self, folder: Path, modules: tuple[str, ...]) -> None:
        self.folder = folder
        (folder / "s").mkdir()
        self.address = str(folder / "s" / "fork")
        self.python = str(worker_python(folder))
        self.environment = {
            **fork_server.environment(),
            fork_client.ADDRESS: self.address,
            "PYTHONPATH": os.pathsep.join(map(str, (folder, CHECKOUT))),
            "COLOUR": "blue",
        }
        code = _SERVE.format(modules=modules, address=self.address)
        self.process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, env=self.environment, cwd=folder
        )
        until(self._is_decided, within_s=WITHIN_S, what="the server listens, or has ended")

    def _is_decided(self) -> bool:
        return Path(self.address).exists() or self.process.poll() is not None

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [self.python, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
            cwd=self.folder,
        )

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(WITHIN_S) == 0


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("f")  # short: so must the path of a socket be
    for name, text in {"program": _PROGRAM, "waiting": _WAITING}.items():
        (folder / f"{name}.py").write_text(text)
    return folder


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    server = Server(folder, ("json",))
    yield server
    server.end()


def folder_of(server: Server) -> Path:
    return Path(server.address).parent


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def written_pid(folder: Path) -> int:
    path = folder / "pid"
    return int(until(lambda: path.read_text() if path.exists() else None, within_s=WITHIN_S, what="it runs"))


def check_program(server: Server, *, forked: bool) -> None:
    program = server.start("-m", "program", "one", "two")
    out, err = program.communicate("input", timeout=WITHIN_S)
    pid, parent, *rest = out.strip().split("|")
    assert rest == ["['one', 'two']", "input", "blue", str(server.folder)]
    assert (err, program.returncode) == ("on stderr\n", 7)
    assert (int(parent) == server.process.pid, int(pid) != program.pid) == (forked, forked)


def test_a_program_has_its_arguments_streams_environment_folder_and_exit_status(server: Server) -> None:
    check_program(server, forked=True)
    check_program(server, forked=True)


def test_programs_have_random_numbers_of_their_own(folder: Path) -> None:
    (folder / "dice.py").write_text("import numpy, random; print(numpy.random.random(), random.random())")
    server = Server(folder, ("numpy.random", "random"))
    thrown = [server.start("-m", "dice").communicate(timeout=WITHIN_S)[0].split() for _ in range(2)]
    server.end()
    assert len({*thrown[0], *thrown[1]}) == 4


def test_output_is_there_although_a_worker_ends_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark's workers end in this way."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    (folder / "worker.py").write_text("import os; print('from a task'); os._exit(0)")
    server = Server(folder, ("json",))
    out, _ = server.start("-m", "worker").communicate(timeout=WITHIN_S)
    server.end()
    assert out == "from a task\n"


def test_a_client_that_is_killed_while_it_asks_costs_nothing(server: Server) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(server.address)
        socket.send_fds(connection, [fork_client.NUMBER.pack(100)], [0, 1, 2])
        connection.sendall(b"[")
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(server.address)
    check_program(server, forked=True)


def test_programs_and_their_clients_that_end_at_the_same_time_cost_nothing(server: Server) -> None:
    for _ in range(5):
        programs = [server.start("-m", "waiting") for _ in range(4)]
        until(lambda: len(children(server.process.pid)) == 4, within_s=WITHIN_S, what="they run")
        server.process.send_signal(signal.SIGSTOP)
        for pid in [*children(server.process.pid), *[program.pid for program in programs]]:
            os.kill(pid, signal.SIGKILL)
        server.process.send_signal(signal.SIGCONT)
        for program in programs:
            with program:
                program.wait(WITHIN_S)
    check_program(server, forked=True)


def test_what_is_not_a_module_is_started_by_python(server: Server) -> None:
    done, _ = server.start("-c", "import os; print(os.getppid())").communicate(timeout=WITHIN_S)
    assert int(done) != server.process.pid


def test_a_signal_reaches_the_program(server: Server) -> None:
    with server.start("-m", "waiting") as program:
        pid = written_pid(server.folder)
        program.send_signal(signal.SIGTERM)
        # The first, if the client had no time to learn of the program: it is ended with the client.
        assert program.wait(WITHIN_S) in (-signal.SIGTERM, 128 + signal.SIGTERM)
    until(lambda: not is_alive(pid), within_s=WITHIN_S, what="the program has ended")


def test_a_program_ends_when_what_spark_takes_for_it_is_killed(server: Server) -> None:
    with server.start("-m", "waiting") as program:
        pid = written_pid(server.folder)
        program.kill()
        program.wait(WITHIN_S)
    until(lambda: not is_alive(pid), within_s=WITHIN_S, what="the program has ended")


def test_programs_outlive_the_server(folder: Path) -> None:
    server = Server(folder, ("json",))
    with server.start("-m", "waiting") as program:
        pid = written_pid(folder)
        server.end()
        assert is_alive(pid)
        os.kill(pid, signal.SIGKILL)
        assert program.wait(WITHIN_S) == 1


def test_without_a_server_a_program_starts(folder: Path) -> None:
    server = Server(folder, ("json",))
    server.end()
    assert not folder_of(server).exists(), "it leaves nothing behind"
    with socket.socket(socket.AF_UNIX) as listener:  # nobody answers there any more
        folder_of(server).mkdir()
        listener.bind(server.address)
    check_program(server, forked=False)


def test_a_server_whose_modules_start_threads_forks_nothing(folder: Path) -> None:
    (folder / "threaded.py").write_text(
        "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
    )
    server = Server(folder, ("threaded",))
    check_program(server, forked=False)
    assert server.process.wait(WITHIN_S) == 0
    server.end()
