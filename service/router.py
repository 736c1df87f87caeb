"""The routes of one listener: each is added once, and `async def` or `def` says where its handler runs.

A coroutine runs on the event loop and must not block; a plain function runs in Flask, on a thread. Gate, cluster
secret, HEAD, errors, request ids, metrics and log lines are the same for both.
"""

import asyncio
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hmac import compare_digest
from typing import NamedTuple, cast

from myqueue.protocol import http_headers
from myqueue.protocol.errors import InternalError, MethodNotAllowed, MyQueueError, RouteNotFound, Unauthorized
from myqueue.protocol.internal import InternalRoute
from myqueue.protocol.routes import Route
from service.cross_origin import check_origin
from service.error_encoding import encode_error, forget_frames
from service.flask_app import FlaskApp
from service.http_messages import Headers, HttpRequest, HttpResponse, LoopHandler, ThreadHandler
from service.logs import Log
from service.request_observer import UNMATCHED, RequestObserver

_REQUEST_ID = http_headers.REQUEST_ID.lower()
_SECRET = http_headers.SECRET.lower()

UpgradeFactory = Callable[[HttpRequest], asyncio.Protocol]


@dataclass(frozen=True, slots=True)
class RegisteredRoute:
    name: str
    handler: LoopHandler
    on_thread: bool
    internal: bool  # needs the cluster secret
    quiet: bool  # not logged: it would fill the log with the same line every second
    gated: bool  # refused while the gate is closed
    limited: bool  # refused while too many requests are in flight
    changing: bool  # refused when a page of another origin sends it
    upgrade: UpgradeFactory | None = None  # instead of the handler


class RouteMatch(NamedTuple):
    route: RegisteredRoute
    path_values: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Path:
    pattern: re.Pattern[str]
    routes: dict[str, RegisteredRoute]  # by method


class Router:
    def __init__(
        self,
        log: Log,
        observer: RequestObserver,
        *,
        flask_app: FlaskApp | None = None,
        secret: str | None = None,
        gate: Callable[[], MyQueueError | None] = lambda: None,
        known_routes: Sequence[Route] = (),
        more_headers: Callable[[], Headers] | None = None,
    ) -> None:
        """`gate` may refuse every request, such as while the process is still loading. `known_routes` are answered
        here or by another process behind the same load balancer: a wrong method there is 405, not 404. `more_headers`
        are of every answer, errors too, as of when it is made."""
        self._log = log
        self._observer = observer
        self._flask_app = flask_app
        self._secret = None if secret is None else secret.encode()
        self._gate = gate
        self._more_headers = more_headers
        self._known = [(_pattern(route.path), _methods(route)) for route in known_routes]
        self._fixed: dict[str, _Path] = {}  # paths without parameters, also with a slash at the end
        self._patterns: dict[str, _Path] = {}
        self._on_stop: list[Callable[[], None]] = []
        self.routes: list[Route | InternalRoute] = []

    def add(
        self,
        route: Route | InternalRoute,
        handler: LoopHandler | ThreadHandler,
        *,
        quiet: bool = False,
        gated: bool = True,
        limited: bool = True,
    ) -> None:
        if inspect.iscoroutinefunction(handler):
            run: LoopHandler = handler
            on_thread = False
        else:
            if self._flask_app is None:
                raise ValueError(f"{route.name}: this router has no Flask application to run it")
            self._flask_app.add(route.name, route.method, route.path, cast(ThreadHandler, handler))
            run = self._flask_app.respond
            on_thread = True
        internal = isinstance(route, InternalRoute)
        # A GET that takes an Idempotency-Key moves a cursor.
        changing = isinstance(route, Route) and (route.method != "GET" or route.keyed)
        self._register(route, RegisteredRoute(route.name, run, on_thread, internal, quiet, gated, limited, changing))

    def add_upgrade(self, route: InternalRoute, factory: UpgradeFactory) -> None:
        """A request with `Upgrade` and without a body: `factory` makes the protocol that takes over the connection, or
        raises a refusal. If it has a method `close()`, that is called when the listener stops; without one the
        connection is closed."""
        self._register(route, RegisteredRoute(route.name, _upgrade, False, True, False, True, True, False, factory))

    def _register(self, route: Route | InternalRoute, registered: RegisteredRoute) -> None:
        path = self._path(route.path)
        for method in _methods(route):
            if method in path.routes:
                raise ValueError(f"{method} {route.path} is added twice")
            path.routes[method] = registered
        self.routes.append(route)

    def _path(self, path: str) -> _Path:
        if "{" in path:
            return self._patterns.setdefault(path, _Path(_pattern(path), {}))
        return self._fixed.setdefault(path, self._fixed.setdefault(path + "/", _Path(_pattern(path), {})))

    def find(self, method: str, path: str) -> RouteMatch | None:
        fixed = self._fixed.get(path)
        if fixed is not None and (route := fixed.routes.get(method)) is not None:
            return RouteMatch(route, {})
        for known in self._patterns.values():
            matched = known.pattern.match(path)
            if matched is not None and (route := known.routes.get(method)) is not None:
                return RouteMatch(route, matched.groupdict())
        return None

    async def respond(self, match: RouteMatch, request: HttpRequest) -> HttpResponse:
        refusal = self.refusal(match.route, request)
        if refusal is not None:
            return self.refuse(request, refusal)
        try:
            response = await match.route.handler(request)
        except Exception as error:  # noqa: BLE001 every request gets a response
            response = self.refuse(request, error)
            forget_frames(error)
            return response
        response.headers.append((_REQUEST_ID, request.request_id or ""))
        if self._more_headers is not None:
            response.headers += self._more_headers()
        return response

    def respond_unmatched(self, request: HttpRequest) -> HttpResponse:
        return self.refuse(request, self._gate() or self._unmatched(request.method, request.path))

    def refuse(self, request: HttpRequest, error: Exception) -> HttpResponse:
        if not isinstance(error, MyQueueError):
            self._log.exception("defect", path=request.path, exc_info=error)
            error = InternalError()
        if request.method in ("GET", "HEAD"):
            error.outcome = None  # nothing was to be written
        status, headers, body = encode_error(error, request.request_id)
        if status >= 500:
            self._observer.log_failure(error)
        if self._more_headers is not None:
            headers += self._more_headers()
        return HttpResponse(status, headers, body)

    def observe(self, match: RouteMatch | None, request: HttpRequest, status: int, seconds: float) -> None:
        """Called after the response was sent, so that no client waits for it."""
        name = UNMATCHED if match is None else match.route.name
        self._observer.count(name, request.method, status, seconds)
        if match is None or not match.route.quiet:
            self._observer.log(name, request.method, request.path, status, seconds)

    def on_stop(self, wake: Callable[[], None]) -> None:
        """`wake` is called when the listener stops: handlers that wait have to answer then."""
        self._on_stop.append(wake)

    def stop(self) -> None:
        for wake in self._on_stop:
            wake()
        self._on_stop = []

    def close(self) -> None:
        if self._flask_app is not None:
            self._flask_app.close()

    def refusal(self, route: RegisteredRoute, request: HttpRequest) -> MyQueueError | None:
        if route.gated and (closed := self._gate()) is not None:
            return closed
        if route.internal:
            given = (request.headers.get(_SECRET) or "").encode()
            if self._secret is None or not compare_digest(given, self._secret):
                return Unauthorized()
        return check_origin(request.headers) if route.changing else None

    def _unmatched(self, method: str, path: str) -> MyQueueError:
        here = {
            name
            for known in (*self._fixed.values(), *self._patterns.values())
            if known.pattern.match(path)
            for name in known.routes
        }
        allowed = sorted(here.union(*(methods for pattern, methods in self._known if pattern.match(path))))
        if not allowed or (not here and method in allowed):  # the latter is answered by another process only
            return RouteNotFound()
        return MethodNotAllowed(
            f"{method} is not allowed here; allowed: {', '.join(allowed)}", details={"allow": allowed}
        )


async def _upgrade(_request: HttpRequest) -> HttpResponse:
    raise AssertionError("an upgraded connection has no handler")


def _pattern(path: str) -> re.Pattern[str]:
    """A slash at the end is accepted, as by Flask's rules."""
    return re.compile(re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/]+)", re.escape(path)) + r"/?\Z")


def _methods(route: Route | InternalRoute) -> tuple[str, ...]:
    is_readable = isinstance(route, Route) and route.method == "GET" and route.head
    return ("GET", "HEAD") if is_readable else (route.method,)
