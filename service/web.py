"""Flask glue: strict parsing, one place that encodes errors, request ids, request metrics, health."""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hmac import compare_digest
from typing import Any, TypeVar

import structlog
from flask import Flask, Response, g, request
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from pydantic import BaseModel, ValidationError
from werkzeug.exceptions import HTTPException, NotFound
from werkzeug.exceptions import MethodNotAllowed as WerkzeugMethodNotAllowed
from werkzeug.routing import Map, Rule
from werkzeug.routing.exceptions import RequestRedirect

from myqueue.protocol import http_headers
from myqueue.protocol.errors import (
    InternalError,
    InvalidRequest,
    MethodNotAllowed,
    MyQueueError,
    RouteNotFound,
    Unauthorized,
    UnsupportedMediaType,
)
from myqueue.protocol.routes import HEALTHZ, Route
from service.error_encoding import JSON
from service.error_encoding import describe as describe
from service.error_encoding import encode_error as encode_error
from service.hot import HotAnswer, HotRequest, HotRoutes
from service.logs import Log
from service.request_metrics import RequestMetrics

M = TypeVar("M", bound=BaseModel)
OPERATIONS = ("readyz", "metrics")


@dataclass(frozen=True, slots=True)
class Reply:
    body: Mapping[str, Any] | BaseModel | None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


class Readiness:
    """Named checks; each returns None when fine, else what is wrong."""

    def __init__(self, checks: Mapping[str, Callable[[], str | None]]) -> None:
        self._checks = checks

    def problems(self) -> dict[str, str]:
        return {name: problem for name, check in self._checks.items() if (problem := check()) is not None}

    @property
    def names(self) -> Iterable[str]:
        return self._checks.keys()


def parse_json(model: type[M]) -> M:
    content_type = request.content_type or ""
    if content_type.partition(";")[0].strip().lower() != JSON:
        raise UnsupportedMediaType()
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise UnsupportedMediaType("Content-Encoding is not supported; send the body as it is")
    if request.query_string:
        raise InvalidRequest("this call takes a JSON body, no query parameters")
    try:
        return model.model_validate_json(request.get_data())
    except ValidationError as error:
        raise InvalidRequest(describe(error)) from None


def parse_query(model: type[M]) -> M:
    values: dict[str, str] = {}
    for name, given in request.args.lists():
        if len(given) != 1:
            raise InvalidRequest(f"{name}: given more than once")
        values[name] = given[0]
    if request.content_length:
        raise InvalidRequest("this call takes query parameters, no body")
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise InvalidRequest(describe(error)) from None


class WebApp:
    """A Flask application of one listener. Routes answer with a Reply; every error leaves as our JSON."""

    def __init__(
        self,
        name: str,
        log: Log,
        *,
        readiness: Readiness,
        registry: CollectorRegistry,
        known_routes: Sequence[Route] = (),
        secret: str | None = None,
        gate: Callable[[], MyQueueError | None] = lambda: None,
    ) -> None:
        """`gate` may refuse everything but the operations' routes, such as while the process is still loading."""
        self.flask = Flask(name, static_folder=None)
        self.flask.url_map.strict_slashes = False
        self.flask.url_map.merge_slashes = False  # it would answer with a redirect, in HTML
        self._log = log
        self._name = name
        self._secret = secret
        self._gate = gate
        self._quiet = set(OPERATIONS)  # routes that would fill the log with the same line every second
        self._readiness = readiness
        self._registry = registry
        self._no_head = {route.name for route in known_routes if not route.head}
        self._known = Map(
            [
                Rule(_flask_path(route.path), methods=[route.method], endpoint=route.name)
                for route in dict.fromkeys((*known_routes, HEALTHZ))
            ],
            strict_slashes=False,
            merge_slashes=False,
        )
        self.metrics = RequestMetrics(registry)
        self.hot = HotRoutes(log, self.metrics, secret=secret, gate=gate)  # asked before Flask
        self.flask.before_request(self._before)
        self.flask.after_request(self._after)
        self.flask.register_error_handler(MyQueueError, self._on_error)
        self.flask.register_error_handler(HTTPException, self._on_http_exception)
        self.flask.register_error_handler(Exception, self._on_defect)
        self._operations()

    def route(self, route: Route, model: type[M], handler: Callable[..., Reply]) -> None:
        """A public route: the handler gets the parsed request, then the path's parameters by name."""

        def view(**path: str) -> Response:
            return self._encode(handler(parse(model), **path))

        parse = parse_json if route.method in ("POST", "PUT") else parse_query
        self._add(route.name, route.method, route.path, view)

    def internal(
        self, name: str, method: str, path: str, handler: Callable[..., Reply | Response], *, quiet: bool = False
    ) -> None:
        """An internal route: needs the cluster secret; the handler gets the path's parameters only."""
        if quiet:
            self._quiet.add(name)

        def view(**path_values: str) -> Response:
            given = request.headers.get(http_headers.SECRET, "")
            if self._secret is None or not compare_digest(given.encode(), self._secret.encode()):
                raise Unauthorized()
            answer = handler(**path_values)
            return answer if isinstance(answer, Response) else self._encode(answer)

        self._add(name, method, path, view)

    def page(self, name: str, path: str, handler: Callable[..., Response]) -> None:
        self._add(name, "GET", path, handler)

    def _add(self, name: str, method: str, path: str, view: Callable[..., Response]) -> None:
        self.flask.add_url_rule(_flask_path(path), f"{name}", view, methods=[method], provide_automatic_options=False)

    def _operations(self) -> None:
        async def healthz(_: HotRequest) -> HotAnswer:
            return HotAnswer.json({"status": "success", "service": self._name, "checks": {}})

        def readyz() -> Response:
            problems = self._readiness.problems()
            checks = {name: problems.get(name, "ok") for name in self._readiness.names}
            status = "failure" if problems else "success"
            body: dict[str, Any] = {"status": status, "service": self._name, "checks": checks}
            if problems:
                body |= {
                    "error_code": 50301,
                    "message": "; ".join(f"{name}: {what}" for name, what in problems.items()),
                    "retriable": True,
                    "request_id": g.request_id,
                }
            return self._encode(Reply(body, 503 if problems else 200, {"Retry-After": "1"} if problems else {}))

        def metrics() -> Response:
            return Response(generate_latest(self._registry), content_type=CONTENT_TYPE_LATEST)

        # Whether the process lives must not depend on how many requests wait for a thread.
        self.hot.add(HEALTHZ.name, HEALTHZ.method, HEALTHZ.path, healthz, head=True, always=True)
        self.page("readyz", "/readyz", readyz)
        self.page("metrics", "/metrics", metrics)

    def _before(self) -> None:
        g.started = time.perf_counter()
        g.request_id = request.headers.get(http_headers.REQUEST_ID)
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=g.request_id)
        refusal = None if request.endpoint in OPERATIONS else self._gate()
        if refusal is not None:
            raise refusal
        if request.method == "HEAD" and request.endpoint in self._no_head:
            # Flask answers HEAD by running the GET, whose effect nobody would get to see.
            raise MethodNotAllowed(details={"allow": ["GET"]})

    def _after(self, response: Response) -> Response:
        seconds = time.perf_counter() - g.started
        route = request.endpoint or "none"
        response.headers[http_headers.REQUEST_ID] = g.request_id or ""
        self.metrics.observe(route, request.method, response.status_code, seconds)
        if route not in self._quiet:
            self._log.info(
                "request",
                method=request.method,
                path=request.path,
                route=route,
                status=response.status_code,
                ms=round(seconds * 1000, 2),
            )
        return response

    def _encode(self, reply: Reply) -> Response:
        if reply.body is None:
            response = Response(status=reply.status)
            response.headers.remove("Content-Type")
        elif isinstance(reply.body, BaseModel):
            response = Response(reply.body.model_dump_json(), status=reply.status, content_type=JSON)
        else:
            response = Response(json.dumps(reply.body), status=reply.status, content_type=JSON)
        response.headers.extend(dict(reply.headers))
        return response

    def _on_error(self, error: MyQueueError) -> Response:
        if request.method in ("GET", "HEAD"):
            error.outcome = None  # nothing was to be written
        status, answer_headers, body = encode_error(error, g.request_id)
        if status >= 500:
            self._log.warning("failed", error=type(error).__name__, message=error.message, outcome=error.outcome)
        return Response(body, status=status, headers=answer_headers)

    def _on_http_exception(self, error: HTTPException) -> Response:
        if isinstance(error, NotFound | WerkzeugMethodNotAllowed):
            return self._on_error(self._not_here(error))
        return self._on_error(InvalidRequest(error.description or error.name))

    def _not_here(self, error: HTTPException) -> MyQueueError:
        """The path may belong to the other manager: then it exists, and the method is what is wrong."""
        allowed: set[str] = set()
        for routes in (self.flask.url_map, self._known):
            adapter = routes.bind("localhost")
            try:
                allowed |= set(adapter.allowed_methods(request.path))
                endpoint, _ = adapter.match(request.path, method="HEAD")
                if endpoint in self._no_head:
                    allowed.discard("HEAD")
            except (RequestRedirect, HTTPException):
                continue
        allowed -= {"OPTIONS"}
        if not allowed or (request.method in allowed and isinstance(error, NotFound)):
            return RouteNotFound()
        return MethodNotAllowed(
            f"{request.method} is not allowed here; allowed: {', '.join(sorted(allowed))}",
            details={"allow": sorted(allowed)},
        )

    def _on_defect(self, error: Exception) -> Response:
        self._log.exception("defect", path=request.path, exc_info=error)
        return self._on_error(InternalError())


def _flask_path(path: str) -> str:
    return path.replace("{", "<").replace("}", ">")
