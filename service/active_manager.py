"""Follow the active write manager: which of several addresses a call goes to, and whose answers count.

A call is decided without IO, as a generator of attempts (`WriteManagerFollower`); two small callers send them, from
threads and from the event loop. See docs/adr/0021.
"""

import asyncio
import json
import math
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator
from pydantic_settings import NoDecode

from myqueue.protocol import http_headers
from myqueue.protocol.errors import RouteNotFound, StandbyManager
from myqueue.protocol.internal import WRITE_MANAGER_STATUS as _STATUS
from service.async_calls import AsyncCaller
from service.calls import Caller, CallResponse, ConnectionRefused, NoAnswer

STATUS_TIMEOUT_S = 0.5
STATUS_INTERVAL_S = 0.25  # between two rounds of asking all of them, however many calls wait for one to be active
FOLLOW_INTERVAL_S = 1.0  # of the job that asks all of them while calls are answered
RESTORED_S = 30.0  # how long one with a lower epoch has to be the only active one
_ROUND_PAUSE_S = 0.02  # of a call that waits for the round of another one
_URL = "http://"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Attempt:
    url: str  # of the write manager
    timeout_s: float
    asks_status: bool = False  # instead of the call itself


@dataclass(frozen=True, slots=True)
class ManagerStatus:
    """What it says of itself; `inactive` is one that has not said it, and is not active for sure."""

    state: Literal["active", "standby", "inactive"]
    epoch: int = 0  # 0: none, or one of an older release
    name: str | None = None
    degraded: str | None = None  # what the active one has to do without


Result = CallResponse | NoAnswer
# Attempts to be sent at the same time, and the result of each; none: a pause of _ROUND_PAUSE_S.
Steps = Generator[Sequence[Attempt], Sequence[Result], T]


class WriteManagerFollower:
    """Shared by all calls of a process, from any thread."""

    def __init__(self, urls: Sequence[str], now_s: Callable[[], float] = time.monotonic) -> None:
        self.urls = tuple(url.rstrip("/") for url in urls)
        self._now_s = now_s
        self._lock = threading.Lock()
        self._current = self.urls[0]
        self._answered: tuple[str, int] | None = None  # whose answer was used last, and its epoch
        self._epoch = 0  # the highest that any answer carried or any status named
        self._silent: set[str] = set()  # did not answer in time, or are fenced: these are only asked for their status
        self._is_asking = False  # a round of statuses is under way
        self._rounds = 0  # that have ended
        self._asked_s = -math.inf  # when the last one began
        self._found: str | None = None  # by the last round, and not left since
        self._lower: tuple[str, float] | None = None  # the only active one has a lower epoch: since when
        self._on_takeover: list[Callable[[str], None]] = []

    @property
    def identity(self) -> tuple[str, int] | None:
        """Address and epoch of the write manager whose answer was used last; changes with every takeover."""
        return self._answered

    def on_takeover(self, act: Callable[[str], None]) -> None:
        """Called with the address of the one that was active, from any thread, when another one answers."""
        self._on_takeover.append(act)

    def attempts(self, timeout_s: float) -> Steps[CallResponse]:
        """One call. The one who sends the attempts passes back the answer to each, or why there is none.

        Another write manager gets the call only while it is certain that none has carried it out. Raises NoAnswer;
        `timeout_s` is for all attempts together.
        """
        deadline_s = self._now_s() + timeout_s
        problem = NoAnswer("no write manager is active right now", outcome="not_written")
        tried: list[str] = []
        while (url := self._next(tried)) is not None:
            tried.append(url)
            answer = yield from self._attempt(url, deadline_s)
            if isinstance(answer, CallResponse):
                return answer
            problem = answer
        found = yield from self._find(deadline_s)
        if found is not None:
            answer = yield from self._attempt(found, deadline_s)
            if isinstance(answer, CallResponse):
                return answer
            problem = answer
        raise problem

    def follow(self) -> Steps[None]:
        """To be run every FOLLOW_INTERVAL_S: one that lost only its way to PostgreSQL goes on answering its callers,
        and does not know that another one has taken over."""
        if self._begin_round():
            yield from self._ask_all(STATUS_TIMEOUT_S)

    def _attempt(self, url: str, deadline_s: float) -> Steps[Result]:
        """The answer, or the reason to try another one. Raises NoAnswer if the call may have been carried out."""
        left_s = deadline_s - self._now_s()
        if left_s <= 0:
            raise NoAnswer(f"no time left to ask {url}", outcome="not_written")
        [result] = yield [Attempt(url, left_s)]
        if isinstance(result, NoAnswer):
            self._leave(url, is_silent=result.outcome != "not_written")
            if result.outcome != "not_written":
                raise result
            return result
        if is_standby(result):
            self._leave(url)
            return NoAnswer("no write manager is active right now", outcome="not_written")
        if not self._accept(url, answered_epoch(result)):
            raise NoAnswer(f"{url} is not the active write manager any more", outcome="unknown")
        return result

    def _find(self, deadline_s: float) -> Steps[str | None]:
        """The active one by the statuses of all. The round of another call, or one of a moment ago, will do."""
        if self._begin_round():
            yield from self._ask_all(min(STATUS_TIMEOUT_S, deadline_s - self._now_s()))
        else:
            rounds = self._rounds
            while self._is_asking and self._rounds == rounds and self._now_s() + _ROUND_PAUSE_S < deadline_s:
                yield []
        return self._found

    def _ask_all(self, timeout_s: float) -> Steps[None]:
        try:
            if timeout_s > 0:
                results = yield [Attempt(url, timeout_s, asks_status=True) for url in self.urls]
                statuses = dict(zip(self.urls, map(status_in, results), strict=True))
                self._take_statuses(statuses)
        finally:
            with self._lock:
                self._rounds += 1
                self._is_asking = False

    def _next(self, tried: Sequence[str]) -> str | None:
        with self._lock:
            order = [self._current, *(url for url in self.urls if url != self._current)]
            return next((url for url in order if url not in tried and url not in self._silent), None)

    def _leave(self, url: str, *, is_silent: bool = False) -> None:
        with self._lock:
            if len(self.urls) == 1:
                return
            if self._found == url:
                self._found = None
            if is_silent:
                self._silent.add(url)
                self._asked_s = -math.inf  # it may have been one slow call: others need not fail because of it
            if self._current == url:
                at = self.urls.index(url)
                others = [*self.urls[at + 1 :], *self.urls[:at]]
                self._current = next((other for other in others if other not in self._silent), others[0])

    def _accept(self, url: str, epoch: int | None) -> bool:
        with self._lock:
            is_fenced = epoch is not None and epoch < self._epoch and len(self.urls) > 1
            before = self._answered
            if not is_fenced:
                self._answered = url, epoch or 0
                self._epoch = self._epoch if epoch is None else epoch
                self._current = url
                self._silent.discard(url)
        if is_fenced:
            self._leave(url, is_silent=True)
        elif before is not None and before[0] != url:
            for act in self._on_takeover:
                act(before[0])
        return not is_fenced

    def _begin_round(self) -> bool:
        with self._lock:
            now_s = self._now_s()
            if self._is_asking or now_s - self._asked_s < STATUS_INTERVAL_S or len(self.urls) == 1:
                return False
            self._is_asking = True
            self._asked_s = now_s
            return True

    def _take_statuses(self, statuses: Mapping[str, ManagerStatus | None]) -> None:
        """One that did not answer this question may be busy: only a call that it does not answer makes it silent."""
        with self._lock:
            active = {
                url: status.epoch for url, status in statuses.items() if status is not None and status.state == "active"
            }
            best = max(active, key=lambda url: (active[url], url == self._current), default=None)
            if best is not None and not self._may_follow(best, statuses):
                best = None
            self._silent = {url for url in self._silent if statuses[url] is None}
            self._silent |= active.keys() - {best}  # their epochs are lower: their answers would not be used
            self._found = best
            if best is not None:
                self._epoch = active[best]
                self._current = best

    def _may_follow(self, url: str, statuses: Mapping[str, ManagerStatus | None]) -> bool:
        """A lower epoch than one before: either the database was restored from an older copy, and waiting for the
        higher one would be for ever, or the one with the higher epoch is only out of reach from here.

        The fenced one says that it is active, too, if it cannot reach PostgreSQL; but then it is degraded.
        """
        status = statuses[url]
        if status is None or status.epoch >= self._epoch or status.degraded is not None:
            self._lower = None
            return status is not None and status.epoch >= self._epoch
        if self._lower is None or self._lower[0] != url:
            self._lower = url, self._now_s()
        return None not in statuses.values() or self._now_s() - self._lower[1] >= RESTORED_S


def answered_epoch(answer: CallResponse) -> int | None:
    """None from a write manager of an older release."""
    text = answer.headers.get(http_headers.EPOCH.lower(), "")
    return int(text) if text.isdecimal() else None


def is_standby(answer: CallResponse) -> bool:
    return answer.status == StandbyManager.http_status and isinstance(answer.error(), StandbyManager)


def status_in(result: Result) -> ManagerStatus | None:
    """None if it may be active."""
    if isinstance(result, ConnectionRefused):
        return ManagerStatus("inactive")  # the listener is open for as long as the process lives
    if isinstance(result, NoAnswer) or result.status >= 500:
        return None
    if result.status >= 400:
        # A release that has no standby does not know the question. Any other error is told to the callers.
        return ManagerStatus("active" if result.status == RouteNotFound.http_status else "inactive")
    try:
        body = result.json()
        state: Literal["active", "standby"] = "active" if body["active"] else "standby"
        return ManagerStatus(state, int(body["epoch"] or 0), body.get("name"), body.get("degraded"))
    except (ValueError, KeyError, TypeError):
        return None


class ManagerCaller:
    """Calls to the active write manager, from threads."""

    def __init__(self, caller: Caller, active: WriteManagerFollower) -> None:
        self._caller = caller
        self.active = active
        self._askers = ThreadPoolExecutor(2 * len(active.urls), "write-manager-status")

    def json(
        self,
        method: str,
        path: str,
        body: object | None = None,
        *,
        timeout_s: float = 2.0,
        extra_headers: Mapping[str, str] | None = None,
    ) -> Any:
        """The answer's JSON; errors are raised as their classes, NoAnswer if no active one answered."""
        return self.call(method, path, body, timeout_s=timeout_s, extra_headers=extra_headers).checked_json()

    def call(
        self,
        method: str,
        path: str,
        body: object | None = None,
        *,
        timeout_s: float = 2.0,
        extra_headers: Mapping[str, str] | None = None,
    ) -> CallResponse:
        payload = None if body is None else json.dumps(body).encode()

        def send(attempt: Attempt) -> Result:
            return self._send(method, attempt.url + path, payload, attempt.timeout_s, extra_headers)

        return self._run(self.active.attempts(timeout_s), send)

    def follow(self) -> None:
        """A job of every process that calls the write manager all the time."""
        self._run(self.active.follow(), self._ask_status)

    def ask_statuses(self) -> list[Result]:
        """What each of them says of itself."""
        attempts = [Attempt(url, STATUS_TIMEOUT_S, asks_status=True) for url in self.active.urls]
        return list(self._askers.map(self._ask_status, attempts))

    def _run(self, steps: Steps[T], send: Callable[[Attempt], Result]) -> T:
        with closing(steps):
            try:
                attempts = next(steps)
                while True:
                    if not attempts:
                        time.sleep(_ROUND_PAUSE_S)
                    if attempts and attempts[0].asks_status:
                        results = list(self._askers.map(self._ask_status, attempts))
                    else:
                        results = [send(attempt) for attempt in attempts]
                    attempts = steps.send(results)
            except StopIteration as end:
                outcome: T = end.value
                return outcome

    def _ask_status(self, attempt: Attempt) -> Result:
        return self._send(_STATUS.method, attempt.url + _STATUS.path, None, attempt.timeout_s, None)

    def _send(
        self, method: str, url: str, body: bytes | None, timeout_s: float, extra_headers: Mapping[str, str] | None
    ) -> Result:
        try:
            return self._caller.call(method, url, body, timeout_s=timeout_s, extra_headers=extra_headers)
        except NoAnswer as error:
            return error

    def close(self) -> None:
        self._askers.shutdown(wait=False)
        self._caller.close()


class AsyncManagerCaller:
    """Calls to the active write manager, on the event loop.

    Answers of the one before would not be used: calls that still wait for one end when another one has taken over.
    """

    def __init__(self, caller: AsyncCaller, active: WriteManagerFollower) -> None:
        self._caller = caller
        self.active = active
        self._loop: asyncio.AbstractEventLoop | None = None
        active.on_takeover(self._give_up)

    def _give_up(self, url: str) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._caller.give_up, url, "another write manager has taken over")

    async def json(self, method: str, path: str, body: object | None = None, *, timeout_s: float = 2.0) -> Any:
        """The answer's JSON; errors are raised as their classes, NoAnswer if no active one answered."""
        self._loop = asyncio.get_running_loop()
        payload = None if body is None else json.dumps(body).encode()

        async def send(attempt: Attempt) -> Result:
            ask, where, what = (_STATUS.method, _STATUS.path, None) if attempt.asks_status else (method, path, payload)
            try:
                return await self._caller.call(ask, attempt.url + where, what, timeout_s=attempt.timeout_s)
            except NoAnswer as error:
                return error

        with closing(self.active.attempts(timeout_s)) as steps:
            try:
                attempts = next(steps)
                while True:
                    if len(attempts) == 1:
                        results = [await send(attempts[0])]  # without the cost of a task
                    else:
                        results = await asyncio.gather(*map(send, attempts))
                    if not attempts:
                        await asyncio.sleep(_ROUND_PAUSE_S)
                    attempts = steps.send(results)
            except StopIteration as end:
                answer: CallResponse = end.value
        return answer.checked_json()

    def close(self) -> None:
        self._caller.close()


def _split(value: object) -> object:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def _check(urls: tuple[str, ...]) -> tuple[str, ...]:
    if not urls or any(not url.startswith(_URL) or not url[len(_URL) :] or "/" in url[len(_URL) :] for url in urls):
        raise ValueError("must be http://host:port, several separated by commas")
    if len(set(urls)) < len(urls):
        raise ValueError("names an address twice")
    return urls


# The type of the setting `write_manager_urls`.
ManagerUrls = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split), AfterValidator(_check)]
