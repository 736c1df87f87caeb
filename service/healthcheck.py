"""Liveness probe of the service on this machine: `python -m service.healthcheck`, 0 alive, 1 not.

Run every few seconds in each container, so it imports next to nothing.
"""

import os
import socket
import sys

TIMEOUT_S = 3.0
REQUEST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def problem(port: str) -> str | None:
    """None when it answers 200."""
    if not port.isdecimal():
        return f"MYQUEUE_PORT is {port!r}: set it to the port of the service"
    try:
        with socket.create_connection(("127.0.0.1", int(port)), TIMEOUT_S) as connection:
            connection.sendall(REQUEST)
            answer = connection.recv(64)
    except OSError as error:
        return f"port {port}: {error}"
    status_line = answer.partition(b"\r\n")[0].decode("latin-1")
    return None if status_line.split(" ")[1:2] == ["200"] else f"port {port} answered {status_line!r}"


def main() -> int:
    # A standby write manager listens on its internal port only.
    found = problem(os.environ.get("MYQUEUE_INTERNAL_PORT") or os.environ.get("MYQUEUE_PORT", ""))
    if found is not None:
        print(found, file=sys.stderr)
    return 0 if found is None else 1


if __name__ == "__main__":
    sys.exit(main())
