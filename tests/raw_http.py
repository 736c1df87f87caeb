"""Bytes to a port and the bytes that come back: for requests that no well-behaved client library would send."""

import json
import socket
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

POST = b"POST /topics HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
GET = b"GET /topics HTTP/1.1\r\nHost: x\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
SMUGGLED_NAME = "smuggled"
SMUGGLED_BODY = b'{"name":"smuggled","partitions":1}'
SMUGGLED = POST + b"Content-Length: %d\r\n\r\n%b" % (len(SMUGGLED_BODY), SMUGGLED_BODY)
VECTORS = {  # ambiguous: two readers could see two different requests
    "length and chunks": POST + b"Content-Length: 5\r\n" + CHUNKED + b"\r\n0\r\n\r\n",
    "chunks and length": POST + CHUNKED + b"Content-Length: 5\r\n\r\n0\r\n\r\n",
    "two lengths": POST + b"Content-Length: 2\r\nContent-Length: 200\r\n\r\n{}",
    "the same length twice": POST + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
    "a list of lengths": POST + b"Content-Length: 2, 2\r\n\r\n{}",
    "a length with a plus": POST + b"Content-Length: +2\r\n\r\n{}",
    "a length below zero": POST + b"Content-Length: -2\r\n\r\n{}",
    "a length beyond 64 bits": POST + b"Content-Length: 99999999999999999999\r\n\r\n{}",
    "an unknown coding": POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunked is not last": POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "chunked twice": POST + CHUNKED + CHUNKED + b"\r\n0\r\n\r\n",
    "a blank before the colon": POST + b"Transfer-Encoding : chunked\r\nContent-Length: 2\r\n\r\n{}",
    "a bad chunk size": POST + CHUNKED + b"\r\nzz\r\n{}\r\n0\r\n\r\n",
    "a chunk size below zero": POST + CHUNKED + b"\r\n-1\r\n{}\r\n0\r\n\r\n",
    "a chunk size beyond 64 bits": POST + CHUNKED + b"\r\nffffffffffffffffff\r\n{}\r\n0\r\n\r\n",
    "chunks with bare line feeds": POST + CHUNKED + b"\r\n2\n{}\n0\n\n",
    "chunks in HTTP/1.0": b"POST /topics HTTP/1.0\r\nHost: x\r\n" + CHUNKED + b"\r\n0\r\n\r\n",
    "a folded header": GET + b"X-A: b\r\n Content-Length: 5\r\n\r\n",
    "NUL in a header": GET + b"X-A: b\0c\r\n\r\n",
    "two hosts": GET + b"Host: y\r\n\r\n",
    "no host": b"GET /topics HTTP/1.1\r\n\r\n",
    "another version": b"GET /topics HTTP/3.0\r\nHost: x\r\n\r\n",
    "a bad escape": b"GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n",
    "above the root": b"GET /../internal/topics HTTP/1.1\r\nHost: x\r\n\r\n",
    "a long path": b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    "a long header": GET + b"X-A: " + b"a" * 80_000 + b"\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
}


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
