"""Which topics a pattern matches: the background thread lists topics now and then, and joins and leaves them."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

from myqueue.argument_checks import WrongValue
from myqueue.async_transport import AsyncTransport
from myqueue.background_errors import BackgroundErrors
from myqueue.fetcher import ChangeCondition
from myqueue.io_thread import IoThread
from myqueue.protocol import routes
from myqueue.protocol.errors import MyQueueError, NoTopics, TopicNotFound
from myqueue.topic_consumer import TopicConsumer
from myqueue.topic_subscription import TopicRotation, TopicSubscription

logger = logging.getLogger("myqueue")

DEFAULT_METADATA_MAX_AGE_S = 5.0
LISTING = 0  # the key of errors of listing and joining
# A read manager may be behind: a topic that was just joined is missing in a list, and one that was deleted is in it.
ABSENCES = 2  # lists in a row that a topic has to be missing in


async def list_topics(calls: AsyncTransport) -> list[str]:
    try:
        names: list[str] = (await calls.call(routes.LIST_TOPICS)).body["topics"]
    except NoTopics:
        return []
    return names


class TopicDiscovery:
    """A task of the background thread, in which coroutines run unless they say otherwise."""

    def __init__(
        self,
        subscription: TopicSubscription,
        topics: TopicRotation[TopicConsumer],
        changed: ChangeCondition,
        *,
        max_age_s: float,
        retry_deadline_s: float,
        join: Callable[[str], Coroutine[Any, Any, None]],
        share_prefetch: Callable[[], None],
    ) -> None:
        """`join` adds a topic; `share_prefetch` is called with the lock held when one has gone."""
        if not max_age_s > 0:
            raise WrongValue(f"metadata_max_age_s must be more than 0, not {max_age_s!r}")
        self.errors = BackgroundErrors(retry_deadline_s)  # of listing and joining
        self.skipped = 0  # messages of topics that are gone, which retention had deleted before they were read
        self._subscription = subscription
        self._topics = topics
        self._changed = changed
        self._max_age_s = max_age_s
        self._join = join
        self._share_prefetch = share_prefetch
        self._lost: list[TopicConsumer] = []  # whose last callback is due
        self._absences: dict[str, int] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None

    async def open(self, io: IoThread, calls: AsyncTransport) -> None:
        """Joins the topics that there are."""
        self._io = io
        self._calls = calls
        await self._join_all(self._subscription.matching(await list_topics(self._calls)))

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        tasks = [*self._ending] if self._task is None else [self._task, *self._ending]
        if self._task is not None:
            self._task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._max_age_s)
            try:
                await self._refresh()
            except MyQueueError as error:
                logger.debug("topics are not listed: %s", error)
                self._record(error)
            except Exception as error:
                # The thread must survive a defect; the application gets it as an error.
                logger.exception("listing topics")
                with self._changed:
                    self.errors.fatal = MyQueueError(f"defect while listing topics: {error!r}")
                    self._changed.notify_all()

    async def _refresh(self) -> None:
        matching = self._subscription.matching(await list_topics(self._calls))
        with self._changed:
            for topic in self._absent(matching):
                self._lose(topic)
        await self._join_all(matching)
        with self._changed:
            self.errors.clear(LISTING)

    def _absent(self, matching: set[str]) -> list[TopicConsumer]:
        """The lock is held."""
        missing = [topic for topic in self._topics if topic.topic not in matching]
        self._absences = {topic.topic: self._absences.get(topic.topic, 0) + 1 for topic in missing}
        return [topic for topic in missing if self._absences[topic.topic] >= ABSENCES]

    async def _join_all(self, matching: set[str]) -> None:
        new = sorted(name for name in matching if self._topics.get(name) is None)
        results = await asyncio.gather(*map(self._join, new), return_exceptions=True)
        failed = [result for result in results if isinstance(result, BaseException)]
        for error in failed:
            if not isinstance(error, TopicNotFound):  # else it was deleted meanwhile
                raise error

    def _record(self, error: MyQueueError) -> None:
        with self._changed:
            self.errors.record(LISTING, error, time.monotonic())
            self._changed.notify_all()

    # With the lock held, from any thread

    def topic_is_gone(self, topic: TopicConsumer, error: MyQueueError) -> None:
        """Found out by another request. If there is one of this name again, the next list joins it: the topic may have
        been created anew, or only the consumer was deleted."""
        if self._topics.get(topic.topic) is topic:
            logger.info("topic %s is no longer read: %s", topic.topic, error)
            self._lose(topic)

    def has_last_callbacks(self) -> bool:
        return bool(self._lost)

    def _lose(self, topic: TopicConsumer) -> None:
        topic.lose()
        self.skipped += topic.skipped
        self._topics.remove(topic)
        self._share_prefetch()
        if topic.subscription.is_rebalance_due():
            self._lost.append(topic)
        self._io.call_soon(self._end, topic)
        self._changed.notify_all()

    def _end(self, topic: TopicConsumer) -> None:
        task = asyncio.get_running_loop().create_task(topic.end_lost())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    # In the application's thread

    def check(self) -> None:
        """Raises inside one of the last callbacks."""
        for topic in self._lost:
            topic.listener.check()

    async def run_last_callbacks(self) -> None:
        """Of topics that are gone: `on_lost`."""
        while self._lost:
            topic = self._lost[0]
            try:
                await topic.listener.run_due()
            finally:
                self._lost.remove(topic)
