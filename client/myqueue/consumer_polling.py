"""The application's calls that ask for messages: they wait, run the callbacks of rebalances, and are a sign of life."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Self, TypeVar

from myqueue.consumer_waits import Waits, deadline_of
from myqueue.decoding import Chunk
from myqueue.error_subjects import name_topic
from myqueue.fetcher import ChangeCondition, Fetcher
from myqueue.lease_renewer import FIRST_LEASE_S
from myqueue.poll_interval import PollInterval
from myqueue.protocol.errors import ConsumerNotFound, MyQueueError, StaleLease, TopicNotFound
from myqueue.subscription_state import InFlight, PartitionState
from myqueue.topic_consumer import TopicConsumer
from myqueue.topic_discovery import TopicDiscovery
from myqueue.topic_subscription import TopicRotation

T = TypeVar("T")

Run = Callable[[Coroutine[Any, Any, Any]], Coroutine[Any, Any, Any]]


class Polling:
    """`async with` it around a call: for as long as that lasts, the application does not stay away."""

    def __init__(
        self,
        waits: Waits,
        topics: TopicRotation[TopicConsumer],
        interval: PollInterval,
        changed: ChangeCondition,
        *,
        retry_deadline_s: float,
        has_callbacks: bool,
        names_topics: bool,
        discovery: TopicDiscovery | None,
        run: Run,
    ) -> None:
        """`names_topics`: errors say which topic it is. `discovery`: topics come and go while they are read. `run` runs
        a coroutine in the background thread."""
        self.is_stopping = False
        self._waits = waits
        self._topics = topics
        self._interval = interval
        self._changed = changed
        self._retry_deadline_s = retry_deadline_s
        self._has_callbacks = has_callbacks
        self._names_topics = names_topics
        self._discovery = discovery
        self._run = run

    async def __aenter__(self) -> Self:
        """Raises MaxPollIntervalExceeded once, after `on_lost`, and joins again."""
        for topic in self._topics.waiting:
            topic.listener.check()
        if self._discovery is not None:
            self._discovery.check()
        with self._changed:
            error = self._interval.enter(time.monotonic())
            if error is not None:
                for topic in self._topics.waiting:
                    topic.wake_renewer()
        if error is not None:
            await self._run_callbacks()
            raise error
        return self

    async def __aexit__(self, *_: object) -> None:
        with self._changed:
            self._interval.leave(time.monotonic())

    async def next_chunks(self, max_messages: int, timeout: float | None) -> list[InFlight]:
        """Waits until there is something, and takes what is there then: nothing is awaited after it was taken."""
        async with self:
            with self._changed:
                self.recall_in_flight()
            deadline = deadline_of(timeout)
            handed: list[InFlight] = []
            while not handed and await self.ask_for_more(deadline):
                with self._changed:
                    handed = self._hand_out(max_messages)
        return handed

    def _hand_out(self, max_messages: int) -> list[InFlight]:
        """Called with the lock held."""
        handed: list[InFlight] = []
        taken_bytes: dict[TopicConsumer, int] = {}
        left = max_messages
        while left > 0 and (taken := self.take(time.monotonic())) is not None:
            topic, state, chunk = taken
            if chunk.count > left:
                topic.subscription.put_back(state, chunk.rest(left))
                chunk = chunk.start(left)
            handed.append(topic.subscription.hand_out(state, chunk, None))
            taken_bytes[topic] = taken_bytes.get(topic, 0) + chunk.size
            left -= chunk.count
        for topic, size in taken_bytes.items():
            topic.refill(size)
        return handed

    def take(self, now: float) -> tuple[TopicConsumer, PartitionState, Chunk] | None:
        """The next chunk, from the topics in turn; the lock is held."""
        if self.is_stopping:
            return None
        for topic in self._topics.waiting:
            taken = topic.subscription.take(now)
            if taken is not None:
                self._topics.served(topic)
                return topic, *taken
        return None

    def recall_in_flight(self) -> None:
        """Called with the lock held."""
        for topic in self._topics.waiting:
            topic.subscription.recall_in_flight()

    async def ask_for_more(self, deadline: float | None) -> bool:
        """Marks messages in flight as handled, and waits for more; raises errors that lasted too long.

        Without a deadline it asks the cluster whether there is something. False if there is nothing, or it is closed.
        """
        while True:
            with self._changed:
                self.raise_commit_error()
                for topic in self._topics.waiting:
                    if topic.subscription.finish_in_flight():
                        topic.wake_renewer()
            await self._run_callbacks()
            has_more = await self._await_more(deadline)
            with self._changed:
                if self.is_stopping or not self._is_rebalance_due():
                    return has_more

    def check_member(self) -> None:
        """Called with the lock held: what was read before the member had to leave is not its own to commit any more."""
        if (error := self._interval.error(time.monotonic())) is not None:
            raise StaleLease(error.message)

    def raise_commit_error(self) -> None:
        """Called with the lock held."""
        for topic in self._topics.waiting:
            if topic.errors.commit is not None and (error := topic.errors.take_commit_error()) is not None:
                raise self._named(error, topic)

    async def _run_callbacks(self) -> None:
        if not self._has_callbacks:
            return
        for topic in self._topics.waiting:
            await topic.listener.run_due()
        if self._discovery is not None:
            await self._discovery.run_last_callbacks()

    async def _await_more(self, deadline: float | None) -> bool:
        """Returns early when callbacks are due."""
        if deadline is not None:
            return await self._until(self._is_ready, deadline)
        retry_deadline = time.monotonic() + self._retry_deadline_s
        await self._until(lambda: all(topic.subscription.known for topic in self._topics.waiting), retry_deadline)
        with self._changed:
            if self.is_stopping or self._is_ready() or self._is_rebalance_due():
                return not self.is_stopping
            without = [topic for topic in self._topics.waiting if len(topic.subscription) == 0]
        if without:
            held = await self._ask(without, TopicConsumer.all_held_by_others)
            to_come = [topic for topic, by_others in held if not by_others]
            await self._until(
                lambda: self._is_ready() or all(len(topic.subscription) > 0 for topic in to_come),
                time.monotonic() + 2 * FIRST_LEASE_S,
            )
        ends = await self._ask([*self._topics], TopicConsumer.end_offsets)
        await self._until(
            lambda: self._is_ready() or all(topic.subscription.fetched_all(its_ends) for topic, its_ends in ends),
            retry_deadline,
        )
        with self._changed:
            return not self.is_stopping and self._is_ready()

    async def _ask(
        self, topics: Sequence[TopicConsumer], ask: Callable[[TopicConsumer], Coroutine[Any, Any, T]]
    ) -> list[tuple[TopicConsumer, T]]:
        """What the cluster answers for each of them; those that are gone by now are left out."""

        async def ask_all() -> list[T | BaseException]:
            return await asyncio.gather(*map(ask, topics), return_exceptions=True)

        answers: list[tuple[TopicConsumer, T]] = []
        for topic, answer in zip(topics, await self._run(ask_all()), strict=True):
            if not isinstance(answer, BaseException):
                answers.append((topic, answer))
                continue
            with self._changed:
                if not self.is_gone(topic, answer):
                    raise answer
        return answers

    def is_gone(self, topic: TopicConsumer, error: BaseException) -> bool:
        """Whether the error is no more than the end of a topic that a pattern had found; the lock is held."""
        if self._discovery is None or not isinstance(error, TopicNotFound | ConsumerNotFound):
            return False
        self._discovery.topic_is_gone(topic, error)
        return True

    def _is_ready(self) -> bool:
        now = time.monotonic()
        for topic in self._topics.waiting:  # noqa: SIM110 # for each batch: several times faster than any()
            if topic.subscription.ready(now):
                return True
        return False

    def _is_rebalance_due(self) -> bool:
        if not self._has_callbacks:
            return False
        if self._discovery is not None and self._discovery.has_last_callbacks():
            return True
        return any(topic.subscription.is_rebalance_due() for topic in self._topics.waiting)

    async def _until(self, condition: Callable[[], bool], deadline: float) -> bool:
        """Whether the condition came true, or callbacks became due, before the deadline and before `close`.

        Raises gaps and overdue errors.
        """

        def checked() -> bool:
            for topic in self._topics.waiting:
                if topic.subscription.finish_in_flight():
                    topic.wake_renewer()
                for state in topic.subscription:
                    if state.gap is not None and not state.chunks:
                        gap, state.gap = state.gap, None
                        topic.wake_fetcher()
                        raise self._named(gap, topic)
            return condition() or self._is_rebalance_due()

        return await self._waits.wait_for(self, self._changed, checked, deadline)

    def _named(self, error: MyQueueError, topic: TopicConsumer) -> MyQueueError:
        if self._names_topics:
            name_topic(error, topic.topic)
        return error

    # Of `Waited`; the last two are called with the lock held

    @property
    def fetcher(self) -> Fetcher | None:
        """Where there is one topic."""
        for topic in self._topics.waiting:
            return topic.fetcher
        return None

    def overdue(self, now: float) -> MyQueueError | None:
        for topic in self._topics.waiting:
            error = topic.errors.overdue(now)
            if error is not None and not self.is_gone(topic, error):
                return self._named(error, topic)
        return None if self._discovery is None else self._discovery.errors.overdue(now)

    def next_overdue(self) -> float | None:
        errors = [topic.errors for topic in self._topics.waiting]
        if self._discovery is not None:
            errors.append(self._discovery.errors)
        return min((at for each in errors if (at := each.next_overdue()) is not None), default=None)
