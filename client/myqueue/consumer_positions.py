"""Commits, seeks and lag of a consumer: one call, fanned out to its topics."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from myqueue.commit_queue import check_read
from myqueue.consumer_polling import Polling
from myqueue.descriptions import Lag, sum_of_lags
from myqueue.error_subjects import name_topic
from myqueue.protocol.errors import MyQueueError, StaleLease
from myqueue.start_position import Start, seek_position
from myqueue.topic_consumer import TopicConsumer
from myqueue.topic_subscription import (
    EVERYTHING,
    Committed,
    Everything,
    Offsets,
    Partition,
    TopicRotation,
    TopicSubscription,
)

T = TypeVar("T")


class Positions:
    def __init__(
        self,
        subscribed: TopicSubscription,
        topics: TopicRotation[TopicConsumer],
        polling: Polling,
        lock: threading.Lock,
        run: Callable[[Coroutine[Any, Any, Any]], Coroutine[Any, Any, Any]],
    ) -> None:
        """`run` runs a coroutine in the background thread."""
        self._subscribed = subscribed
        self._topics = topics
        self._polling = polling
        self._lock = lock
        self._run = run

    def topic(self, name: str) -> TopicConsumer:
        topic = self._topics.get(name)
        if topic is None:
            raise StaleLease(f"topic {name!r} is not read, or no longer", details={"topic": name})
        return topic

    async def commit(self, what: Committed, *, wait: bool) -> Offsets:
        with self._lock:
            self._polling.raise_commit_error()
            offsets = self._to_commit(what)
            if not wait:
                for name, its_offsets in offsets.items():
                    self.topic(name).commit_later(its_offsets)
                return self._subscribed.keyed(offsets)
            topics = {name: self.topic(name) for name in offsets}
            if what is EVERYTHING and len(topics) > 1:
                # No request where nothing was read since the last commit.
                topics = {name: topic for name, topic in topics.items() if topic.is_ahead(offsets[name])}
        committed = await self._of_each({name: topic.commit(offsets[name]) for name, topic in topics.items()})
        return self._subscribed.keyed(offsets | committed)

    def _to_commit(self, what: Committed) -> dict[str, dict[int, int]]:
        """By topic; without a name, past everything that was handed out. The lock is held."""
        if isinstance(what, Mapping):
            return self._subscribed.offsets_by_topic(what)
        self._polling.check_member()
        if isinstance(what, Everything):
            return {topic.topic: topic.subscription.handled(include_in_flight=True) for topic in self._topics}
        offsets = self._subscribed.offsets_behind(what)
        for name, its_offsets in offsets.items():
            try:
                check_read(its_offsets, self.topic(name).subscription)
            except StaleLease as error:
                if not self._subscribed.by_number:
                    name_topic(error, name)
                raise
        return offsets

    async def seek(self, partition: Partition | None, to: int | Start) -> Offsets:
        if partition is None:
            body: dict[str, Any] = {"to": seek_position(to, None)}
            topics = list(self._topics)
        else:
            name, number = self._subscribed.resolve(partition)
            body = {"to": seek_position(to, number), "partition_id": number}
            topics = [self.topic(name)]
        return self._subscribed.keyed(await self._of_each({topic.topic: topic.seek(body) for topic in topics}))

    async def size(self) -> int:
        return sum((await self._of_each({topic.topic: topic.size() for topic in self._topics})).values())

    async def lag(self) -> Lag:
        lags = await self._of_each({topic.topic: topic.lag() for topic in self._topics})
        return sum_of_lags(lags.values(), self._subscribed.keyed({name: lag.partitions for name, lag in lags.items()}))

    async def _of_each(self, calls: Mapping[str, Coroutine[Any, Any, T]]) -> dict[str, T]:
        answers: dict[str, T] = await self._run(of_each(calls, names_topics=not self._subscribed.by_number))
        return answers


async def of_each(calls: Mapping[str, Coroutine[Any, Any, T]], *, names_topics: bool = False) -> dict[str, T]:
    """Runs a call of each topic at the same time; the results by topic. All have ended when an error is raised."""
    if len(calls) == 1 and not names_topics:
        return {name: await call for name, call in calls.items()}
    results = await asyncio.gather(*calls.values(), return_exceptions=True)
    answers: dict[str, T] = {}
    failed: list[BaseException] = []
    for name, result in zip(calls, results, strict=True):
        if not isinstance(result, BaseException):
            answers[name] = result
            continue
        if names_topics and isinstance(result, MyQueueError):
            name_topic(result, name)
        failed.append(result)
    for other in failed[1:]:
        failed[0].add_note(f"and: {other}")
    if failed:
        raise failed[0]
    return answers
