"""Reads the current topics of a subscription, and where their partitions begin and end."""

import time
from collections.abc import Container, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

from myqueue.protocol import routes
from myqueue.protocol.errors import NoTopics, PartitionNotFound, TopicNotFound
from myqueue.spark.offsets import OffsetBounds, OffsetSnapshot, TopicBounds, TopicPartition
from myqueue.spark.options import Subscription
from myqueue.transport import Transport

THREADS = 8  # concurrent requests
STALE_METADATA_S = 2.0  # read managers do not list a deleted topic for longer than this


class OffsetReader:
    def __init__(self, transport: Transport, subscription: Subscription, *, timeout_s: float) -> None:
        self._transport = transport
        self._subscription = subscription
        self._timeout_s = timeout_s

    def snapshot(self, known: Mapping[str, str] | None = None) -> OffsetSnapshot:
        """Offset bounds of all subscribed partitions of topics that exist.

        `known` are earlier topic ids. A read manager's metadata may be stale: another id counts only when it lasts, and
        a known topic that is not listed is looked up by its name, which is never stale.
        """
        before = known or {}
        names = sorted({*self._names(), *filter(self._subscription.includes, before)})
        with ThreadPoolExecutor(min(THREADS, max(1, len(names))), thread_name_prefix="myqueue-snapshot") as pool:
            found = pool.map(lambda topic: self._bounds(topic, before.get(topic)), names)
            return {topic: bounds for topic, bounds in zip(names, found, strict=True) if bounds is not None}

    def require(self, present: Container[str]) -> None:
        """Raises TopicNotFound if a topic that is subscribed to by its name is not present."""
        for topic in self._subscription.topics:
            if topic not in present:
                raise TopicNotFound(f"option {self._subscription.option}: there is no topic {topic!r}")

    def offset_at(self, tp: TopicPartition, ms: int) -> int | None:
        """The first offset appended at this time or later; None if there is none."""
        topic, partition = tp
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
        """From the leaders; None if there is no such topic."""
        doubted_until = time.monotonic() + STALE_METADATA_S
        while True:
            try:
                body = self._transport.call(
                    routes.TOPIC_OFFSETS, path={"topic": topic}, deadline_s=self._timeout_s
                ).body
            except TopicNotFound:
                return None
            if known_id in (None, body["topic_id"]) or time.monotonic() >= doubted_until:
                return TopicBounds(body["topic_id"], self._wanted(topic, body["partitions"]))
            time.sleep(STALE_METADATA_S / 10)

    def _wanted(self, topic: str, entries: Iterable[dict[str, int]]) -> dict[int, OffsetBounds]:
        present = {
            entry["partition_id"]: OffsetBounds(entry["beginning_offset"], entry["end_offset"]) for entry in entries
        }
        assigned = self._subscription.partitions
        if assigned is None:
            return present
        for partition in assigned[topic]:
            if partition not in present:
                raise PartitionNotFound(
                    f"option {self._subscription.option}: topic {topic!r} has no partition {partition}; "
                    f"it has {len(present)}, from 0 on"
                )
        return {partition: present[partition] for partition in assigned[topic]}
