"""Requests to one cluster: pooled connections, timeouts, safe retries, typed errors, the session token."""

import json
import random
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from myqueue.cluster_url import base_url
from myqueue.connecting import foreign_server
from myqueue.connection_pool import POOLS, ConnectionPool
from myqueue.error_subjects import KnownConsumer, close_match, name_subject, subject_of, topic_of
from myqueue.http_connection import NoResponse, NotHttpServer, RawResponse
from myqueue.process_shared import process_id
from myqueue.protocol import errors, http_headers, routes
from myqueue.protocol.errors import InvalidRequest, NotMyQueue, PartitionNotFound, TopicNotFound
from myqueue.protocol.routes import Route
from myqueue.protocol.token import Token

# For responses whose body does not say whether a retry can help, because another server sent them.
_RETRIABLE_STATUSES = frozenset({408, 421, 429, 502, 503, 504, 507})
# A shorter attempt would mostly turn "not written" into "unknown".
SHORTEST_ATTEMPT_S = 0.25
SUGGESTION_S = 1.0  # for the request that finds what was probably meant, and between two of them


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential backoff with full jitter under one total deadline."""

    deadline_s: float = 30.0  # for one call, all attempts and pauses together
    first_pause_s: float = 0.05
    longest_pause_s: float = 2.0
    # As long as this process has had no answer from the URL: the address is then more likely wrong than the cluster
    # down. None: as long as deadline_s, for a process that may start before the cluster.
    connect_deadline_s: float | None = 2.0

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


class AnswerBody(dict[str, Any]):
    """The JSON of a response. Without a field that every myqueue sends, it is of another server."""

    def __init__(self, fields: dict[str, Any], raw: RawResponse, url: str) -> None:
        super().__init__(fields)
        self._raw = raw
        self._url = url

    def __missing__(self, field: str) -> Any:
        raise NotMyQueue(f"{_foreign(self._raw, self._url)}: its answer has no field {field!r}")


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    body: dict[str, Any]  # empty if the response has none
    table: RawResponse | None = None  # instead of a body: an Arrow stream, which `format=arrow` asks for


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    error: errors.MyQueueError
    retriable: bool


class RetriedCall:
    """Decides after each failed attempt of a call whether and when there is another one."""

    def __init__(
        self, policy: RetryPolicy, route: Route, *, repeatable: bool, deadline_s: float | None, wait_s: float
    ) -> None:
        started = time.monotonic()
        self._policy = policy
        self._is_read = route.method == "GET"
        self._repeatable = repeatable
        self._deadline = started + wait_s + (policy.deadline_s if deadline_s is None else deadline_s)
        self._connect_deadline = self._deadline
        if policy.connect_deadline_s is not None:
            self._connect_deadline = min(self._deadline, started + policy.connect_deadline_s)
        self._failures = 0
        self._maybe_written = False

    def left_s(self) -> float:
        """For the next attempt."""
        return max(SHORTEST_ATTEMPT_S, self._deadline - time.monotonic())

    def connect_s(self, *, reached: bool) -> float:
        """For its connection; `reached`: whether this process ever had an answer from the cluster."""
        return self.left_s() if reached else max(SHORTEST_ATTEMPT_S, self._connect_deadline - time.monotonic())

    def pause_s(self, failed: FailedAttempt, *, reached: bool) -> float | None:
        """How long to wait before the next attempt; None if there is none, and the error is to be raised."""
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
            return None
        is_first_contact = isinstance(error, NoResponse) and not error.timed_out and not reached
        until = self._connect_deadline if is_first_contact else self._deadline
        return None if time.monotonic() + pause_s + SHORTEST_ATTEMPT_S >= until else pause_s


class Transport:
    """May be shared by threads; a child process that uses its parent's opens connections of its own."""

    def __init__(
        self, address: str | None = None, *, timeouts: Timeouts = DEFAULT_TIMEOUTS, retry: RetryPolicy = DEFAULT_RETRY
    ) -> None:
        self.url = base_url(address)
        self.retry = retry
        self.timeouts = timeouts
        self.consumers: dict[int, KnownConsumer] = {}  # those registered here, for messages
        self.token = SessionToken()
        self._closed = threading.Event()
        self._pool = POOLS.acquire(self.url)
        self._suggest_after = 0.0  # monotonic

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
            connect_s = retried.connect_s(reached=self.pool.reached)
            result = self._attempt(route, path, query, body, idempotency_key, wait_s, retried.left_s(), connect_s)
            if isinstance(result, Response):
                return result
            pause_s = retried.pause_s(result, reached=self.pool.reached)
            if pause_s is None or self._closed.wait(pause_s):
                raise self.named(result.error, route, path, query, body)

    def probe(
        self,
        route: Route,
        *,
        path: Mapping[str, str | int] | None = None,
        query: Mapping[str, str | int] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Response:
        """One attempt, whatever its status; raises only when there is no response, or none of myqueue."""
        read_s = self.timeouts.read_s
        result = self._attempt(route, path, query, body, None, 0.0, read_s, read_s, any_status=True)
        if isinstance(result, FailedAttempt):
            raise result.error
        return result

    @property
    def is_closed(self) -> bool:
        return self._closed.is_set()

    def close(self) -> None:
        """Ends pauses between attempts. A call in flight still gets its response."""
        if not self._closed.is_set():
            self._closed.set()
            POOLS.release(self.url, self._pool)

    def _attempt(
        self,
        route: Route,
        path: Mapping[str, str | int] | None,
        query: Mapping[str, str | int] | None,
        body: Mapping[str, Any] | None,
        idempotency_key: str | None,
        wait_s: float,
        left_s: float,
        connect_s: float,
        *,
        any_status: bool = False,
    ) -> Response | FailedAttempt:
        target, sent, data = encode_call(route, path, query, body, idempotency_key, self.token.value)
        pool = self.pool
        connection = pool.borrow()
        try:
            raw = connection.exchange(
                route.method,
                target,
                sent,
                data,
                connect_s=min(self.timeouts.connect_s, connect_s),
                read_s=min(self.timeouts.read_s + wait_s, left_s),
            )
        except NoResponse as error:
            return unanswered(error, pool)
        finally:
            pool.give_back(connection)
            if self._closed.is_set():
                pool.close()  # the last user may have left meanwhile; others open connections again
        return self.answered(raw, pool, any_status=any_status)

    def answered(self, raw: RawResponse, pool: ConnectionPool, *, any_status: bool = False) -> Response | FailedAttempt:
        """What a response means; what it tells about the session and the cluster is remembered."""
        self.token.learn(raw.headers.get(http_headers.TOKEN))
        result = _response(raw, self.url, any_status)
        if isinstance(result, Response) or not isinstance(result.error, NotMyQueue):
            pool.mark_reached()
        return result

    @property
    def pool(self) -> ConnectionPool:
        """Of this process: after a fork, parent and child must not send on the same socket."""
        if self._pool.process_id != process_id():
            self._pool.close()
            self._pool = POOLS.acquire(self.url)
            # Another thread of the parent may have held their locks.
            token, self.token = self.token.value, SessionToken()
            self.token.learn(token)
            self._closed = threading.Event()
        return self._pool

    def named(
        self,
        error: errors.MyQueueError,
        route: Route,
        path: Mapping[str, str | int] | None,
        query: Mapping[str, str | int] | None,
        body: Mapping[str, Any] | None,
    ) -> errors.MyQueueError:
        """The error with what it is about, and what was probably meant."""
        given = {**(body or {}), **(query or {}), **(path or {})}
        name_subject(error, subject_of(route, given, self.consumers, error.details), self.url)
        topic = topic_of(route, given, self.consumers)
        if isinstance(topic, str) and (suggestion := self._suggestion(error, topic)):
            error.reword(f"{error.message}; {suggestion}")
        return error

    def _suggestion(self, error: errors.MyQueueError, topic: str) -> str | None:
        """One more request, at most one a second: a caller may be waiting for a topic to appear."""
        if not isinstance(error, TopicNotFound | PartitionNotFound) or error.outcome == "unknown":
            return None
        if time.monotonic() < self._suggest_after:
            return None
        self._suggest_after = time.monotonic() + SUGGESTION_S
        if isinstance(error, TopicNotFound):
            found = self._attempt(routes.LIST_TOPICS, None, None, None, None, 0.0, SUGGESTION_S, SUGGESTION_S)
            names = found.body.get("topics") if isinstance(found, Response) else None
            meant = close_match(topic, names) if isinstance(names, list) else None
            return f"did you mean {meant!r}?" if meant else None
        path = {"topic": topic}
        found = self._attempt(routes.DESCRIBE_TOPIC, path, None, None, None, 0.0, SUGGESTION_S, SUGGESTION_S)
        count = found.body.get("partitions") if isinstance(found, Response) else None
        return f"its partitions are 0 to {count - 1}" if isinstance(count, int) else None


def unanswered(error: NoResponse, pool: ConnectionPool) -> FailedAttempt:
    if isinstance(error, NotHttpServer) and not pool.reached:
        return FailedAttempt(NotMyQueue(f"what answers is not myqueue: {error.message}"), retriable=False)
    return FailedAttempt(error, retriable=not error.permanent)


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


def _response(raw: RawResponse, url: str, any_status: bool) -> Response | FailedAttempt:
    if raw.status == 200 and raw.headers.get("Content-Type") == http_headers.ARROW_TYPE:
        return Response(raw.status, {}, raw)
    body = {} if raw.status == 204 else json_of(raw)
    if isinstance(body, dict) and (any_status or raw.status in (200, 201, 204)):
        return Response(raw.status, AnswerBody(body, raw, url))
    if is_retriable(raw.status, body) or (isinstance(body, dict) and isinstance(body.get("error_code"), int)):
        return FailedAttempt(error_of(raw, body), is_retriable(raw.status, body))
    return FailedAttempt(NotMyQueue(_foreign(raw, url)), retriable=False)


def _foreign(raw: RawResponse, url: str) -> str:
    said = foreign_server(raw.status, raw.headers.get("Server", ""), raw.headers.get("Content-Type", ""))
    return f"{url}: {said}"


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
