"""HTTP requests and responses as handlers see them, on the event loop and on threads, with strict parsing."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import to_json

from myqueue.protocol import http_headers
from myqueue.protocol.errors import InvalidRequest, MyQueueError, UnsupportedMediaType
from myqueue.protocol.limits import MAX_IDEMPOTENCY_KEY_CHARS, topic_name_problem
from myqueue.protocol.models import MAX_ID
from myqueue.protocol.token import Token
from service.error_encoding import JSON, describe
from service.response_stream import ChunkSource

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")
Headers = list[tuple[str, str]]  # names in lower case
Body = bytes | list[bytes | memoryview]  # parts of a list are sent one behind the other, without a copy

_MAX_QUERY_FIELDS = 32
_MAX_ID_DIGITS = 19


class RequestHeaders(Protocol):
    """Looked up by names in lower case."""

    def get(self, name: str, /) -> str | None: ...

    def items(self) -> Iterable[tuple[str, str]]: ...


async def _never() -> None:
    await asyncio.Event().wait()


@dataclass(slots=True)
class HttpRequest:
    method: str
    path: str
    path_values: Mapping[str, str]
    query_string: str
    headers: RequestHeaders
    body: bytes
    request_id: str | None
    client_disconnected: Callable[[], Awaitable[None]] = _never  # returns when the client has closed the connection

    def header(self, name: str) -> str | None:
        return self.headers.get(name.lower())

    @property
    def content_type(self) -> str:
        """Without its parameters."""
        return (self.headers.get("content-type") or "").partition(";")[0].strip().lower()

    def accepts(self, kind: str) -> bool:
        """Whether the Accept header names this type; `*/*` names none."""
        return kind in [part.partition(";")[0].strip().lower() for part in (self.header("accept") or "").split(",")]

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
        self.check_body_only("a JSON body")
        try:
            return model.model_validate_json(self.body)
        except ValidationError as error:
            raise InvalidRequest(describe(error)) from None

    def parse_internal(self, adapter: TypeAdapter[T]) -> T:
        """The JSON body of a call between processes of the cluster."""
        try:
            return adapter.validate_json(self.body)
        except ValidationError as error:
            raise InvalidRequest(describe(error)) from None

    def check_body_only(self, what: str) -> None:
        if (self.headers.get("content-encoding") or "identity").lower() != "identity":
            raise UnsupportedMediaType("Content-Encoding is not supported; send the body as it is")
        if self.query_string:
            raise InvalidRequest(f"this call takes {what}, no query parameters")

    def path_id(self, name: str, not_found: type[MyQueueError]) -> int:
        """A number in the path. One that is too large to be an id raises `not_found`."""
        text = self.path_values[name]
        if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_ID_DIGITS):
            raise InvalidRequest(f"{name}: must be a number")
        number = int(text)
        if number > MAX_ID:
            raise not_found()
        return number

    def path_topic(self) -> str:
        topic = self.path_values["topic"]
        problem = topic_name_problem(topic)
        if problem is not None:
            raise InvalidRequest(f"topic: {problem}")
        return topic

    def idempotency_key(self) -> str | None:
        key = self.header(http_headers.IDEMPOTENCY_KEY)
        if key is None:
            return None
        if not 1 <= len(key) <= MAX_IDEMPOTENCY_KEY_CHARS or not key.isascii() or not key.isprintable():
            raise InvalidRequest(
                f"{http_headers.IDEMPOTENCY_KEY}: must be 1 to {MAX_IDEMPOTENCY_KEY_CHARS} printable ASCII characters"
            )
        return key

    def session_token(self) -> Token | None:
        text = self.header(http_headers.TOKEN)
        return None if text is None else Token.parse(text)


@dataclass(slots=True)
class HttpResponse:
    status: int
    headers: Headers
    body: Body
    on_sent: Callable[[], None] | None = None  # called after the response, on the event loop
    stream: ChunkSource | None = None  # instead of the body; ended early when the listener stops

    def joined_body(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else b"".join(self.body)

    @staticmethod
    def json(
        body: Mapping[str, Any] | BaseModel,
        status: int = 200,
        headers: Headers | None = None,
        *,
        session_token: Token | str | None = None,
    ) -> "HttpResponse":
        data = body.model_dump_json().encode() if isinstance(body, BaseModel) else to_json(body)
        response = HttpResponse(status, [("content-type", JSON), *(headers or ())], data)
        if session_token is not None:
            response.headers.append((http_headers.TOKEN.lower(), str(session_token)))
        return response

    @staticmethod
    def empty(headers: Headers | None = None) -> "HttpResponse":
        return HttpResponse(204, headers or [], b"")


LoopHandler = Callable[[HttpRequest], Awaitable[HttpResponse]]  # runs on the event loop and must not block
ThreadHandler = Callable[[HttpRequest], HttpResponse]  # runs on a thread
