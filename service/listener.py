"""An HTTP listener: Granian's embedded server on the process's event loop, in front of a router.

No other file depends on Granian. One process has one loop and any number of listeners. Bodies are capped while
they stream in, and a request that finds too many others in flight is refused at once instead of queueing without end.
"""

import asyncio
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.server.embed import Server

from myqueue.protocol import http_headers
from myqueue.protocol.errors import MyQueueError, Overloaded, TooLarge
from service.body_budget import BodyBudget, HeldBody
from service.http_messages import HttpRequest, HttpResponse
from service.router import RouteMatch, Router

_REQUEST_ID = http_headers.REQUEST_ID.lower()
_WITHOUT_BODY = frozenset({"GET", "HEAD"})
_CLOSE_CONNECTION = ("connection", "close")  # what is left of an unread body must not be taken for the next request


class RsgiApp:
    """Backpressure in front of a router: bounds the requests in flight and the bytes of their bodies."""

    def __init__(
        self,
        router: Router,
        *,
        max_body_bytes: int,
        bodies: BodyBudget,
        leave_body_bytes: int = 0,
        max_on_loop: int = 4096,
        max_on_threads: int = 1,
    ) -> None:
        """`max_on_loop` and `max_on_threads` bound requests in flight; those on threads include the ones that wait for
        a thread. `bodies` is the budget of the process, of which this listener leaves `leave_body_bytes` to others."""
        self.router = router
        self._max_body_bytes = max_body_bytes
        self._bodies = bodies
        self._leave_body_bytes = leave_body_bytes
        self._max_in_flight = {False: max_on_loop, True: max_on_threads}  # by whether it runs on a thread
        self._in_flight = {False: 0, True: 0}
        self._unanswered = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def __call__(self, scope: Any, protocol: Any) -> None:
        if scope.proto != "http":
            protocol.close(404)
            return
        started_s = time.perf_counter()
        self._unanswered += 1
        self._idle.clear()
        try:
            match = self.router.find(scope.method, scope.path)
            request = _request(scope, protocol, match)
            if match is None:
                response = await self._refused(scope, protocol, self.router.respond_unmatched(request))
            else:
                response = await self._respond(match, request, scope, protocol)
            protocol.response_bytes(response.status, response.headers, response.body)
            if response.on_sent is not None:
                response.on_sent()
            self.router.observe(match, request, response.status, time.perf_counter() - started_s)
        finally:
            self._unanswered -= 1
            if self._unanswered == 0:
                self._idle.set()

    async def _respond(self, match: RouteMatch, request: HttpRequest, scope: Any, protocol: Any) -> HttpResponse:
        route = match.route
        held = HeldBody(self._bodies, self._leave_body_bytes)
        self._in_flight[route.on_thread] += 1
        try:
            self._check_size(_declared_bytes(scope))
            if route.limited and self._in_flight[route.on_thread] > self._max_in_flight[route.on_thread]:
                raise Overloaded(retry_after_s=1)
            request.body = await self._take_body(scope, protocol, held)
        except MyQueueError as error:
            refusal = self.router.refuse(request, error)
        else:
            return await self.router.respond(match, request)
        finally:
            self._in_flight[route.on_thread] -= 1
            held.release()
        return await self._refused(scope, protocol, refusal)

    async def _take_body(self, scope: Any, protocol: Any, held: HeldBody) -> bytes:
        """Not a byte is read before its memory is reserved. An unknown size counts as the largest."""
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

    async def _refused(self, scope: Any, protocol: Any, response: HttpResponse) -> HttpResponse:
        if not await self._drain_body(scope, protocol):
            response.headers.append(_CLOSE_CONNECTION)
        return response

    async def _drain_body(self, scope: Any, protocol: Any) -> bool:
        """Read and discard the body of a refused request: a client that is still sending when the connection closes
        may get a reset instead of the response. False when the body is too large or its size unknown."""
        declared = scope.headers.get("content-length")
        if declared is None:
            return not scope.headers.get("transfer-encoding")  # neither header: there is no body
        if not declared.isdecimal() or int(declared) > 2 * self._max_body_bytes:
            return False
        async for _ in protocol:
            pass
        return True

    def _check_size(self, size: int) -> None:
        if size > self._max_body_bytes:
            raise TooLarge(f"request body is larger than {self._max_body_bytes} bytes")

    async def drain(self, timeout_s: float) -> bool:
        """True when every request in flight was answered in time."""
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    def stop(self) -> None:
        """Handlers that wait answer now."""
        self.router.stop()

    def close(self) -> None:
        self.router.close()


async def _nothing() -> None:
    pass


class Listener:
    def __init__(
        self, app: RsgiApp, host: str, port: int, before_stop: Callable[[], Awaitable[None]] = _nothing
    ) -> None:
        """Requests are accepted until `before_stop` has ended: it moves the load to other processes."""
        self._app = app
        self._before_stop = before_stop
        self._address = (host, port)
        self._server = Server(
            app,
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

    @property
    def router(self) -> Router:
        return self._app.router

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
        await self._before_stop()
        if self._task is None:
            return True
        self._server.stop()  # type: ignore[no-untyped-call]
        self._app.stop()
        drained = await self._app.drain(timeout_s)
        await asyncio.wait([self._task], timeout=timeout_s)
        self._app.close()
        return drained


def _request(scope: Any, protocol: Any, match: RouteMatch | None) -> HttpRequest:
    return HttpRequest(
        scope.method,
        scope.path,
        {} if match is None else match.path_values,
        scope.query_string,
        scope.headers,
        b"",
        scope.headers.get(_REQUEST_ID),
        protocol.client_disconnect,
    )


def _declared_bytes(scope: Any) -> int:
    declared = scope.headers.get("content-length")
    return int(declared) if declared is not None and declared.isdecimal() else 0
