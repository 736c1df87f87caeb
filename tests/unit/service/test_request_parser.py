"""Heads and chunked bodies, however the network cuts them: the same requests, or the same refusal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from myqueue.protocol.errors import InvalidRequest
from service.request_parser import MAX_HEAD_BYTES, MAX_HEADERS, RequestParser
from tests.raw_http import CHUNKED, GET, POST, VECTORS

REFUSED_BY_NGINX = ("above the root", "a long path")  # requests like others, and of no route
MORE_VECTORS = {
    "bare line feeds": b"GET /topics HTTP/1.1\nHost: x\n\n",
    "a line feed at the end": GET + b"\n",
    "a carriage return in a header": GET + b"X-A: b\rX-B: c\r\n\r\n",
    "a folded first header": b"GET /topics HTTP/1.1\r\n Host: x\r\n\r\n",
    "no version": b"GET /topics\r\n\r\n",
    "HTTP/1.2": b"GET /topics HTTP/1.2\r\nHost: x\r\n\r\n",
    "an unknown method": b"FOO /topics HTTP/1.1\r\nHost: x\r\n\r\n",
    "no name": GET + b": x\r\n\r\n",
    "a blank in a name": GET + b"X A: x\r\n\r\n",
    "two codings": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "another coding": GET + b"Transfer-Encoding: identity\r\n\r\n",
    "an empty length": POST + b"Content-Length:\r\n\r\n",
    "a chunk without its end": POST + CHUNKED + b"\r\n2\r\n{}XX0\r\n\r\n",
    "a blank behind a chunk size": POST + CHUNKED + b"\r\n2 \r\n{}\r\n0\r\n\r\n",
    "a length in a trailer": POST + CHUNKED + b"\r\n0\r\nContent-Length: 5\r\n\r\n",
    "an upgrade with chunks": POST + CHUNKED + b"Connection: Upgrade\r\nUpgrade: x\r\n\r\n0\r\n\r\n",
    "CONNECT": b"CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n",
    "no path": b"GET topics HTTP/1.1\r\nHost: x\r\n\r\n",
    "half an escape": b"GET /a%2 HTTP/1.1\r\nHost: x\r\n\r\n",
    "not UTF-8": b"GET /%ff HTTP/1.1\r\nHost: x\r\n\r\n",
    "too many headers": GET + b"X-A: b\r\n" * MAX_HEADERS + b"\r\n",
    "a large head": GET + (b"X-A: " + b"b" * 1000 + b"\r\n") * (MAX_HEAD_BYTES // 1000 + 1),
}
GOOD = (
    b"\r\n\r\nGET /a%20b?c=%20d HTTP/1.1\r\nHost: x\r\nX-A:  b \t\r\nx-a: c\r\nX-Empty:\r\n\r\n"
    b"POST /length HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nab\r\n\r\nGET"
    b"POST /chunks HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: Chunked\r\n\r\n"
    b"6;name=value\r\nab\r\n\r\n\r\n0002\r\ncd\r\n0\r\nX-Trailer: x\r\n\r\n"
    b"POST /chunks HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n\r\n\r\n\r\n0\r\n\r\n"
    b"POST /none HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: keep-alive, Upgrade\r\nUpgrade: h2c\r\n\r\n"
    b"GET http://x/absolute?e HTTP/1.1\r\nHost: x\r\nConnection: Close\r\n\r\n"
)
EXPECTED = [
    ("GET", ("/a b", "c=%20d"), {"host": "x", "x-a": "b, c", "x-empty": ""}, b"", True),
    ("POST", ("/length", ""), {"host": "x", "content-length": "9"}, b"ab\r\n\r\nGET", True),
    ("POST", ("/chunks", ""), {"host": "x", "transfer-encoding": "Chunked"}, b"ab\r\n\r\ncd", True),
    ("POST", ("/chunks", ""), {"host": "x", "transfer-encoding": "chunked"}, b"\r\n\r\n", True),
    (
        "POST",
        ("/none", ""),
        {"host": "x", "content-length": "0", "connection": "keep-alive, Upgrade", "upgrade": "h2c"},
        b"",
        True,
    ),
    ("GET", ("/absolute", "e"), {"host": "x", "connection": "Close"}, b"", False),
]


class Reading:
    """What a connection does with a parser, without a connection."""

    def __init__(self) -> None:
        self.parser = RequestParser()
        self.requests: list[tuple[object, ...]] = []
        self._in_head = True
        self._body = b""
        self._missing = 0

    def feed_all(self, parts: list[bytes]) -> None:
        for part in parts:
            self._feed(part)

    def _feed(self, data: bytes) -> None:
        position = 0
        while position < len(data):
            parser = self.parser
            if self._in_head:
                position, is_complete = parser.read_head(data, position)
                if is_complete:
                    parser.path_and_query()
                    self._in_head = False
                    self._missing = parser.content_length
                    if not parser.is_chunked and not self._missing:
                        self._end(b"")
            elif parser.is_chunked:
                position = parser.read_chunks(data, position)
                if parser.body_complete:
                    self._end(parser.take_body())
            else:
                part = data[position : position + self._missing]
                position, self._missing, self._body = position + len(part), self._missing - len(part), self._body + part
                if not self._missing:
                    self._end(self._body)

    def _end(self, body: bytes) -> None:
        parser = self.parser
        self.requests.append((parser.method, parser.path_and_query(), parser.headers, body, parser.keep_alive))
        self._in_head, self._body = True, b""
        parser.next_request()


def read(parts: list[bytes]) -> list[tuple[object, ...]]:
    reading = Reading()
    reading.feed_all(parts)
    return reading.requests


def cut(data: bytes, places: set[int]) -> list[bytes]:
    ends = [*sorted(places), len(data)]
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False) if start < end]


def test_requests_one_behind_the_other() -> None:
    assert read([GOOD]) == EXPECTED
    assert read([bytes([byte]) for byte in GOOD]) == EXPECTED
    for place in range(len(GOOD)):
        assert read(cut(GOOD, {place})) == EXPECTED, place


@given(st.sets(st.integers(1, len(GOOD) - 1), max_size=8))
def test_requests_cut_anywhere(places: set[int]) -> None:
    assert read(cut(GOOD, places)) == EXPECTED


@pytest.mark.parametrize("name", [name for name in (VECTORS | MORE_VECTORS) if name not in REFUSED_BY_NGINX])
def test_ambiguous_requests(name: str) -> None:
    """Nothing of them, nor of what follows, becomes a request."""
    data = (VECTORS | MORE_VECTORS)[name] + GOOD
    places = range(0, len(data), max(1, len(data) // 500))
    for parts in ([data], cut(data, set(places)), *(cut(data, {place}) for place in list(places)[::20])):
        reading = Reading()
        with pytest.raises(InvalidRequest):
            reading.feed_all(parts)
        assert reading.requests == []


def test_http_1_0() -> None:
    assert read([b"GET http://x HTTP/1.0\r\n\r\n"]) == [("GET", ("/", ""), {}, b"", False)]
