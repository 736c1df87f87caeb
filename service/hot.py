"""Routes that are answered on the event loop, beside Flask: those that come often, and those that wait.

A handler is a coroutine that must not block. Errors, request ids, request metrics and limits are the same as for
Flask's routes; what is left out is everything that costs time for each request.
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from hmac import compare_digest
from typing import Any, Protocol, TypeVar
from urllib.parse import parse_qsl

import structlog
from pydantic import BaseModel, ValidationError

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
from service.error_encoding import JSON, describe, encode_error
from service.logs import Log
from service.request_log import RequestLog
from service.request_metrics import RequestMetrics

M = TypeVar("M", bound=BaseModel)
Headers = list[tuple[str, str]]

_MAX_QUERY_FIELDS = 32


class GivenHeaders(Protocol):
    """Names are in lower case."""

    def get(self, name: str, /) -> str | None: ...


async def _stays() -> None:
    await asyncio.Event().wait()


@dataclass(slots=True)
class HotRequest:
    method: str
    path: str
    path_values: Mapping[str, str]
    query_string: str
    headers: GivenHeaders
    body: bytes
    request_id: str | None
    gone: Callable[[], Awaitable[None]] = _stays  # ends when the client has hung up

    def header(self, name: str) -> str | None:
        return self.headers.get(name.lower())

    @property
    def content_type(self) -> str:
        """Without its parameters."""
        return (self.headers.get("content-type") or "").partition(";")[0].strip().lower()

    def query(self) -> dict[str, str]:
        if self.body:
            raise InvalidRequest("this call takes query parameters, no body")
        if not self.query_string:
            return {}
        values: dict[str, str] = {}
        try:
            pairs = parse_qsl(self.query_string, keep_blank_values=True, max_num_fields=_MAX_QUERY_FIELDS)
        except ValueError as error:
            raise InvalidRequest("too many query parameters") from error
        for name, value in pairs:
            if name in values:
                raise InvalidRequest(f"{name}: given more than once")
            values[name] = value
        return values

    def parse_query(self, model: type[M]) -> M:
        try:
            return model.model_validate(self.query())
        except ValidationError as error:
            raise InvalidRequest(describe(error)) from None

    def parse_json(self, model: type[M]) -> M:
        if self.content_type != JSON:
            raise UnsupportedMediaType()
        if (self.headers.get("content-encoding") or "identity").lower() != "identity":
            raise UnsupportedMediaType("Content-Encoding is not supported; send the body as it is")
        if self.query_string:
            raise InvalidRequest("this call takes a JSON body, no query parameters")
        try:
            return model.model_validate_json(self.body)
        except ValidationError as error:
            raise InvalidRequest(describe(error)) from None


@dataclass(slots=True)
class HotAnswer:
    status: int
    headers: Headers  # names in lower case
    body: bytes
    on_sent: Callable[[], None] | None = None  # called when the answer has left this process

    @staticmethod
    def json(body: Mapping[str, Any] | BaseModel, status: int = 200, more: Headers | None = None) -> "HotAnswer":
        text = body.model_dump_json() if isinstance(body, BaseModel) else json.dumps(body)
        return HotAnswer(status, [("content-type", JSON), *(more or ())], text.encode())

    @staticmethod
    def empty(more: Headers | None = None) -> "HotAnswer":
        return HotAnswer(204, more or [], b"")


Handler = Callable[[HotRequest], Awaitable[HotAnswer]]


@dataclass(frozen=True, slots=True)
class Found:
    """A route that takes this request."""

    name: str
    handler: Handler
    path_values: Mapping[str, str]
    inside: bool  # only with the cluster secret
    head: bool  # HEAD, answered by the handler of GET
    always: bool  # past the gate and the limit of open requests


@dataclass(frozen=True, slots=True)
class _Path:
    pattern: re.Pattern[str]
    methods: dict[str, tuple[str, Handler, bool, bool]]  # name, handler, inside, always


class HotRoutes:
    def __init__(
        self,
        log: Log,
        metrics: RequestMetrics,
        *,
        secret: str | None = None,
        gate: Callable[[], MyQueueError | None] = lambda: None,
    ) -> None:
        """`gate` may refuse everything, such as while the process is still loading."""
        self._log = log
        self._metrics = metrics
        self._requests = RequestLog(log)
        self._secret = None if secret is None else secret.encode()
        self._gate = gate
        self._paths: dict[str, _Path] = {}
        self._on_stop: list[Callable[[], None]] = []
        self.quiet: set[str] = set()  # routes that would fill the log with the same line every second
        self.stopping = False

    def add(
        self,
        name: str,
        method: str,
        path: str,
        handler: Handler,
        *,
        inside: bool = False,
        head: bool = False,
        always: bool = False,
    ) -> None:
        """`inside`: needs the cluster secret; `head`: HEAD is answered as GET is, without the body; `always`: neither
        the gate nor the limit of open requests refuses it, and the log does not tell of it."""
        known = self._paths.get(path)
        if known is None:
            pattern = re.compile(re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/]+)", re.escape(path)) + r"/?\Z")  # as Flask does
            known = self._paths[path] = _Path(pattern, {})
        known.methods[method] = (name, handler, inside, always)
        if head:
            known.methods["HEAD"] = (name, handler, inside, always)

    def on_stop(self, wake: Callable[[], None]) -> None:
        """Called when the listener stops: whoever waits is to answer now."""
        self._on_stop.append(wake)

    def stop(self) -> None:
        if not self.stopping:
            self.stopping = True
            for wake in self._on_stop:
                wake()

    def find(self, method: str, path: str) -> Found | None:
        for known in self._paths.values():
            matched = known.pattern.match(path)
            if matched is None:
                continue
            entry = known.methods.get(method)
            if entry is not None:
                return Found(entry[0], entry[1], matched.groupdict(), entry[2], method == "HEAD", entry[3])
        return None

    def refusal(self, method: str, path: str) -> MyQueueError:
        """For a listener with no other routes than these."""
        allowed = sorted(
            {name for known in self._paths.values() if known.pattern.match(path) for name in known.methods}
        )
        if not allowed:
            return RouteNotFound()
        return MethodNotAllowed(
            f"{method} is not allowed here; allowed: {', '.join(allowed)}", details={"allow": allowed}
        )

    async def answer(self, found: Found, request: HotRequest) -> HotAnswer:
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=request.request_id)
        try:
            return await self._handled(found, request)
        except MyQueueError as error:
            return self.failed(request, error)
        except Exception as error:  # noqa: BLE001 whatever it is, the client gets an answer
            self._log.exception("defect", path=request.path, exc_info=error)
            return self.failed(request, InternalError())

    def answered(self, found: Found, request: HotRequest, status: int, seconds: float) -> None:
        """Counted and told when the answer is on its way: nobody waits for that."""
        self._metrics.observe(found.name, request.method, status, seconds)
        if not found.always and found.name not in self.quiet:
            self._requests.tell(found.name, request.method, request.path, status, seconds)

    async def _handled(self, found: Found, request: HotRequest) -> HotAnswer:
        refusal = None if found.always else self._gate()
        if refusal is not None:
            raise refusal
        if found.inside:
            given = (request.headers.get(http_headers.SECRET.lower()) or "").encode()
            if self._secret is None or not compare_digest(given, self._secret):
                raise Unauthorized()
        answer = await found.handler(request)
        answer.headers.append((http_headers.REQUEST_ID.lower(), request.request_id or ""))
        if found.head and answer.body:
            answer.headers.append(("content-length", str(len(answer.body))))
            answer.body = b""
        return answer

    def failed(self, request: HotRequest, error: MyQueueError) -> HotAnswer:
        if request.method in ("GET", "HEAD"):
            error.outcome = None  # nothing was to be written
        status, answer_headers, body = encode_error(error, request.request_id)
        if status >= 500:
            self._log.warning("failed", error=type(error).__name__, message=error.message, outcome=error.outcome)
        return HotAnswer(status, answer_headers, b"" if request.method == "HEAD" else body)
