"""Starting a peer's server: 127.0.0.1 only, a folder of its own, a memory cap, ended by its pid."""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from stack.account import give
from stack.ports import HOST, choose_inner_ports
from stack.process import Account, Command, kill_group, spawn

READY_S = 60.0
STOP_S = 15.0


def free_ports(count: int) -> list[int]:
    return list(choose_inner_ports([str(n) for n in range(count)], {}, taken=0).values())


@contextlib.contextmanager
def server(
    argv: Sequence[str | Path],
    folder: Path,
    ready: Callable[[], bool],
    *,
    memory_bytes: int,
    env: dict[str, str] | None = None,
    account: Account | None = None,
) -> Iterator["subprocess.Popen[bytes]"]:
    folder.mkdir(parents=True, exist_ok=True)
    give(folder, account)
    log = folder / "server.log"
    process = spawn(Command(argv, {**os.environ, **(env or {})}, folder, memory_bytes, account), log)
    try:
        _wait_until(ready, process, log)
        yield process
    finally:
        _end(process)


def _wait_until(ready: Callable[[], bool], process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + READY_S
    while not ready():
        if process.poll() is not None or time.monotonic() > deadline:
            why = "ended" if process.poll() is not None else f"was not ready after {READY_S:.0f} s"
            lines = log.read_text(errors="replace").splitlines()[-10:]
            raise RuntimeError("\n".join([f"{process.args!s} {why}:", *lines]))
        time.sleep(0.05)


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    kill_group(process.pid)  # its child processes


def listens(port: int) -> bool:
    try:
        with socket.create_connection((HOST, port), timeout=1):
            return True
    except OSError:
        return False
