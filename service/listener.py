"""An HTTP listener: Granian's embedded server on the process's event loop, Flask on a bounded pool of threads.

One process, one loop, as many listeners as wanted. Bodies are capped while they stream in, and a request that finds
too many others waiting is refused at once instead of queueing without end.
"""

import asyncio
import io
import socket
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.server.embed import Server

from myqueue.protocol import headers
from myqueue.protocol.errors import MyQueueError, Overloaded, TooLarge

Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class ErrorEncoder(Protocol):
    def __call__(self, error: MyQueueError, request_id: str | None) -> tuple[int, list[tuple[str, str]], bytes]: ...


class FlaskBridge:
    """RSGI on the outside, WSGI on the inside."""

    def __init__(
        self, wsgi: Wsgi, encode_error: ErrorEncoder, *, threads: int, max_waiting: int, max_body_bytes: int
    ) -> None:
        self._wsgi = wsgi
        self._encode_error = encode_error
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="http")
        self._limit = threads + max_waiting
        self._max_body_bytes = max_body_bytes
        self._in_hand = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def __call__(self, scope: Any, protocol: Any) -> None:
        if scope.proto != "http":
            protocol.close(404)
            return
        self._in_hand += 1
        self._idle.clear()
        try:
            await self._answer(scope, protocol)
        finally:
            self._in_hand -= 1
            if self._in_hand == 0:
                self._idle.set()

    async def _answer(self, scope: Any, protocol: Any) -> None:
        try:
            if self._in_hand > self._limit:
                raise Overloaded(retry_after_s=1)
            body = await self._read_body(scope, protocol)
        except MyQueueError as error:
            protocol.response_bytes(*self._encode_error(error, scope.headers.get(headers.REQUEST_ID.lower())))
            return
        environ = self._environ(scope, body)
        loop = asyncio.get_running_loop()
        status, answer_headers, answer = await loop.run_in_executor(self._pool, self._call, environ)
        protocol.response_bytes(status, answer_headers, answer)

    async def _read_body(self, scope: Any, protocol: Any) -> bytes:
        declared = scope.headers.get("content-length")
        if declared is not None and declared.isdecimal() and int(declared) > self._max_body_bytes:
            raise TooLarge(f"request body is larger than {self._max_body_bytes} bytes")
        if declared is not None:
            body: bytes = await protocol()
            return body
        chunks, size = [], 0
        async for chunk in protocol:
            size += len(chunk)
            if size > self._max_body_bytes:
                raise TooLarge(f"request body is larger than {self._max_body_bytes} bytes")
            chunks.append(chunk)
        return b"".join(chunks)

    def _environ(self, scope: Any, body: bytes) -> dict[str, Any]:
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

    def _call(self, environ: dict[str, Any]) -> tuple[int, list[tuple[str, str]], bytes]:
        started: list[Any] = []

        def start_response(status: str, response_headers: list[tuple[str, str]], exc_info: Any = None) -> None:  # noqa: ARG001
            started[:] = [int(status[:3]), [(name.lower(), value) for name, value in response_headers]]

        chunks = self._wsgi(environ, start_response)
        try:
            body = b"".join(chunks)
        finally:
            close = getattr(chunks, "close", None)
            if close:
                close()
        return started[0], started[1], body

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

    def __init__(self, bridge: FlaskBridge, host: str, port: int) -> None:
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
        drained = await self._bridge.drain(timeout_s)
        await asyncio.wait([self._task], timeout=timeout_s)
        self._bridge.close()
        return drained
