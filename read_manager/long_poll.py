"""Long polls: requests wait for messages without a thread, a connection or a broker call each.

While requests wait for a topic, one long wait at each broker covers the partitions they wait for. It learns the
partitions' ends and wakes every request that waits for less. It goes on for a moment after the last request has ended,
because most clients poll again.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, TypeVar

from myqueue.protocol import http_headers, internal
from myqueue.protocol.errors import MyQueueError, Overloaded, TopicNotFound, Unavailable
from myqueue.protocol.internal import (
    TopicRecord,
)
from myqueue.protocol.limits import MAX_WAIT_MS
from myqueue.protocol.message_calls import (
    WaitAnswer,
    WaitRequest,
)
from myqueue.protocol.models import Consume, ListMessages, Poll
from read_manager.metadata_cache import MetadataCache
from service.async_calls import AsyncCaller
from service.http_messages import HttpRequest
from service.logs import Log

WAIT_MS = 3000  # a broker that hangs is noticed after this
ANSWER_SLACK_S = 1.0
LINGER_S = 2.0
AVOID_S = 3.0  # a broker that failed
FIRST_ENDS_S = 0.5
FAILURE_PAUSE_S = 0.1
IDLE_PAUSE_S = 0.02  # after growth that no request waited for: a busy topic must not keep the loop busy
UNKNOWN = -1

_SECONDS = re.compile(r"[0-9]{1,6}(\.[0-9]{1,3})?")

W = TypeVar("W", Consume, ListMessages, Poll)


def with_remaining_wait(query: W, request: HttpRequest) -> W:
    """Subtracts the time that a retried request has waited at another manager, as the load balancer reports it."""
    elapsed = request.header(http_headers.ELAPSED)
    elapsed_s = float(elapsed) if elapsed is not None and _SECONDS.fullmatch(elapsed) else 0.0
    wait_ms = max(0, min(query.wait_ms, MAX_WAIT_MS) - round(elapsed_s * 1000))
    return query if wait_ms == query.wait_ms else query.model_copy(update={"wait_ms": wait_ms})


class ClientConnection:
    """`with ClientConnection(request.client_disconnected) as client:` around a wait.

    Once the client has closed the connection, no message may be claimed or delivered for it."""

    def __init__(self, disconnected: Callable[[], Awaitable[None]]) -> None:
        self._disconnected = disconnected
        self._closing: asyncio.Task[None] | None = None

    @property
    def closing(self) -> "asyncio.Task[None]":
        """Ends when the client has closed the connection. The task is made on first use: only waits pay for it."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._until_disconnected())
        return self._closing

    def watch(self) -> None:
        """Notice from now on when the connection is closed."""
        _ = self.closing

    @property
    def is_closed(self) -> bool:
        return self._closing is not None and self._closing.done()

    async def _until_disconnected(self) -> None:
        await self._disconnected()

    def __enter__(self) -> "ClientConnection":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._closing is not None:
            self._closing.cancel()


class LongPolls:
    def __init__(self, caller: AsyncCaller, topics: MetadataCache, log: Log, *, max_waiters: int) -> None:
        """`caller` is used for nothing else: long waits must not take the connections of other calls."""
        self._caller = caller
        self._topics = topics
        self._log = log
        self._max_waiters = max_waiters
        self._waiting = 0
        self._watches: dict[str, _TopicWatch] = {}
        self._stopped = asyncio.Event()

    @property
    def stopping(self) -> bool:
        return self._stopped.is_set()

    def known_ends(self, topic: TopicRecord, partitions: Iterable[int]) -> dict[int, int]:
        """End offsets as of a moment ago; UNKNOWN for partitions that are not watched."""
        watch = self._watches.get(topic["topic_id"])
        return {p: UNKNOWN if watch is None else watch.ends.get(p, UNKNOWN) for p in partitions}

    async def watched_ends(self, topic: TopicRecord, partitions: Iterable[int], deadline_s: float) -> dict[int, int]:
        """As `known_ends`, but starts to watch first. A partition that no broker has stays UNKNOWN."""
        wanted = list(partitions)
        deadline_s = min(deadline_s, asyncio.get_running_loop().time() + FIRST_ENDS_S)
        while missing := [p for p, end in self.known_ends(topic, wanted).items() if end == UNKNOWN]:
            if not await self.wait_beyond(topic, dict.fromkeys(missing, UNKNOWN), deadline_s):
                break
        return self.known_ends(topic, wanted)

    async def wait_beyond(
        self,
        topic: TopicRecord,
        beyond: Mapping[int, int],
        deadline_s: float,
        client: ClientConnection | None = None,
        *,
        interrupt: "asyncio.Future[None] | None" = None,
        is_limited: bool = True,
    ) -> bool:
        """True once a partition's end lies beyond the offset given for it; False at the deadline, at stop, when the
        client has closed its connection, or when `interrupt` is done. Not `is_limited`: event streams have a limit of
        their own."""
        if self.stopping:
            return False
        if is_limited and self._waiting >= self._max_waiters:  # backpressure
            raise Overloaded("as many requests wait for messages as this server takes", retry_after_s=1)
        watch = self._watches.get(topic["topic_id"])
        if watch is None:
            watch = self._watches[topic["topic_id"]] = _TopicWatch(self, topic)
        self._waiting += is_limited
        try:
            return await watch.wait_beyond(beyond, deadline_s, client, interrupt)
        finally:
            self._waiting -= is_limited

    async def pause(
        self, deadline_s: float, client: ClientConnection, *, interrupt: "asyncio.Future[None] | None" = None
    ) -> None:
        """A wait for no partition: ends early when the process stops, the client closes its connection, or `interrupt`
        is done."""
        stopped = asyncio.create_task(self._stopped.wait())
        await first_of({stopped, client.closing, *(() if interrupt is None else (interrupt,))}, deadline_s)
        stopped.cancel()

    async def ask(self, endpoint: str, request: WaitRequest) -> WaitAnswer:
        answer: WaitAnswer = await self._caller.json(
            internal.WAIT.method,
            endpoint + internal.WAIT.path,
            request,
            timeout_s=request["wait_ms"] / 1000 + ANSWER_SLACK_S,
        )
        return answer

    async def refreshed(self, topic: TopicRecord, *, fresh: bool) -> TopicRecord | None:
        """The current record; None when the topic was deleted."""
        try:
            record = await self._topics.topic(topic["name"], fresh=fresh)
        except TopicNotFound:
            return None
        except MyQueueError as error:
            self._log.info("watching on by what was known", topic=topic["name"], why=error.message)
            return topic
        return record if record["topic_id"] == topic["topic_id"] else None

    def unanswered(self, endpoint: str, error: MyQueueError) -> None:
        """An unavailable broker is not logged here: heartbeats and its other callers report it."""
        if not isinstance(error, Unavailable):
            self._log.warning("a broker refused to be watched", endpoint=endpoint, why=error.message)

    def failed(self, topic: TopicRecord, error: BaseException) -> None:
        self._log.error("watching failed", topic=topic["name"], exc_info=error)

    def forget(self, topic_id: str) -> None:
        self._watches.pop(topic_id, None)

    @property
    def waiting(self) -> int:
        return self._waiting

    def stop(self) -> None:
        """All waiting requests return now."""
        self._stopped.set()
        for watch in list(self._watches.values()):
            watch.stop()


async def first_of(futures: "set[asyncio.Future[Any]]", deadline_s: float) -> None:
    """Waits for any of them, at most until the deadline."""
    left_s = deadline_s - asyncio.get_running_loop().time()
    await asyncio.wait(futures, timeout=max(0.0, left_s), return_when=asyncio.FIRST_COMPLETED)


class _Waiter:
    __slots__ = ("beyond", "woken")

    def __init__(self, beyond: Mapping[int, int], woken: "asyncio.Future[bool]") -> None:
        self.beyond = beyond
        self.woken = woken


class _TopicWatch:
    """One topic: its known ends, the waiting requests, and one task per broker."""

    def __init__(self, polls: LongPolls, topic: TopicRecord) -> None:
        self._polls = polls
        self._topic = topic
        self._waiters: dict[int, set[_Waiter]] = {}  # by partition
        self._wanted_s: dict[int, float] = {}  # when a partition was last waited for
        self._avoided_s: dict[tuple[int, str], float] = {}  # partition and endpoint -> until when
        self._tasks: dict[str, asyncio.Task[None]] = {}  # by endpoint
        self._watched: dict[str, set[int]] = {}  # by endpoint: partitions of the wait in flight
        self._changed: dict[str, asyncio.Event] = {}
        self.ends: dict[int, int] = {}

    async def wait_beyond(
        self,
        beyond: Mapping[int, int],
        deadline_s: float,
        client: ClientConnection | None,
        interrupt: "asyncio.Future[None] | None",
    ) -> bool:
        loop = asyncio.get_running_loop()
        waiter = _Waiter(beyond, loop.create_future())
        for p in beyond:
            self._waiters.setdefault(p, set()).add(waiter)
        self._wanted_s |= dict.fromkeys(beyond, loop.time())
        try:
            # Ends of partitions that were not watched lately may be old, but ends only grow.
            if self._passed(waiter):
                return True
            self._watch(beyond)
            ends: set[asyncio.Future[Any]] = {waiter.woken}
            if client is not None:
                ends.add(client.closing)
            if interrupt is not None:
                ends.add(interrupt)
            await first_of(ends, deadline_s)
            return waiter.woken.done() and waiter.woken.result()
        finally:
            self._wanted_s |= dict.fromkeys(beyond, loop.time())
            for p in beyond:
                self._waiters[p].discard(waiter)

    def _passed(self, waiter: _Waiter) -> bool:
        return any(self.ends.get(p, UNKNOWN) > offset for p, offset in waiter.beyond.items())

    def _watch(self, partitions: Iterable[int]) -> None:
        """Make sure that a task watches each of them."""
        now_s = asyncio.get_running_loop().time()
        for p in partitions:
            endpoint = self._endpoint(p, now_s)
            if endpoint not in self._tasks:
                self._changed[endpoint] = asyncio.Event()
                self._watched[endpoint] = set()
                task = asyncio.create_task(self._follow(endpoint))
                self._tasks[endpoint] = task
                task.add_done_callback(lambda _, endpoint=endpoint: self._ended(endpoint))  # type: ignore[misc]
            elif p not in self._watched[endpoint]:
                self._changed[endpoint].set()

    def _endpoint(self, partition_id: int, now_s: float) -> str:
        """The leader's, unless it failed just now; empty when no replica is alive."""
        endpoints = self._topic["partitions"][partition_id]["endpoints"]
        good = [e for e in endpoints if self._avoided_s.get((partition_id, e), 0.0) <= now_s]
        return (good or endpoints or [""])[0]

    def _waited_for(self) -> set[int]:
        return {p for p, waiters in self._waiters.items() if not all(waiter.woken.done() for waiter in waiters)}

    def _interesting(self, endpoint: str, now_s: float) -> list[int]:
        recent = {p for p, wanted_s in self._wanted_s.items() if now_s - wanted_s < LINGER_S}
        return [p for p in self._waited_for() | recent if self._endpoint(p, now_s) == endpoint]

    async def _follow(self, endpoint: str) -> None:
        """Runs until no request waits for a partition of this broker."""
        loop = asyncio.get_running_loop()
        while partitions := self._interesting(endpoint, loop.time()):
            failed, woken = await self._wait_at(endpoint, partitions)
            until_s = loop.time() + AVOID_S
            self._avoided_s.update({(p, endpoint): until_s for p in failed})
            record = await self._polls.refreshed(self._topic, fresh=bool(failed))
            if record is None:
                self._wake_all(True)  # the next read of each reports that the topic is gone
                return
            self._topic = record
            if failed:
                await asyncio.sleep(FAILURE_PAUSE_S)
            elif not woken and not self._changed[endpoint].is_set():
                await asyncio.sleep(IDLE_PAUSE_S)
            # By the refreshed record, other brokers may hold the partitions of this wait.
            self._watch(self._waited_for())

    async def _wait_at(self, endpoint: str, partitions: list[int]) -> tuple[list[int], bool]:
        """One long wait: the partitions that this broker does not have, and whether a request was woken."""
        changed = self._changed[endpoint]
        changed.clear()
        self._watched[endpoint] = set(partitions)
        if not endpoint:
            return partitions, False
        request: WaitRequest = {
            "partitions": [
                {"topic_id": self._topic["topic_id"], "partition_id": p, "offset": self.ends.get(p, UNKNOWN)}
                for p in partitions
            ],
            "wait_ms": WAIT_MS,
        }
        asking = asyncio.create_task(self._polls.ask(endpoint, request))
        interrupt = asyncio.create_task(changed.wait())
        try:
            await asyncio.wait({asking, interrupt}, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                return [], True  # a request waits for another partition here: repeat the call
            grown = asking.result()["grown"]
        except MyQueueError as error:
            self._polls.unanswered(endpoint, error)
            return partitions, False
        finally:
            for task in (asking, interrupt):
                task.cancel()
        woken = False
        for entry in grown:
            p, end = entry["partition_id"], entry["end_offset"]
            if end > self.ends.get(p, UNKNOWN):
                self.ends[p] = end
                woken |= self._wake(p)
        return [entry["partition_id"] for entry in grown if entry["end_offset"] == UNKNOWN], woken

    def _wake(self, partition_id: int) -> bool:
        woken = False
        for waiter in self._waiters.get(partition_id, ()):
            if self.ends[partition_id] > waiter.beyond[partition_id] and not waiter.woken.done():
                waiter.woken.set_result(True)
                # The request continues after this task does, and reads the ends then.
                self._wanted_s |= dict.fromkeys(waiter.beyond, asyncio.get_running_loop().time())
                woken = True
        return woken

    def _wake_all(self, outcome: bool) -> None:
        for waiters in self._waiters.values():
            for waiter in waiters:
                if not waiter.woken.done():
                    waiter.woken.set_result(outcome)

    def _ended(self, endpoint: str) -> None:
        task = self._tasks.pop(endpoint)
        del self._changed[endpoint], self._watched[endpoint]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._polls.failed(self._topic, error)
        elif (waited_for := self._waited_for()) and not self._polls.stopping:
            self._watch(waited_for)  # a request came while the task ended
        if not self._tasks:
            self._polls.forget(self._topic["topic_id"])

    def stop(self) -> None:
        self._wake_all(False)
        for task in list(self._tasks.values()):
            task.cancel()
