"""Requests to one cluster: pooled connections, timeouts, safe retries, typed errors, the session token."""

import json
import random
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from myqueue.http_connection import HttpConnection, NoResponse, RawResponse, base_url
from myqueue.protocol import errors, http_headers
from myqueue.protocol.errors import InvalidRequest
from myqueue.protocol.routes import Route
from myqueue.protocol.token import Token

# For responses whose body does not say whether a retry can help, because another server sent them.
_RETRIABLE_STATUSES = frozenset({408, 421, 429, 502, 503, 504, 507})
# A shorter attempt would mostly turn "not written" into "unknown".
SHORTEST_ATTEMPT_S = 0.25


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential backoff with full jitter under one total deadline."""

    deadline_s: float = 30.0  # for one call, all attempts and pauses together
    first_pause_s: float = 0.05
    longest_pause_s: float = 2.0

    def pause_s(self, failures: int, retry_after_s: float | None, jitter: float) -> float:
        """How long to wait after this many failures. `jitter` is uniform in [0, 1).

        A server's Retry-After is the minimum; the jitter on top keeps clients from retrying all at once.
        """
        ceiling = min(self.longest_pause_s, self.first_pause_s * 2.0 ** min(failures - 1, 30))
        return max(0.0, retry_after_s or 0.0) + jitter * ceiling


DEFAULT_RETRY = RetryPolicy()


def is_retriable(status: int, body: object) -> bool:
    """By the body's field `retriable`, else by the status."""
    if isinstance(body, dict) and isinstance(body.get("retriable"), bool):
        return bool(body["retriable"])
    return status in _RETRIABLE_STATUSES


def retry_after_s(header: str | None) -> float | None:
    """Only the form in seconds: myqueue sends no other, and a date would need synchronous clocks."""
    if header is None or not header.isascii() or not header.isdecimal():
        return None
    return float(header[:9])


def _parsed(token: str) -> Token | None:
    """None for the unknown format of a newer server."""
    try:
        return Token.parse(token)
    except InvalidRequest:
        return None


def newest(known: str | None, token: str) -> str:
    """Responses to concurrent calls arrive in any order: the larger token wins; of unknown formats, the last one."""
    if known is None:
        return token
    known_position, position = _parsed(known), _parsed(token)
    if known_position is not None and position is not None and position < known_position:
        return known
    return token


class SessionToken:
    """Reads that carry the newest token see everything that this client has written."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._value: str | None = None

    @property
    def value(self) -> str | None:
        return self._value

    def learn(self, token: str | None) -> None:
        if token:
            with self._lock:
                self._value = newest(self._value, token)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """For one attempt. `read_s` is longer than the load balancer's timeout of a write, whose error says more."""

    connect_s: float = 2.0
    read_s: float = 15.0


DEFAULT_TIMEOUTS = Timeouts()


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    body: dict[str, Any]  # empty if the response has none


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    error: errors.MyQueueError
    retriable: bool


class RetriedCall:
    """Decides after each failed attempt of a call whether and when there is another one."""

    def __init__(
        self, policy: RetryPolicy, route: Route, *, repeatable: bool, deadline_s: float | None, wait_s: float
    ) -> None:
        self._policy = policy
        self._is_read = route.method == "GET"
        self._repeatable = repeatable
        self._deadline = time.monotonic() + wait_s + (policy.deadline_s if deadline_s is None else deadline_s)
        self._failures = 0
        self._maybe_written = False

    def left_s(self) -> float:
        """For the next attempt."""
        return max(SHORTEST_ATTEMPT_S, self._deadline - time.monotonic())

    def pause_s(self, failed: FailedAttempt) -> float:
        """How long to wait before the next attempt; raises the error if there is none."""
        self._failures += 1
        error = failed.error
        if self._is_read:
            error.outcome = None
        else:
            self._maybe_written = self._maybe_written or error.outcome != "not_written"
            if self._maybe_written:
                error.outcome = "unknown"
        pause_s = self._policy.pause_s(self._failures, error.retry_after_s, random.random())  # noqa: S311
        if not failed.retriable or (self._maybe_written and not self._repeatable):
            raise error
        if time.monotonic() + pause_s + SHORTEST_ATTEMPT_S >= self._deadline:
            raise error
        return pause_s


class Transport:
    """May be shared by threads.

    A connection may not be shared, so each call borrows one from a stack of idle ones: there are never more than
    concurrent calls, and threads that end leave none behind.
    """

    def __init__(
        self, address: str, *, timeouts: Timeouts = DEFAULT_TIMEOUTS, retry: RetryPolicy = DEFAULT_RETRY
    ) -> None:
        self.url = base_url(address)
        self.retry = retry
        self.timeouts = timeouts
        self._idle: deque[HttpConnection] = deque()
        self._closed = threading.Event()
        self.token = SessionToken()

    def call(
        self,
        route: Route,
        *,
        path: Mapping[str, str | int] | None = None,
        query: Mapping[str, str | int] | None = None,
        body: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
        repeatable: bool = True,
        wait_s: float = 0.0,
        deadline_s: float | None = None,
    ) -> Response:
        """The response of a successful call; raises the error of a failed one.

        A call that is not `repeatable` is tried again only when nothing can have been written. `wait_s` is how long
        the server was asked to wait. A write's error says `unknown` if any of the attempts may have been carried out.
        """
        retried = RetriedCall(self.retry, route, repeatable=repeatable, deadline_s=deadline_s, wait_s=wait_s)
        while True:
            result = self._attempt(route, path, query, body, idempotency_key, wait_s, retried.left_s())
            if isinstance(result, Response):
                return result
            if self._closed.wait(retried.pause_s(result)):
                raise result.error

    def probe(
        self,
        route: Route,
        *,
        path: Mapping[str, str | int] | None = None,
        query: Mapping[str, str | int] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Response:
        """One attempt, whatever its status; raises only when there is no response, or none of myqueue."""
        result = self._attempt(route, path, query, body, None, 0.0, self.timeouts.read_s, any_status=True)
        if isinstance(result, FailedAttempt):
            raise result.error
        return result

    def call_once(
        self,
        connection: HttpConnection,
        route: Route,
        *,
        path: Mapping[str, str | int] | None = None,
        body: Mapping[str, Any] | None = None,
        read_s: float,
    ) -> Response:
        """One attempt, over a connection of the caller's own that another thread may cancel; raises its error.

        `read_s` counts alone: the server may have been asked to wait.
        """
        result = self._attempt(route, path, None, body, None, read_s, read_s, connection=connection)
        if isinstance(result, FailedAttempt):
            raise result.error
        return result

    def close(self) -> None:
        """Ends pauses between attempts. A call in flight still gets its response."""
        self._closed.set()
        self._close_idle()

    def _attempt(
        self,
        route: Route,
        path: Mapping[str, str | int] | None,
        query: Mapping[str, str | int] | None,
        body: Mapping[str, Any] | None,
        idempotency_key: str | None,
        wait_s: float,
        left_s: float,
        *,
        any_status: bool = False,
        connection: HttpConnection | None = None,
    ) -> Response | FailedAttempt:
        target, sent, data = encode_call(route, path, query, body, idempotency_key, self.token.value)
        used = connection or self._borrow()
        try:
            raw = used.exchange(
                route.method,
                target,
                sent,
                data,
                connect_s=min(self.timeouts.connect_s, left_s),
                read_s=min(self.timeouts.read_s + wait_s, left_s),
            )
        except NoResponse as error:
            return FailedAttempt(error, retriable=not error.permanent)
        finally:
            if connection is None:
                self._give_back(used)
        self.token.learn(raw.headers.get(http_headers.TOKEN))
        return decode_response(raw, any_status=any_status)

    def _borrow(self) -> HttpConnection:
        try:
            return self._idle.pop()
        except IndexError:
            return HttpConnection(self.url)

    def _give_back(self, connection: HttpConnection) -> None:
        self._idle.append(connection)
        if self._closed.is_set():
            self._close_idle()

    def _close_idle(self) -> None:
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:
                return
            connection.close()


def encode_call(
    route: Route,
    path: Mapping[str, str | int] | None,
    query: Mapping[str, str | int] | None,
    body: Mapping[str, Any] | None,
    idempotency_key: str | None,
    token: str | None,
) -> tuple[str, dict[str, str], bytes | None]:
    """The target, the headers and the body of a request."""
    target = route.path.format(**{name: quote(str(value), safe="") for name, value in (path or {}).items()})
    if query:
        target += "?" + urlencode(query)
    sent: dict[str, str] = {}
    if idempotency_key is not None:
        sent[http_headers.IDEMPOTENCY_KEY] = idempotency_key
    if route.tier == "read" and token is not None:
        sent[http_headers.TOKEN] = token
    if body is None:
        return target, sent, None
    sent["Content-Type"] = "application/json"
    return target, sent, json.dumps(body, ensure_ascii=False).encode()


def decode_response(raw: RawResponse, *, any_status: bool = False) -> Response | FailedAttempt:
    body = {} if raw.status == 204 else json_of(raw)
    if isinstance(body, dict) and (any_status or raw.status in (200, 201, 204)):
        return Response(raw.status, body)
    if raw.status < 400:
        strange = errors.MyQueueError(f"HTTP {raw.status} that is no answer of myqueue", outcome="unknown")
        return FailedAttempt(strange, retriable=False)
    return FailedAttempt(error_of(raw, body), is_retriable(raw.status, body))


def json_of(raw: RawResponse) -> object:
    """None if the body is not JSON."""
    try:
        body: object = json.loads(bytes(raw.body))
    except ValueError:
        return None
    return body


def error_of(raw: RawResponse, body: object) -> errors.MyQueueError:
    error = errors.from_body(body, raw.status, retry_after_s(raw.headers.get("Retry-After")))
    if error.request_id is None:
        error.request_id = raw.headers.get(http_headers.REQUEST_ID)
    return error
