"""Bytes to a port and the bytes that come back: for requests that no well-behaved client library would send."""

import json
import socket
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True)
class RawAnswer:
    status: int
    headers: dict[str, str]  # names in lower case
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def connect(url: str, timeout_s: float = 10.0) -> socket.socket:
    parts = urlsplit(url)
    assert parts.hostname is not None
    return socket.create_connection((parts.hostname, parts.port or 80), timeout=timeout_s)


def exchange(url: str, data: bytes, timeout_s: float = 10.0) -> bytes:
    """Everything that comes back until the server closes. Its closing while we still send is fine."""
    received = b""
    with connect(url, timeout_s) as connection:
        try:
            connection.sendall(data)
            while chunk := connection.recv(65536):
                received += chunk
        except (BrokenPipeError, ConnectionResetError):
            return received
    return received


def answers(received: bytes) -> list[RawAnswer]:
    """All answers in what came over one connection."""
    found = []
    while received:
        head, _, rest = received.partition(b"\r\n\r\n")
        status_line, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if "content-length" in headers:
            length = int(headers["content-length"])
            body, received = rest[:length], rest[length:]
        elif headers.get("transfer-encoding") == "chunked":
            body, received = _unchunked(rest)
        else:
            body, received = rest, b""
        found.append(RawAnswer(int(status_line.split(" ")[1]), headers, body))
    return found


def _unchunked(data: bytes) -> tuple[bytes, bytes]:
    """The body, and what follows it."""
    body = b""
    while True:
        size, _, data = data.partition(b"\r\n")
        length = int(size, 16)
        body, data = body + data[:length], data[length + 2 :]
        if length == 0:
            return body, data
