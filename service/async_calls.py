"""Calls between processes from the event loop: a call that waits holds no thread.

What `service.calls` is for threads. The servers of a cluster answer with Content-Length and keep connections open, so a
small reader of our own does; it costs a fraction of a general client.
"""

import asyncio
import json
from collections import deque
from collections.abc import Mapping
from typing import Any, cast

import structlog

from myqueue.protocol import http_headers
from service.calls import CallResponse, ConnectionRefused, NoAnswer

IDLE_S = 5.0  # below the time after which our listeners close an idle connection
MAX_HEAD_BYTES = 64 << 10
MAX_ANSWER_BYTES = 64 << 20
_NO_BODY = frozenset({204, 304})
_JOINED_BYTES = 32 << 10  # a body up to here is copied behind its head; larger ones are not


class _ConnectionLost(Exception):
    """The connection ended before the answer was complete."""

    def __init__(self, why: str, *, answer_began: bool) -> None:
        super().__init__(why)
        self.answer_began = answer_began


class _HttpConnection(asyncio.Protocol):
    """One request at a time, its answer into a future."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.idle_since_s = 0.0
        self._answer: asyncio.Future[CallResponse] | None = None
        self._head = bytearray()
        self._chunks: list[bytes] = []
        self._missing = 0  # bytes of the body still to come; counts only once the head is read
        self._status = 0
        self._headers: dict[str, str] = {}
        self._keep = False
        self._closed = False

    @property
    def usable(self) -> bool:
        return not self._closed and self.transport is not None and not self.transport.is_closing()

    def ask(self, request: list[bytes], answer: "asyncio.Future[CallResponse]") -> None:
        assert self.transport is not None
        self._answer = answer
        self._status = 0
        if len(request) == 1:
            self.transport.write(request[0])
        else:
            self.transport.writelines(request)

    def give_up(self, why: str) -> None:
        """The request that waits here gets no answer, and is not sent again."""
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_exception(_ConnectionLost(why, answer_began=True))

    def drop(self) -> None:
        self._closed = True
        self._answer = None
        if self.transport is not None:
            self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._answer is None:
            self.drop()  # bytes without a request
            return
        try:
            if self._status:
                self._take(data)
            else:
                self._begin(data)
        except ValueError as error:
            self._fail(f"an answer that is not one of ours: {error}")
            self.drop()

    def _begin(self, data: bytes) -> None:
        self._head += data
        end = self._head.find(b"\r\n\r\n")
        if end >= 0:
            rest = bytes(self._head[end + 4 :])
            self._read_head(bytes(self._head[:end]))
            self._head.clear()
            self._take(rest)
        elif len(self._head) > MAX_HEAD_BYTES:
            raise ValueError("endless headers")

    def _read_head(self, head: bytes) -> None:
        first, *lines = head.decode("latin-1").split("\r\n")
        version, _, rest = first.partition(" ")
        status = int(rest[:3])
        if not version.startswith("HTTP/1.") or not 200 <= status <= 599:
            raise ValueError(first[:100])
        found: dict[str, str] = {}
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon:
                raise ValueError(line[:100])
            found[name.lower()] = value.strip()
        length = found.get("content-length", "0" if status in _NO_BODY else "")
        if not length.isdecimal() or int(length) > MAX_ANSWER_BYTES:
            raise ValueError(f"Content-Length {length!r}")
        self._status, self._headers, self._missing = status, found, int(length)
        self._keep = version == "HTTP/1.1" and found.get("connection", "").lower() != "close"

    def _take(self, data: bytes) -> None:
        if len(data) > self._missing:
            raise ValueError("more bytes than Content-Length says")
        if data:
            self._chunks.append(data)
            self._missing -= len(data)
        if self._missing:
            return
        body = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks = []
        answer, self._answer = self._answer, None
        if not self._keep:
            self._closed = True
        if answer is not None and not answer.done():
            answer.set_result(CallResponse(self._status, self._headers, body))

    def eof_received(self) -> bool:
        self._closed = True
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._closed = True
        self._fail("the connection was closed" if error is None else str(error) or type(error).__name__)

    def _fail(self, why: str) -> None:
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_exception(_ConnectionLost(why, answer_began=bool(self._status or self._head)))


class _Host:
    """The connections to one address: the one used last is used next, so that the others grow old and close."""

    def __init__(self, address: str, limit: int) -> None:
        name, _, port = address.rpartition(":")
        if not name or not port.isdecimal():
            raise ValueError(f"not host:port: {address}")
        self.name, self.port = name.strip("[]"), int(port)
        self.idle: deque[_HttpConnection] = deque()
        self.busy: set[_HttpConnection] = set()
        self.places = asyncio.Semaphore(limit)

    def reusable(self, now_s: float) -> _HttpConnection | None:
        while self.idle and now_s - self.idle[0].idle_since_s > IDLE_S:
            self.idle.popleft().drop()
        while self.idle:
            connection = self.idle.pop()
            if connection.usable:
                return connection
            connection.drop()
        return None

    def keep(self, connection: _HttpConnection, now_s: float) -> None:
        connection.idle_since_s = now_s
        self.idle.append(connection)


class AsyncCaller:
    """May be constructed on any thread; used on one event loop."""

    def __init__(self, secret: str, *, connect_timeout_s: float = 1.0, connections_per_host: int = 64) -> None:
        self._secret = f"{http_headers.SECRET}: {_plain(secret)}\r\n"
        self._connect_timeout_s = connect_timeout_s
        self._connections_per_host = connections_per_host
        self._hosts: dict[str, _Host] = {}

    async def json(
        self,
        method: str,
        url: str,
        body: object | None = None,
        *,
        timeout_s: float = 2.0,
        extra_headers: Mapping[str, str] | None = None,
        request_id: str | None = None,
    ) -> Any:
        """The answer's JSON, None for an answer without a body; errors are raised as their classes."""
        payload = None if body is None else json.dumps(body).encode()
        answer = await self.call(
            method, url, payload, timeout_s=timeout_s, extra_headers=extra_headers, request_id=request_id
        )
        return answer.checked_json()

    async def call(
        self,
        method: str,
        url: str,
        body: bytes | None = None,
        *,
        content_type: str = "application/json",
        timeout_s: float = 2.0,
        extra_headers: Mapping[str, str] | None = None,
        request_id: str | None = None,
    ) -> CallResponse:
        """Any status. NoAnswer when there is none within `timeout_s`, connecting included."""
        scheme, _, rest = url.partition("://")
        address, slash, path = rest.partition("/")
        if scheme != "http":
            raise ValueError(f"not an http address: {url}")
        request = self._request(method, address, slash + path, body, content_type, extra_headers, request_id)
        host = self._hosts.get(address)
        if host is None:
            host = self._hosts[address] = _Host(address, self._connections_per_host)
        if timeout_s <= 0:
            raise NoAnswer(f"no time left to ask {address}", outcome="not_written")
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        if host.places.locked():
            try:
                async with asyncio.timeout_at(deadline_s):
                    await host.places.acquire()
            except TimeoutError:
                raise NoAnswer(f"every connection to {address} is in use", outcome="not_written") from None
        else:
            await host.places.acquire()  # does not wait
        try:
            return await self._converse(loop, host, method, url, request, deadline_s)
        finally:
            host.places.release()

    def _request(
        self,
        method: str,
        address: str,
        path: str,
        body: bytes | None,
        content_type: str,
        extra_headers: Mapping[str, str] | None,
        request_id: str | None,
    ) -> list[bytes]:
        request_id = request_id or structlog.contextvars.get_contextvars().get("request_id")
        lines = [f"{method} {_plain(path or '/')} HTTP/1.1\r\nHost: {address}\r\n{self._secret}"]
        if request_id:
            lines.append(f"{http_headers.REQUEST_ID}: {_plain(request_id)}\r\n")
        for name, value in (extra_headers or {}).items():
            lines.append(f"{_plain(name)}: {_plain(value)}\r\n")
        if body is not None:
            lines.append(f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n")
        elif method != "GET":
            lines.append("Content-Length: 0\r\n")
        lines.append("\r\n")
        head = "".join(lines).encode("latin-1")
        if not body:
            return [head]
        return [head + body] if len(body) <= _JOINED_BYTES else [head, body]

    async def _converse(
        self,
        loop: asyncio.AbstractEventLoop,
        host: _Host,
        method: str,
        url: str,
        request: list[bytes],
        deadline_s: float,
    ) -> CallResponse:
        while True:
            connection = host.reusable(loop.time())
            reused = connection is not None
            if connection is None:
                connection = await self._connect(host, url, deadline_s)
                if loop.time() >= deadline_s:
                    host.keep(connection, loop.time())
                    raise NoAnswer(f"no time left to ask {url}", outcome="not_written")
            waiting: asyncio.Future[CallResponse] = loop.create_future()
            timer = loop.call_at(deadline_s, _time_out, waiting)
            host.busy.add(connection)
            try:
                connection.ask(request, waiting)
                answer = await waiting
            except _ConnectionLost as lost:
                connection.drop()
                # The server had closed the kept connection. Resend only requests that change nothing.
                if reused and method == "GET" and not lost.answer_began and loop.time() < deadline_s:
                    continue
                raise NoAnswer(f"no answer from {url}: {lost}", outcome="unknown") from lost
            except TimeoutError:
                connection.drop()
                raise NoAnswer(f"no answer from {url} in time", outcome="unknown") from None
            except BaseException:
                connection.drop()  # a late response would be read as the next request's
                raise
            finally:
                timer.cancel()
                host.busy.discard(connection)
            if connection.usable:
                host.keep(connection, loop.time())
            else:
                connection.drop()
            return answer

    async def _connect(self, host: _Host, url: str, deadline_s: float) -> _HttpConnection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout_at(min(deadline_s, loop.time() + self._connect_timeout_s)):
                _, connection = await loop.create_connection(_HttpConnection, host.name, host.port)
        except (OSError, TimeoutError) as error:
            kind = ConnectionRefused if isinstance(error, ConnectionRefusedError) else NoAnswer
            raise kind(f"cannot connect to {url}", outcome="not_written") from error
        return connection

    def give_up(self, url: str, why: str) -> None:
        """Calls that wait for an answer from there get none: NoAnswer now, and not at their deadlines."""
        host = self._hosts.get(url.partition("://")[2])
        for connection in [] if host is None else list(host.busy):
            connection.give_up(why)

    def close(self) -> None:
        """Close idle connections now, the others after their responses."""
        for host in self._hosts.values():
            while host.idle:
                host.idle.pop().drop()


def _time_out(waiting: "asyncio.Future[CallResponse]") -> None:
    if not waiting.done():
        waiting.set_exception(TimeoutError())


def _plain(text: str) -> str:
    """Refuse line breaks: one in a header value would start another header."""
    if "\r" in text or "\n" in text:
        raise ValueError("line breaks are not allowed here")
    return text
