"""Waiting for messages without a thread, a connection or a question for each that waits.

While anybody waits for a topic, one long wait per broker watches the partitions that are waited for. It learns their
ends, and whoever waits for less than that is woken. It goes on for a moment after the last one has left, because
most come back.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from myqueue.protocol import internal
from myqueue.protocol.errors import MyQueueError, Overloaded, TopicNotFound, Unavailable
from myqueue.protocol.internal import TopicRecord, WaitAnswer, WaitRequest
from read_manager.client import Client
from read_manager.topics import Topics
from service.async_calls import AsyncCaller
from service.logs import Log

WAIT_MS = 3000  # a broker that hangs is found out after this
ANSWER_SLACK_S = 1.0
LINGER_S = 2.0
AVOID_S = 3.0  # a broker that failed
FIRST_ENDS_S = 0.5
FAILURE_PAUSE_S = 0.1
IDLE_PAUSE_S = 0.02  # after growth that nobody waited for: a busy topic must not keep the loop busy
UNKNOWN = -1


class Watches:
    def __init__(self, caller: AsyncCaller, topics: Topics, log: Log, *, max_waiters: int) -> None:
        """`caller` for this alone: long waits must not take the connections of others."""
        self._caller = caller
        self._topics = topics
        self._log = log
        self._max_waiters = max_waiters
        self._waiting = 0
        self._watches: dict[str, _Watch] = {}
        self._stopped = asyncio.Event()

    @property
    def stopping(self) -> bool:
        return self._stopped.is_set()

    def known(self, topic: TopicRecord, partitions: Iterable[int]) -> dict[int, int]:
        """Ends that were true a moment ago; UNKNOWN of those that are not watched."""
        watch = self._watches.get(topic["topic_id"])
        return {p: UNKNOWN if watch is None else watch.ends.get(p, UNKNOWN) for p in partitions}

    async def ends(self, topic: TopicRecord, partitions: Iterable[int], deadline_s: float) -> dict[int, int]:
        """As `known`, after beginning to watch where nobody did. A partition that nobody can tell of stays UNKNOWN."""
        wanted = list(partitions)
        deadline_s = min(deadline_s, asyncio.get_running_loop().time() + FIRST_ENDS_S)
        while missing := [p for p, end in self.known(topic, wanted).items() if end == UNKNOWN]:
            if not await self.grown(topic, dict.fromkeys(missing, UNKNOWN), deadline_s):
                break
        return self.known(topic, wanted)

    async def grown(
        self, topic: TopicRecord, beyond: Mapping[int, int], deadline_s: float, client: Client | None = None
    ) -> bool:
        """Returns once a partition's end lies beyond the offset given for it; False when time is up or nobody waits."""
        if self.stopping:
            return False
        if self._waiting >= self._max_waiters:
            raise Overloaded("as many requests wait for messages as this server takes", retry_after_s=1)
        watch = self._watches.get(topic["topic_id"])
        if watch is None:
            watch = self._watches[topic["topic_id"]] = _Watch(self, topic)
        self._waiting += 1
        try:
            return await watch.grown(beyond, deadline_s, client)
        finally:
            self._waiting -= 1

    async def pause(self, deadline_s: float, client: Client) -> None:
        """For who waits, but not for messages: cut short when the process stops or the client has left."""
        stopped = asyncio.create_task(self._stopped.wait())
        await first_of({stopped, client.leaving}, deadline_s)
        stopped.cancel()

    async def ask(self, endpoint: str, request: WaitRequest) -> WaitAnswer:
        answer: WaitAnswer = await self._caller.json(
            internal.WAIT.method,
            endpoint + internal.WAIT.path,
            request,
            timeout_s=request["wait_ms"] / 1000 + ANSWER_SLACK_S,
        )
        return answer

    async def again(self, topic: TopicRecord, *, fresh: bool) -> TopicRecord | None:
        """The record as it is now; None when the topic is gone."""
        try:
            record = await self._topics.topic(topic["name"], fresh=fresh)
        except TopicNotFound:
            return None
        except MyQueueError as error:
            self._log.info("watching on by what was known", topic=topic["name"], why=error.message)
            return topic
        return record if record["topic_id"] == topic["topic_id"] else None

    def unanswered(self, endpoint: str, error: MyQueueError) -> None:
        """A broker that is away is no news: heartbeats and its callers tell of it."""
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
        """Everybody answers now."""
        self._stopped.set()
        for watch in list(self._watches.values()):
            watch.stop()


async def first_of(futures: "set[asyncio.Future[Any]]", deadline_s: float) -> None:
    """Waits for any of them, or until time is up."""
    left_s = deadline_s - asyncio.get_running_loop().time()
    await asyncio.wait(futures, timeout=max(0.0, left_s), return_when=asyncio.FIRST_COMPLETED)


class _Waiter:
    __slots__ = ("beyond", "woken")

    def __init__(self, beyond: Mapping[int, int], woken: "asyncio.Future[bool]") -> None:
        self.beyond = beyond
        self.woken = woken


class _Watch:
    """One topic: its ends as far as known, who waits for what, and one task per broker."""

    def __init__(self, watches: Watches, topic: TopicRecord) -> None:
        self._watches = watches
        self._topic = topic
        self._waiters: dict[int, set[_Waiter]] = {}  # by partition
        self._wanted_s: dict[int, float] = {}  # when a partition was last waited for
        self._avoided_s: dict[tuple[int, str], float] = {}  # partition and endpoint -> until when
        self._tasks: dict[str, asyncio.Task[None]] = {}  # by endpoint
        self._watched: dict[str, set[int]] = {}  # by endpoint: partitions of the wait under way
        self._changed: dict[str, asyncio.Event] = {}
        self.ends: dict[int, int] = {}

    async def grown(self, beyond: Mapping[int, int], deadline_s: float, client: Client | None) -> bool:
        loop = asyncio.get_running_loop()
        waiter = _Waiter(beyond, loop.create_future())
        for p in beyond:
            self._waiters.setdefault(p, set()).add(waiter)
        self._wanted_s |= dict.fromkeys(beyond, loop.time())
        try:
            # Ends of partitions that nobody has watched of late may be old, but they only grow.
            if self._passed(waiter):
                return True
            self._watch(beyond)
            leaving = () if client is None else (client.leaving,)
            await first_of({waiter.woken, *leaving}, deadline_s)
            return waiter.woken.done() and waiter.woken.result()
        finally:
            self._wanted_s |= dict.fromkeys(beyond, loop.time())
            for p in beyond:
                self._waiters[p].discard(waiter)

    def _passed(self, waiter: _Waiter) -> bool:
        return any(self.ends.get(p, UNKNOWN) > offset for p, offset in waiter.beyond.items())

    def _watch(self, partitions: Iterable[int]) -> None:
        """Sees to it that a task watches each of them."""
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
        """The leader's, unless it failed just now; empty when nobody who holds it is alive."""
        endpoints = self._topic["partitions"][partition_id]["endpoints"]
        good = [e for e in endpoints if self._avoided_s.get((partition_id, e), 0.0) <= now_s]
        return (good or endpoints or [""])[0]

    def _waited_for(self) -> set[int]:
        return {p for p, waiters in self._waiters.items() if not all(waiter.woken.done() for waiter in waiters)}

    def _interesting(self, endpoint: str, now_s: float) -> list[int]:
        recent = {p for p, wanted_s in self._wanted_s.items() if now_s - wanted_s < LINGER_S}
        return [p for p in self._waited_for() | recent if self._endpoint(p, now_s) == endpoint]

    async def _follow(self, endpoint: str) -> None:
        """Until nobody waits for a partition of this broker any more."""
        loop = asyncio.get_running_loop()
        while partitions := self._interesting(endpoint, loop.time()):
            failed, woken = await self._wait_at(endpoint, partitions)
            until_s = loop.time() + AVOID_S
            self._avoided_s.update({(p, endpoint): until_s for p in failed})
            record = await self._watches.again(self._topic, fresh=bool(failed))
            if record is None:
                self._wake_all(True)  # who asks again is told
                return
            self._topic = record
            if failed:
                await asyncio.sleep(FAILURE_PAUSE_S)
            elif not woken and not self._changed[endpoint].is_set():
                await asyncio.sleep(IDLE_PAUSE_S)
            # The record may say that others hold what is waited for here.
            self._watch(self._waited_for())

    async def _wait_at(self, endpoint: str, partitions: list[int]) -> tuple[list[int], bool]:
        """One long wait: the partitions that this broker could not tell of, and whether anybody was woken."""
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
        asking = asyncio.create_task(self._watches.ask(endpoint, request))
        interrupt = asyncio.create_task(changed.wait())
        try:
            await asyncio.wait({asking, interrupt}, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                return [], True  # somebody waits for another partition here: ask anew
            grown = asking.result()["grown"]
        except MyQueueError as error:
            self._watches.unanswered(endpoint, error)
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
                # It runs later than this task goes on, and looks at the ends then.
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
            self._watches.failed(self._topic, error)
        elif (waited_for := self._waited_for()) and not self._watches.stopping:
            self._watch(waited_for)  # somebody came while it ended
        if not self._tasks:
            self._watches.forget(self._topic["topic_id"])

    def stop(self) -> None:
        self._wake_all(False)
        for task in list(self._tasks.values()):
            task.cancel()
