"""An HTTP listener: Granian's embedded server on the process's event loop, Flask on a bounded pool of threads.

One process, one loop, as many listeners as wanted. Hot routes are answered on the loop, everything else by Flask.
Bodies are capped while they stream in, and a request that finds too many others in hand is refused at once instead of
queueing without end.
"""

import asyncio
import io
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.server.embed import Server

from myqueue.protocol import http_headers
from myqueue.protocol.errors import MyQueueError, Overloaded, RouteNotFound, TooLarge
from service.body_budget import BodyBudget, HeldBody
from service.error_encoding import encode_error
from service.hot import Found, HotRequest, HotRoutes

Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

_WITHOUT_BODY = frozenset({"GET", "HEAD"})
_LAST_ANSWER = ("connection", "close")  # after a body that was not taken in whole, nobody may go on with the connection


class Bridge:
    """RSGI on the outside; inside hot routes, and WSGI for what is none of them."""

    def __init__(
        self,
        hot: HotRoutes | None,
        wsgi: Wsgi | None = None,
        *,
        threads: int = 1,
        max_waiting: int = 0,
        max_body_bytes: int,
        bodies: BodyBudget,
        leave_body_bytes: int = 0,
        max_open: int = 4096,
    ) -> None:
        """`max_open`: hot requests in hand at the same time; those that wait hold no thread. `bodies` is the one budget
        of the process, of which this listener leaves `leave_body_bytes` to others."""
        self._hot = hot
        self._wsgi = wsgi
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="http")
        self._limit = threads + max_waiting
        self._max_body_bytes = max_body_bytes
        self._max_open = max_open
        self._bodies = bodies
        self._leave_body_bytes = leave_body_bytes
        self._in_hand = 0
        self._on_threads = 0
        self._open = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def __call__(self, scope: Any, protocol: Any) -> None:
        if scope.proto != "http":
            protocol.close(404)
            return
        self._in_hand += 1
        self._idle.clear()
        try:
            hot = self._hot
            found = None if hot is None else hot.find(scope.method, scope.path)
            if hot is not None and found is not None:
                await self._answer_hot(hot, found, scope, protocol)
            elif self._wsgi is not None:
                await self._answer_flask(self._wsgi, scope, protocol)
            else:
                refusal = RouteNotFound() if hot is None else hot.refusal(scope.method, scope.path)
                if scope.method in _WITHOUT_BODY:
                    refusal.outcome = None  # nothing was to be written
                protocol.response_bytes(*encode_error(refusal, _request_id(scope)))
        finally:
            self._in_hand -= 1
            if self._in_hand == 0:
                self._idle.set()

    async def _answer_hot(self, hot: HotRoutes, found: Found, scope: Any, protocol: Any) -> None:
        started_s = time.perf_counter()
        held = HeldBody(self._bodies, self._leave_body_bytes)
        self._open += 1
        request = _hot_request(scope, protocol, found.path_values)
        try:
            self._check_size(_declared_bytes(scope))
            if self._open > self._max_open and not found.always:
                raise Overloaded(retry_after_s=1)
            request.body = await self._take_body(scope, protocol, held)
        except MyQueueError as error:
            answer, refused = hot.failed(request, error), True
        else:
            answer, refused = await hot.answer(found, request), False
        finally:
            self._open -= 1
            held.release()
        if refused and not await self._drain_body(scope, protocol):
            answer.headers.append(_LAST_ANSWER)
        protocol.response_bytes(answer.status, answer.headers, answer.body)
        if answer.on_sent is not None:
            answer.on_sent()
        hot.answered(found, request, answer.status, time.perf_counter() - started_s)

    async def _answer_flask(self, wsgi: Wsgi, scope: Any, protocol: Any) -> None:
        held = HeldBody(self._bodies, self._leave_body_bytes)
        self._on_threads += 1
        try:
            try:
                if self._on_threads > self._limit:
                    raise Overloaded(retry_after_s=1)
                body = await self._take_body(scope, protocol, held)
            except MyQueueError as error:
                status, answer_headers, answer = encode_error(error, _request_id(scope))
                refused = True
            else:
                environ = _environ(scope, body)
                loop = asyncio.get_running_loop()
                status, answer_headers, answer = await loop.run_in_executor(self._pool, _call, wsgi, environ)
                refused = False
        finally:
            self._on_threads -= 1
            held.release()
        if refused and not await self._drain_body(scope, protocol):
            answer_headers.append(_LAST_ANSWER)
        protocol.response_bytes(status, answer_headers, answer)

    async def _take_body(self, scope: Any, protocol: Any, held: HeldBody) -> bytes:
        """Not a byte is read before its memory is there. A size that is not told counts as the largest."""
        is_chunked = bool(scope.headers.get("transfer-encoding"))
        size = self._max_body_bytes if is_chunked else _declared_bytes(scope)
        self._check_size(size)
        if not size:
            return b""
        held.take(size)
        body = await self._read_body(scope, protocol)
        held.read(len(body))
        return body

    async def _read_body(self, scope: Any, protocol: Any) -> bytes:
        if scope.headers.get("content-length") is not None:
            body: bytes = await protocol()
            return body
        chunks, size = [], 0
        async for chunk in protocol:
            size += len(chunk)
            self._check_size(size)
            chunks.append(chunk)
        return b"".join(chunks)

    async def _drain_body(self, scope: Any, protocol: Any) -> bool:
        """Takes in what is refused and keeps none of it: whoever is still sending when a connection closes may get a
        reset instead of the answer. False when that is too much, or its size was not told."""
        declared = scope.headers.get("content-length")
        if declared is None:
            return scope.method in _WITHOUT_BODY and not scope.headers.get("transfer-encoding")
        if not declared.isdecimal() or int(declared) > 2 * self._max_body_bytes:
            return False
        async for _ in protocol:
            pass
        return True

    def _check_size(self, size: int) -> None:
        if size > self._max_body_bytes:
            raise TooLarge(f"request body is larger than {self._max_body_bytes} bytes")

    def wake(self) -> None:
        """Whoever waits in a hot route answers now."""
        if self._hot is not None:
            self._hot.stop()

    async def drain(self, timeout_s: float) -> bool:
        """True when every request in hand was answered in time."""
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


class Listener:
    """One address and what answers there."""

    def __init__(self, bridge: Bridge, host: str, port: int) -> None:
        self._bridge = bridge
        self._address = (host, port)
        self._server = Server(
            bridge,
            address=host,
            port=port,
            interface=Interfaces.RSGI,
            http=HTTPModes.http1,
            websockets=False,
            backlog=1024,
            http1_settings=HTTP1Settings(header_read_timeout=10_000),
            log_enabled=False,
        )
        self._task: asyncio.Task[None] | None = None

    def start(self) -> asyncio.Task[None]:
        self._refuse_shared_port()
        self._task = asyncio.create_task(self._server.serve())
        return self._task

    def _refuse_shared_port(self) -> None:
        """Granian listens with SO_REUSEPORT: a second process would silently get half of the connections."""
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(self._address)
            except OSError as error:
                print(f"cannot listen on {self._address[0]}:{self._address[1]}: {error.strerror}", file=sys.stderr)
                raise SystemExit(2) from error

    async def stop(self, timeout_s: float) -> bool:
        if self._task is None:
            return True
        self._server.stop()  # type: ignore[no-untyped-call]
        self._bridge.wake()
        drained = await self._bridge.drain(timeout_s)
        await asyncio.wait([self._task], timeout=timeout_s)
        self._bridge.close()
        return drained


class GracefulListener(Listener):
    """Takes requests until those who send them know where else to go."""

    def __init__(self, bridge: Bridge, host: str, port: int, before_stop: Callable[[], Awaitable[None]]) -> None:
        super().__init__(bridge, host, port)
        self._before_stop = before_stop

    async def stop(self, timeout_s: float) -> bool:
        await self._before_stop()
        return await super().stop(timeout_s)


def _request_id(scope: Any) -> str | None:
    found: str | None = scope.headers.get(http_headers.REQUEST_ID.lower())
    return found


def _declared_bytes(scope: Any) -> int:
    declared = scope.headers.get("content-length")
    return int(declared) if declared is not None and declared.isdecimal() else 0


def _hot_request(scope: Any, protocol: Any, path_values: Mapping[str, str]) -> HotRequest:
    return HotRequest(
        scope.method,
        scope.path,
        path_values,
        scope.query_string,
        scope.headers,
        b"",
        _request_id(scope),
        protocol.client_disconnect,
    )


def _environ(scope: Any, body: bytes) -> dict[str, Any]:
    host, _, port = scope.server.rpartition(":")
    environ: dict[str, Any] = {
        "REQUEST_METHOD": scope.method,
        "SCRIPT_NAME": "",
        "PATH_INFO": scope.path.encode().decode("latin-1"),  # the server has decoded it; WSGI wants bytes as text
        "QUERY_STRING": scope.query_string,
        "SERVER_NAME": host,
        "SERVER_PORT": port,
        "SERVER_PROTOCOL": "HTTP/1.1",
        "REMOTE_ADDR": scope.client.rpartition(":")[0],
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.input": io.BytesIO(body),
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }
    for name, value in scope.headers.items():
        environ["HTTP_" + name.upper().replace("-", "_")] = value
    if "HTTP_CONTENT_TYPE" in environ:
        environ["CONTENT_TYPE"] = environ.pop("HTTP_CONTENT_TYPE")
    environ.pop("HTTP_CONTENT_LENGTH", None)
    environ["CONTENT_LENGTH"] = str(len(body))
    return environ


def _call(wsgi: Wsgi, environ: dict[str, Any]) -> tuple[int, list[tuple[str, str]], bytes]:
    started: list[Any] = []

    def start_response(status: str, response_headers: list[tuple[str, str]], exc_info: Any = None) -> None:  # noqa: ARG001
        started[:] = [int(status[:3]), [(name.lower(), value) for name, value in response_headers]]

    chunks = wsgi(environ, start_response)
    try:
        body = b"".join(chunks)
    finally:
        close = getattr(chunks, "close", None)
        if close:
            close()
    return started[0], started[1], body
