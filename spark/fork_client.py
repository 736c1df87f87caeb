"""A Python program of Spark's, forked by the fork server: `fork_client.py PYTHON -m module …`.

Stands for the program towards Spark's Java: the same standard streams, signals and exit status. Where the fork server
does not answer, the program is started as ever. Runs without `site`, and imports little: it is what a start costs.
"""

import json
import os
import signal
import socket
import struct
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType

ADDRESS = "MYQUEUE_SPARK_FORK_SERVER"
NUMBER = struct.Struct("!i")


def receive_number(connection: socket.socket) -> int | None:
    """None if the server has closed the connection."""
    data = connection.recv(NUMBER.size, socket.MSG_WAITALL)
    return NUMBER.unpack(data)[0] if len(data) == NUMBER.size else None


def request(connection: socket.socket, arguments: list[str]) -> int | None:
    """The process id of the program; None if the server cannot fork it."""
    data = json.dumps([arguments, dict(os.environ), str(Path.cwd())]).encode()
    socket.send_fds(connection, [NUMBER.pack(len(data))], [0, 1, 2])
    connection.sendall(data)
    return receive_number(connection)


def main(python: str, arguments: list[str]) -> int:
    pid: int | None = None
    connection = socket.socket(socket.AF_UNIX)
    with suppress(OSError):  # without a server the program is started here, below
        connection.connect(os.environ[ADDRESS])
        pid = request(connection, arguments)
    if pid is None:
        os.execv(python, [python, *arguments])  # noqa: S606 no shell is wanted

    def forward(number: int, _frame: FrameType | None) -> None:
        with suppress(ProcessLookupError):  # it has ended, and its status is on the way
            os.kill(pid, number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, forward)
    status = receive_number(connection)
    return 1 if status is None else status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
