"""The head of an HTTP/1.1 response, parsed as far as a client of myqueue needs it. Pure."""

import re
from dataclasses import dataclass
from typing import overload

MAX_HEAD_BYTES = 32 << 10
MAX_BODY_BYTES = 256 << 20  # far above what a server of myqueue sends
END_OF_HEAD = b"\r\n\r\n"

_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9][0-9])[ \r]")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\r\n]*)?\r\n")
_SHOWN_BYTES = 40  # of what another protocol says
_WITHOUT_BODY = frozenset({204, 304})


class NotHttp(Exception):
    """What arrived is no HTTP/1.1 response."""


class ResponseHeaders:
    """Finds a header in the received bytes, its name in any case: of most responses one or two are wanted."""

    __slots__ = ("_head", "_lower")

    def __init__(self, head: bytes) -> None:
        """`head`: the status line and the headers, each with its line end."""
        self._head = head
        self._lower = head.lower()

    @overload
    def get(self, name: str) -> str | None: ...
    @overload
    def get(self, name: str, default: str) -> str: ...
    def get(self, name: str, default: str | None = None) -> str | None:
        """The first one of this name."""
        sought = b"\r\n%b:" % name.lower().encode("latin-1")
        at = self._lower.find(sought)
        return default if at < 0 else self._value(at + len(sought))

    def all(self, name: str) -> set[str]:
        sought = b"\r\n%b:" % name.lower().encode("latin-1")
        found, at = set(), self._lower.find(sought)
        while at >= 0:
            found.add(self._value(at + len(sought)))
            at = self._lower.find(sought, at + len(sought))
        return found

    def _value(self, start: int) -> str:
        return self._head[start : self._head.index(b"\r\n", start)].strip(b" \t").decode("latin-1")


@dataclass(frozen=True, slots=True)
class ResponseHead:
    status: int
    headers: ResponseHeaders
    length: int | None  # of the body; None: it is chunked, or ends with the connection
    chunked: bool
    keep_alive: bool


def parse_head(data: bytes, method: str) -> ResponseHead:
    """`data`: all of the head but its empty line; `method`: of the request. Raises NotHttp."""
    status_line = _STATUS_LINE.match(data)
    if status_line is None:
        raise NotHttp("its first line is no status line")
    status = int(status_line[2])
    headers = ResponseHeaders(data)
    connection = headers.get("connection", "").lower()
    keep_alive = "close" not in connection if status_line[1] == b"1" else "keep-alive" in connection
    if method == "HEAD" or status in _WITHOUT_BODY or status < 200:
        return ResponseHead(status, headers, 0, False, keep_alive)
    coding = headers.get("transfer-encoding")
    if coding is not None:
        if coding.lower() != "chunked":
            raise NotHttp("its transfer encoding is not known")
        return ResponseHead(status, headers, None, True, keep_alive)
    lengths = headers.all("content-length")
    if not lengths:
        return ResponseHead(status, headers, None, False, False)
    length = lengths.pop()
    if lengths or not (length.isascii() and length.isdecimal() and len(length) < 16):
        raise NotHttp("its content length is no number")
    if int(length) > MAX_BODY_BYTES:
        raise NotHttp(f"its content length is over {MAX_BODY_BYTES}")
    return ResponseHead(status, headers, int(length), False, keep_alive)


def check_start(data: bytes | bytearray) -> None:
    """Raises NotHttp if no head begins like this. Another protocol is recognised before its sender falls silent."""
    expected = b"HTTP/1."
    if data[:7] != expected[: len(data)]:
        first_line = next(iter(bytes(data[:_SHOWN_BYTES]).splitlines()), b"")
        raise NotHttp(f"it begins with {first_line.decode('latin-1')!a}")
    if b"\n\n" in data:
        raise NotHttp("its lines have no carriage returns")


def unchunk(data: bytes | bytearray) -> tuple[bytes, int] | None:
    """The body of a whole chunked message and where the message ends; None while it is not whole. Raises NotHttp."""
    parts: list[bytes | bytearray] = []
    at = 0
    while True:
        line_end = data.find(b"\r\n", at)
        if line_end < 0 and len(data) - at < 4096:
            return None
        size_line = _CHUNK_SIZE.match(data, at)
        if size_line is None:
            raise NotHttp("a chunk has no size")
        size, at = int(size_line[1], 16), size_line.end()
        if size == 0:
            break
        if len(data) < at + size + 2:
            return None
        if data[at + size : at + size + 2] != b"\r\n":
            raise NotHttp("a chunk does not end where it should")
        parts.append(data[at : at + size])
        at += size + 2
    # Trailers, which nobody wants, then an empty line.
    while (line_end := data.find(b"\r\n", at)) > at:
        at = line_end + 2
    return (b"".join(parts), at + 2) if line_end == at else None
