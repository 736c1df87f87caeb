"""Heads and chunked bodies of HTTP/1.1 requests: llhttp checks them, in its strict mode, and stops between messages.

A head, and a chunked body, ends with an empty line. Data is therefore cut behind each one before it goes to llhttp,
which then never reads into the next request of a pipelining client. What is ambiguous is refused, never repaired.
"""

import re
from urllib.parse import unquote

import httptools

from myqueue.protocol.errors import InvalidRequest

MAX_HEAD_BYTES = 64 << 10
MAX_HEADERS = 100

_EMPTY_LINE = b"\r\n\r\n"
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


class RequestParser:
    """`read_head`, then `read_chunks` if the body is chunked. A body with a length does not come through here."""

    # Of the head, once it is complete.
    method: str
    target: str
    headers: dict[str, str]  # names in lower case; what came several times is joined by commas
    is_http_1_1: bool
    keep_alive: bool
    content_length: int
    is_chunked: bool

    def __init__(self) -> None:
        self._tail = b""  # the last bytes of the head or chunks so far: an empty line may lie across two reads
        self._start()

    def _start(self) -> None:
        self._llhttp = httptools.HttpRequestParser(self)
        self._begin()

    def _begin(self) -> None:
        self.head_bytes = 0
        self.body_bytes = 0  # of a chunked body, so far
        self.body_complete = False
        self.is_upgrade = False
        self._head = b""  # while it is not complete
        self._head_complete = False
        self._chunks: list[bytes] = []

    def next_request(self) -> None:
        """After a request, its body included."""
        if self.content_length or self.is_upgrade or self.is_chunked or "proxy-connection" in self.headers:
            # This llhttp expects the body or another protocol, or takes a close in a trailer or in Proxy-Connection for
            # the end of the connection.
            self._start()
        else:
            self._begin()

    def read_head(self, data: bytes, start: int) -> tuple[int, bool]:
        """The position behind what was read, and whether the head is complete."""
        end = self._cut(data, start)
        part = data[start:end]
        self.head_bytes += end - start
        if self.head_bytes > MAX_HEAD_BYTES:
            raise InvalidRequest(f"the request's head is larger than {MAX_HEAD_BYTES} bytes")
        self._feed(part)
        if self._head_complete:
            self._split_head(self._head + part if self._head else part)
            return end, True
        self._head += part
        return end, False

    def read_chunks(self, data: bytes, start: int) -> int:
        """The position behind what was read. `body_complete` says whether that was the last chunk."""
        end = self._cut(data, start)
        self._feed(memoryview(data)[start:end])
        return end

    def take_body(self) -> bytes:
        chunks, self._chunks = self._chunks, []
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def path_and_query(self) -> tuple[str, str]:
        target = self.target if self.target[0] == "/" else _origin_form(self.target)
        path, _, query = target.partition("?")
        if "%" in path:
            if _BAD_ESCAPE.search(path):
                raise InvalidRequest("the path has a bad escape")
            try:
                path = unquote(path, errors="strict")
            except UnicodeDecodeError:
                raise InvalidRequest("the path is not UTF-8") from None
        return path, query

    def _cut(self, data: bytes, start: int) -> int:
        """Behind the next empty line, or the end of the data."""
        if self._tail:
            found = (self._tail + data[start : start + 3]).find(_EMPTY_LINE)
            if found >= 0:
                end = start + found + 4 - len(self._tail)
                self._tail = b""
                return end
        found = data.find(_EMPTY_LINE, start)
        if found >= 0:
            self._tail = b""
            return found + 4
        self._tail = (self._tail + data[max(start, len(data) - 3) :])[-3:]
        return len(data)

    def _feed(self, data: bytes | memoryview) -> None:
        try:
            self._llhttp.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.is_upgrade = True
        except httptools.HttpParserError as error:
            cause = error.__context__
            raise cause if isinstance(cause, InvalidRequest) else InvalidRequest(f"not HTTP/1.1: {error}") from None

    def _split_head(self, head: bytes) -> None:
        """llhttp has checked it: every line ends with CRLF, none is folded, a name is a token right before its colon.
        What follows here are the checks that llhttp leaves to its user."""
        first, *lines = head.decode("latin-1").lstrip("\r\n").split("\r\n")[:-2]
        if len(lines) > MAX_HEADERS:
            raise InvalidRequest(f"more than {MAX_HEADERS} headers")
        headers: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(":")
            name, value = name.lower(), value.strip(" \t")
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        self.headers = headers
        self.method, self.target, version = _request_line(first)
        self.is_http_1_1 = is_http_1_1 = version == "HTTP/1.1"
        if headers.get("host") is None if is_http_1_1 else version != "HTTP/1.0":
            raise InvalidRequest("no Host header" if is_http_1_1 else "not HTTP/1.1")
        if "," in headers.get("host", ""):
            raise InvalidRequest("more than one Host header")
        self.keep_alive = is_http_1_1 and "close" not in headers.get("connection", "").lower()
        coding, length = headers.get("transfer-encoding"), headers.get("content-length")
        self.is_chunked = coding is not None
        if coding is not None and (coding.lower() != "chunked" or not is_http_1_1 or self.is_upgrade):
            raise InvalidRequest("this Transfer-Encoding is not supported")
        self.content_length = 0 if length is None else int(length)

    # ---- called by llhttp ----

    def on_message_begin(self) -> None:
        if self._head_complete:
            raise InvalidRequest("a second request where none can be")

    def on_headers_complete(self) -> None:
        self._head_complete = True

    def on_body(self, data: bytes) -> None:
        self.body_bytes += len(data)
        self._chunks.append(data)

    def on_message_complete(self) -> None:
        self.body_complete = True


def _request_line(line: str) -> tuple[str, str, str]:
    try:
        method, target, version = line.split()
    except ValueError:
        raise InvalidRequest("not HTTP/1.1") from None
    return method, target, version


def _origin_form(target: str) -> str:
    """Clients may name the server in the request line, as to a proxy."""
    if not target.lower().startswith("http://"):
        raise InvalidRequest("not a path")
    return "/" + target[len("http://") :].partition("/")[2]
