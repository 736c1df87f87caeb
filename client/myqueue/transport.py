"""HTTP to one cluster: connections, timeouts, retries of what is safe to repeat, typed errors, the session token."""

import json
import random
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from myqueue.address import base_url
from myqueue.protocol import errors, http_headers
from myqueue.protocol.routes import Route
from myqueue.retry import DEFAULT_RETRY, RetryPolicy, is_retriable, retry_after_s
from myqueue.session_token import SessionToken
from myqueue.wire import NoAnswer, RawAnswer, Wire


@dataclass(frozen=True, slots=True)
class Timeouts:
    """For one attempt. Reading takes longer than the load balancer's own patience with a write, so that its answer,
    which says more than a timeout does, comes first."""

    connect_s: float = 2.0
    read_s: float = 15.0


DEFAULT_TIMEOUTS = Timeouts()
# An attempt that is cut off at once by the deadline would only turn "not written" into "unknown".
SHORTEST_ATTEMPT_S = 0.25


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: dict[str, Any]  # empty when the answer has none


@dataclass(frozen=True, slots=True)
class _Failure:
    error: errors.MyQueueError
    retriable: bool


class Transport:
    """May be shared by threads.

    A connection may not, so each call borrows one from a stack of idle ones: there are never more than calls at the
    same time, and threads that come and go leave none behind.
    """

    def __init__(
        self, address: str, *, timeouts: Timeouts = DEFAULT_TIMEOUTS, retry: RetryPolicy = DEFAULT_RETRY
    ) -> None:
        self.url = base_url(address)
        self.retry = retry
        self.timeouts = timeouts
        self._idle: deque[Wire] = deque()
        self._closed = threading.Event()
        self._token = SessionToken()

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
    ) -> Answer:
        """The answer of a successful call; raises the error of a failed one.

        A call that is not `repeatable` is tried again only when nothing can have been written. `wait_s` is how long
        the server was asked to wait. A write's error says `unknown` if any of the attempts may have been carried out.
        """
        deadline = time.monotonic() + wait_s + (self.retry.deadline_s if deadline_s is None else deadline_s)
        failures = 0
        maybe_written = False
        while True:
            left_s = max(SHORTEST_ATTEMPT_S, deadline - time.monotonic())
            result = self._attempt(route, path, query, body, idempotency_key, wait_s, left_s)
            if isinstance(result, Answer):
                return result
            failures += 1
            error = result.error
            if route.method == "GET":
                error.outcome = None
            else:
                maybe_written = maybe_written or error.outcome != "not_written"
                if maybe_written:
                    error.outcome = "unknown"
            pause_s = self.retry.pause_s(failures, error.retry_after_s, random.random())  # noqa: S311
            if not result.retriable or (maybe_written and not repeatable):
                raise error
            if time.monotonic() + pause_s + SHORTEST_ATTEMPT_S >= deadline or self._closed.wait(pause_s):
                raise error

    def probe(self, route: Route) -> Answer:
        """One attempt, whatever its status; raises only when there is no answer."""
        result = self._attempt(route, None, None, None, None, 0.0, self.timeouts.read_s, any_status=True)
        if isinstance(result, _Failure):
            raise result.error
        return result

    def close(self) -> None:
        """Ends pauses between attempts. A call under way still gets its answer."""
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
    ) -> Answer | _Failure:
        target = route.path.format(**{name: quote(str(value), safe="") for name, value in (path or {}).items()})
        if query:
            target += "?" + urlencode(query)
        sent: dict[str, str] = {}
        if idempotency_key is not None:
            sent[http_headers.IDEMPOTENCY_KEY] = idempotency_key
        if route.tier == "read" and (token := self._token.value) is not None:
            sent[http_headers.TOKEN] = token
        data = None
        if body is not None:
            sent["Content-Type"] = "application/json"
            data = json.dumps(body, ensure_ascii=False).encode()
        wire = self._borrow()
        try:
            raw = wire.exchange(
                route.method,
                target,
                sent,
                data,
                connect_s=min(self.timeouts.connect_s, left_s),
                read_s=min(self.timeouts.read_s + wait_s, left_s),
            )
        except NoAnswer as error:
            return _Failure(error, retriable=not error.hopeless)
        finally:
            self._give_back(wire)
        self._token.learn(raw.headers.get(http_headers.TOKEN))
        return _answer(raw, any_status)

    def _borrow(self) -> Wire:
        try:
            return self._idle.pop()
        except IndexError:
            return Wire(self.url)

    def _give_back(self, wire: Wire) -> None:
        self._idle.append(wire)
        if self._closed.is_set():
            self._close_idle()

    def _close_idle(self) -> None:
        while self._idle:
            try:
                wire = self._idle.pop()
            except IndexError:
                return
            wire.close()


def _answer(raw: RawAnswer, any_status: bool) -> Answer | _Failure:
    body = {} if raw.status == 204 else json_of(raw)
    if isinstance(body, dict) and (any_status or raw.status in (200, 201, 204)):
        return Answer(raw.status, body)
    if raw.status < 400:
        strange = errors.MyQueueError(f"HTTP {raw.status} that is no answer of myqueue", outcome="unknown")
        return _Failure(strange, retriable=False)
    return _Failure(error_of(raw, body), is_retriable(raw.status, body))


def json_of(raw: RawAnswer) -> object:
    """None if it is no JSON."""
    try:
        body: object = json.loads(raw.body)
    except ValueError:
        return None
    return body


def error_of(raw: RawAnswer, body: object) -> errors.MyQueueError:
    error = errors.from_body(body, raw.status, retry_after_s(raw.headers.get("Retry-After")))
    if error.request_id is None:
        error.request_id = raw.headers.get(http_headers.REQUEST_ID)
    return error
