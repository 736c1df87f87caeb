"""Reads the current topics of a subscription, and where their partitions begin and end."""

import logging
import time
from collections.abc import Container, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

from myqueue.protocol import routes
from myqueue.protocol.errors import NoTopics, PartitionNotFound, TopicNotFound, Unavailable
from myqueue.spark.offsets import OffsetBounds, OffsetSnapshot, TopicBounds, TopicPartition
from myqueue.spark.options import Subscription
from myqueue.transport import Transport

logger = logging.getLogger("myqueue")

THREADS = 8  # concurrent requests
ELECTION_S = 5.0  # after this, a partition without a leader is left out, if it may be
STALE_METADATA_S = 2.0  # read managers do not list a deleted topic for longer than this


class OffsetReader:
    def __init__(
        self, transport: Transport, subscription: Subscription, *, timeout_s: float, fail_on_no_leader: bool = True
    ) -> None:
        self._transport = transport
        self._subscription = subscription
        self._timeout_s = timeout_s
        self._fail_on_no_leader = fail_on_no_leader
        self._election_s = timeout_s if fail_on_no_leader else min(timeout_s, ELECTION_S)

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
                    routes.TOPIC_OFFSETS, path={"topic": topic}, deadline_s=self._election_s
                ).body
            except TopicNotFound:
                return None
            except Unavailable:  # the last attempt may end before the answer that there is no leader
                if self._fail_on_no_leader:
                    raise
                return self._bounds_that_are_known(topic)
            if known_id in (None, body["topic_id"]) or time.monotonic() >= doubted_until:
                return TopicBounds(body["topic_id"], self._wanted(topic, body["partitions"]))
            time.sleep(STALE_METADATA_S / 10)

    def _bounds_that_are_known(self, topic: str) -> TopicBounds | None:
        """Of the partitions that have a leader."""
        path: dict[str, str | int] = {"topic": topic}
        try:
            topic_id: str = self._transport.call(routes.DESCRIBE_TOPIC, path=path, deadline_s=self._timeout_s).body[
                "topic_id"
            ]
            listed = self._transport.call(routes.LIST_PARTITIONS, path=path, deadline_s=self._timeout_s).body
        except TopicNotFound:
            return None
        led = [entry for entry in listed["partitions"] if entry["leader"] is not None]
        leaderless = frozenset(entry["partition_id"] for entry in listed["partitions"] if entry["leader"] is None)
        for partition in sorted(leaderless):
            logger.warning("%s/%d has no leader: it is read later", topic, partition)
        return TopicBounds(topic_id, self._wanted(topic, led, leaderless), leaderless)

    def _wanted(
        self, topic: str, entries: Iterable[dict[str, int]], leaderless: frozenset[int] = frozenset()
    ) -> dict[int, OffsetBounds]:
        present = {
            entry["partition_id"]: OffsetBounds(entry["beginning_offset"], entry["end_offset"]) for entry in entries
        }
        assigned = self._subscription.partitions
        if assigned is None:
            return present
        for partition in assigned[topic]:
            if partition not in present and partition not in leaderless:
                raise PartitionNotFound(
                    f"option {self._subscription.option}: topic {topic!r} has no partition {partition}; "
                    f"it has {len(present) + len(leaderless)}, from 0 on"
                )
        return {partition: present[partition] for partition in assigned[topic] if partition in present}
