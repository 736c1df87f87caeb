"""What a subscription reads right now: its topics, and where their partitions begin and end."""

import time
from collections.abc import Container, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

from myqueue.protocol import routes
from myqueue.protocol.errors import NoTopics, PartitionNotFound, TopicNotFound
from myqueue.spark.offsets import Bounds, Place, Survey, TopicBounds
from myqueue.spark.options import Subscription
from myqueue.transport import Transport

THREADS = 8  # topics asked for at the same time
DOUBT_S = 2.0  # longer than what read managers go on saying of a topic that was deleted


class Topics:
    def __init__(self, transport: Transport, subscription: Subscription, *, timeout_s: float) -> None:
        self._transport = transport
        self._subscription = subscription
        self._timeout_s = timeout_s

    def survey(self, known: Mapping[str, str] | None = None) -> Survey:
        """Bounds of all partitions that are subscribed to, of topics that are there.

        `known` are ids of topics as they were. A read manager may be a little behind: another id is believed only when
        it lasts, and a known topic that is not listed is asked for by its name, which is always answered truly.
        """
        before = known or {}
        names = sorted({*self._names(), *filter(self._subscription.includes, before)})
        with ThreadPoolExecutor(min(THREADS, max(1, len(names))), thread_name_prefix="myqueue-survey") as pool:
            found = pool.map(lambda topic: self._bounds(topic, before.get(topic)), names)
            return {topic: bounds for topic, bounds in zip(names, found, strict=True) if bounds is not None}

    def require(self, there: Container[str]) -> None:
        """Raises TopicNotFound if a topic that is subscribed to by its name is not there."""
        for topic in self._subscription.topics:
            if topic not in there:
                raise TopicNotFound(f"option {self._subscription.option}: there is no topic {topic!r}")

    def offset_at(self, place: Place, ms: int) -> int | None:
        """The first offset appended at this time or later; None if there is none."""
        topic, partition = place
        body = self._transport.call(
            routes.PARTITION_OFFSETS,
            path={"topic": topic, "partition_id": partition},
            query={"timestamp": ms},
            deadline_s=self._timeout_s,
        ).body
        offset: int | None = body["offset"]
        return offset

    def _names(self) -> tuple[str, ...]:
        if self._subscription.pattern is None:
            return self._subscription.topics
        try:
            listed: Iterable[str] = self._transport.call(routes.LIST_TOPICS, deadline_s=self._timeout_s).body["topics"]
        except NoTopics:
            return ()
        return tuple(filter(self._subscription.includes, listed))

    def _bounds(self, topic: str, known_id: str | None) -> TopicBounds | None:
        """As the leaders say; None if there is no such topic."""
        doubted_until = time.monotonic() + DOUBT_S
        while True:
            try:
                body = self._transport.call(
                    routes.TOPIC_OFFSETS, path={"topic": topic}, deadline_s=self._timeout_s
                ).body
            except TopicNotFound:
                return None
            if known_id in (None, body["topic_id"]) or time.monotonic() >= doubted_until:
                return TopicBounds(body["topic_id"], self._wanted(topic, body["partitions"]))
            time.sleep(DOUBT_S / 10)

    def _wanted(self, topic: str, entries: Iterable[dict[str, int]]) -> dict[int, Bounds]:
        there = {entry["partition_id"]: Bounds(entry["beginning_offset"], entry["end_offset"]) for entry in entries}
        assigned = self._subscription.partitions
        if assigned is None:
            return there
        for partition in assigned[topic]:
            if partition not in there:
                raise PartitionNotFound(
                    f"option {self._subscription.option}: topic {topic!r} has no partition {partition}; "
                    f"it has {len(there)}, from 0 on"
                )
        return {partition: there[partition] for partition in assigned[topic]}
