"""HTTP to one cluster: connections, timeouts, retries of what is safe to repeat, typed errors, the session token."""

import json
import random
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import requests
from requests.adapters import HTTPAdapter
from urllib3.exceptions import MaxRetryError, NewConnectionError

from myqueue.address import base_url
from myqueue.protocol import errors, headers
from myqueue.protocol.routes import Route
from myqueue.retry import DEFAULT_RETRY, RetryPolicy, is_retriable, retry_after_s
from myqueue.session_token import SessionToken
from myqueue.version import VERSION


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

    A `requests.Session` may not, so each call borrows one from a stack of idle ones: there are never more than calls
    at the same time, and threads that come and go leave none behind.
    """

    def __init__(
        self, address: str, *, timeouts: Timeouts = DEFAULT_TIMEOUTS, retry: RetryPolicy = DEFAULT_RETRY
    ) -> None:
        self.url = base_url(address)
        self.retry = retry
        self._timeouts = timeouts
        self._idle: deque[requests.Session] = deque()
        self._closed = threading.Event()
        self._token = SessionToken()

    def call(
        self,
        route: Route,
        *,
        path: Mapping[str, str] | None = None,
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
        result = self._attempt(route, None, None, None, None, 0.0, self._timeouts.read_s, any_status=True)
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
        path: Mapping[str, str] | None,
        query: Mapping[str, str | int] | None,
        body: Mapping[str, Any] | None,
        idempotency_key: str | None,
        wait_s: float,
        left_s: float,
        *,
        any_status: bool = False,
    ) -> Answer | _Failure:
        url = self.url + route.path.format(**{name: quote(value, safe="") for name, value in (path or {}).items()})
        sent: dict[str, str] = {}
        if idempotency_key is not None:
            sent[headers.IDEMPOTENCY_KEY] = idempotency_key
        if route.method == "GET" and (token := self._token.value) is not None:
            sent[headers.TOKEN] = token
        session = self._borrow()
        try:
            response = session.request(
                route.method,
                url,
                params=query,
                json=body,
                headers=sent,
                timeout=(min(self._timeouts.connect_s, left_s), min(self._timeouts.read_s + wait_s, left_s)),
                allow_redirects=False,
            )
        except requests.RequestException as error:
            return _no_answer(self.url, error)
        finally:
            self._give_back(session)
        self._token.learn(response.headers.get(headers.TOKEN))
        return _answer(response, any_status)

    def _borrow(self) -> requests.Session:
        try:
            return self._idle.pop()
        except IndexError:
            return _new_session()

    def _give_back(self, session: requests.Session) -> None:
        self._idle.append(session)
        if self._closed.is_set():
            self._close_idle()

    def _close_idle(self) -> None:
        while self._idle:
            try:
                session = self._idle.pop()
            except IndexError:
                return
            session.close()


def _new_session() -> requests.Session:
    session = requests.Session()
    # Proxies of the environment are for the web: they would cut long polls, and .netrc would be read on every call.
    session.trust_env = False
    session.headers.update({"User-Agent": f"myqueue-python/{VERSION}", "Accept": "application/json"})
    adapter = HTTPAdapter(pool_connections=1, pool_maxsize=1, max_retries=0)
    session.mount("http://", adapter)
    session.mount("https://", adapter)
    return session


def _no_answer(url: str, error: requests.RequestException) -> _Failure:
    """Not written if there was no connection to send it over; otherwise nobody knows."""
    reason = getattr(error.args[0], "reason", None) if error.args and isinstance(error.args[0], MaxRetryError) else None
    if isinstance(error, requests.exceptions.SSLError):
        refused = errors.Unavailable(f"no TLS connection to {url}: {reason or error}", outcome="not_written")
        refused.__cause__ = error
        return _Failure(refused, retriable=False)
    if isinstance(error, requests.ConnectTimeout) or isinstance(reason, NewConnectionError):
        failed = errors.Unavailable(f"cannot connect to {url}", outcome="not_written")
    else:
        failed = errors.Unavailable(f"no answer from {url}: {type(error).__name__}", outcome="unknown")
    failed.__cause__ = error
    sent_or_lost = requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError
    return _Failure(failed, retriable=isinstance(error, sent_or_lost))


def _answer(response: requests.Response, any_status: bool) -> Answer | _Failure:
    body: object = {}
    if response.content:
        try:
            body = json.loads(response.content)
        except ValueError:
            body = None
    if isinstance(body, dict) and (any_status or response.status_code in (200, 201, 204)):
        return Answer(response.status_code, body)
    if response.status_code < 400:
        strange = errors.MyQueueError(f"HTTP {response.status_code} that is no answer of myqueue", outcome="unknown")
        return _Failure(strange, retriable=False)
    pause_s = retry_after_s(response.headers.get("Retry-After"))
    error = errors.from_body(body, response.status_code, pause_s)
    if error.request_id is None:
        error.request_id = response.headers.get(headers.REQUEST_ID)
    return _Failure(error, is_retriable(response.status_code, body))
