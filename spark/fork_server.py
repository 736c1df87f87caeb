"""Forks the Python programs that Spark starts from one process that has imported what they need.

Spark starts seven Python programs for the first micro-batch of a stream, one after the other, and each imports PySpark,
pyarrow and the data source. The fork server imports them once, while Java starts. `fork_client.py` is what Spark starts
instead of Python: it hands its arguments, environment and standard streams to the server, which forks a process that
runs the program.

If a library starts a thread when it is imported, the server ends, and programs start as they do without it.

The server ends with the driver: its standard input is a pipe of which the driver holds the other end.
"""

import atexit
import importlib
import json
import os
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from spark.config import CHECKOUT
from spark.fork_client import NUMBER
from spark.preloading import preload

_HASH_SEED = "PYTHONHASHSEED"  # PySpark gives all its workers the same, 0 unless the environment says otherwise
_DAEMONS = ("pyspark.daemon", "spark.worker_daemon")
_END_S = 5.0


@cache
def start() -> str:
    """Starts the fork server of this process; its address, for the environment of Spark's Java."""
    folder = tempfile.mkdtemp(prefix="myqueue-spark-")  # only this user may enter it
    address = str(Path(folder) / "fork")
    server = subprocess.Popen(
        [sys.executable, "-m", "spark.fork_server", address], stdin=subprocess.PIPE, env=environment()
    )
    atexit.register(_end, server, folder, os.getpid())
    return address


def environment() -> dict[str, str]:
    """Of the server. What Python reads only when it starts must be as Spark sets it for its programs."""
    paths = filter(None, (os.environ.get("PYTHONPATH"), str(CHECKOUT)))
    unbuffered = {"PYTHONUNBUFFERED": "YES"}  # PySpark's workers end without a flush
    return {_HASH_SEED: "0", **os.environ, **unbuffered, "PYTHONPATH": os.pathsep.join(paths)}


def _end(server: subprocess.Popen[bytes], folder: str, owner: int) -> None:
    if os.getpid() != owner:
        return  # a fork of the driver
    assert server.stdin is not None
    server.stdin.close()
    try:
        server.wait(_END_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
    shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class Program:
    """In the forked process: what it is to run."""

    arguments: list[str]
    environment: dict[str, str]
    folder: str
    streams: list[int]

    def run(self) -> None:
        for number, stream in enumerate(self.streams):
            os.dup2(stream, number)
            os.close(stream)
        os.chdir(self.folder)
        os.environ.clear()
        os.environ.update(self.environment)
        known = set(sys.path)
        entries = self.environment.get("PYTHONPATH", "").split(os.pathsep)
        paths = [path for path in entries if path and path not in known]
        sys.path[:] = [self.folder, *paths, *sys.path[1:]]
        _, module, *rest = self.arguments
        sys.argv = [module, *rest]
        if module in _DAEMONS:
            importlib.import_module("spark.worker_daemon").run()
        else:
            runpy.run_module(module, run_name="__main__", alter_sys=True)


def receive(connection: socket.socket) -> Program | None:
    """None if this is not a whole request for `-m module`, which is all that is run here."""
    streams: list[int] = []
    with suppress(OSError):  # the client has been killed
        head, streams, _, _ = socket.recv_fds(connection, NUMBER.size, 3)
        if len(head) == NUMBER.size and len(streams) == 3:
            (size,) = NUMBER.unpack(head)
            data = connection.recv(size, socket.MSG_WAITALL)
            arguments, environment, folder = json.loads(data) if len(data) == size else ([], {}, "")
            if arguments[:1] == ["-m"] and len(arguments) > 1:
                return Program(arguments, environment, folder, streams)
    for stream in streams:
        os.close(stream)
    return None


class ForkServer:
    def __init__(self, listener: socket.socket, lifeline: int) -> None:
        self._listener = listener
        self._lifeline = lifeline
        self._selector = selectors.DefaultSelector()
        self._running: dict[int, tuple[int, socket.socket]] = {}  # by the descriptor of a process: its id, its client

    def serve(self) -> Program | None:
        """Returns in every forked process, with its program; in the server itself, with None, when the driver ends."""
        self._selector.register(self._lifeline, selectors.EVENT_READ)
        self._selector.register(self._listener, selectors.EVENT_READ)
        while True:
            # One event at a time: what is done about it may close the descriptors of others.
            key, _ = self._selector.select()[0]
            if key.fd == self._lifeline:
                return None
            if key.fd == self._listener.fileno():
                program = self._accept()
                if program is not None:
                    return program
            elif key.fd in self._running:
                self._ended(key.fd)
            else:
                self._lost_client(key.fd, key.data)

    def _accept(self) -> Program | None:
        connection, _ = self._listener.accept()
        program = receive(connection)
        if program is None:
            connection.close()
            return None
        try:
            pid = os.fork()
        except OSError:  # no more processes are allowed: the client starts the program, or fails as it would have
            pid = -1
        if pid == 0:
            self._selector.close()
            self._listener.close()
            connection.close()
            for descriptor, (_, client) in self._running.items():
                os.close(descriptor)
                client.close()
            return program
        for stream in program.streams:
            os.close(stream)
        if pid == -1:
            connection.close()
        else:
            self._watch(pid, connection)
        return None

    def _watch(self, pid: int, connection: socket.socket) -> None:
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:  # too many files are open: the client starts the program, so this one must not go on
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            connection.close()
            return
        self._running[descriptor] = pid, connection
        self._selector.register(descriptor, selectors.EVENT_READ)
        self._selector.register(connection, selectors.EVENT_READ, descriptor)
        with suppress(BrokenPipeError):  # its end will be noticed as that of any client
            connection.sendall(NUMBER.pack(pid))

    def _ended(self, descriptor: int) -> None:
        pid, connection = self._running.pop(descriptor)
        _, status = os.waitpid(pid, 0)
        self._selector.unregister(descriptor)
        os.close(descriptor)
        if connection.fileno() in self._selector.get_map():
            self._selector.unregister(connection)
            code = os.waitstatus_to_exitcode(status)
            with suppress(BrokenPipeError):  # the client has been killed at the same time
                connection.sendall(NUMBER.pack(code if code >= 0 else 128 - code))  # as shells say it of a signal
        connection.close()

    def _lost_client(self, client: int, descriptor: int) -> None:
        """Spark has killed the process that it takes for the program."""
        self._selector.unregister(client)
        signal.pidfd_send_signal(descriptor, signal.SIGTERM)


def can_watch() -> bool:
    """Whether this system tells when a process has ended."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


def main(address: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in Spark's Java: Ctrl-C is for the driver
    program: Program | None = None
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()  # programs that come before everything is imported wait for it
        if can_watch() and preload():
            program = ForkServer(listener, sys.stdin.fileno()).serve()
    if program is None:
        shutil.rmtree(Path(address).parent, ignore_errors=True)  # also where the driver was killed
    else:
        program.run()


if __name__ == "__main__":
    main(sys.argv[1])
