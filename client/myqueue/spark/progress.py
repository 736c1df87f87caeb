"""How far a streaming query is behind, from the progress that Spark reports of it.

Spark takes metrics of a source from Java only, so they are computed here, in the driver.
"""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from myqueue.protocol.errors import InvalidRequest
from myqueue.spark.offsets import StreamOffset, TopicPartition

logger = logging.getLogger("myqueue")


@dataclass(frozen=True, slots=True)
class OffsetsBehindLatest:
    """Over the partitions of a query, at the end of a micro-batch: how many messages it has not read yet."""

    min: int
    avg: float
    max: int
    total: int


def behind(end: StreamOffset, latest: StreamOffset) -> OffsetsBehindLatest | None:
    """None if there is no partition. A topic that was recreated since counts from its beginning."""
    each = [
        max(0, last - (end.offsets.get(tp, 0) if end.topic_ids.get(tp[0]) == latest.topic_ids.get(tp[0]) else 0))
        for tp, last in latest.offsets.items()
    ]
    return OffsetsBehindLatest(min(each), sum(each) / len(each), max(each), sum(each)) if each else None


def offsets_behind_latest(progress: StreamingQueryProgress) -> OffsetsBehindLatest | None:
    """Over all sources of the query that read topics; None if there is none, or nothing is known yet."""
    topic_ids: tuple[dict[str, str], dict[str, str]] = ({}, {})
    offsets: tuple[dict[TopicPartition, int], dict[TopicPartition, int]] = ({}, {})
    for number, source in enumerate(progress.sources):
        read = (_offset_in(source.endOffset), _offset_in(source.latestOffset))
        for at, found in enumerate(read):
            if found is not None and None not in read:
                topic_ids[at].update((f"{number}/{topic}", each) for topic, each in found.topic_ids.items())
                offsets[at].update(((f"{number}/{topic}", p), each) for (topic, p), each in found.offsets.items())
    end, latest = map(StreamOffset, topic_ids, offsets)
    return behind(end, latest)


def _offset_in(text: str | None) -> StreamOffset | None:
    """None if it is the offset of another source: Spark does not say in its progress which one it is."""
    try:
        found = StreamOffset.from_json(json.loads(text or "null"))
    except (ValueError, AttributeError, InvalidRequest):
        return None
    return found if {topic for topic, _ in found.offsets} <= found.topic_ids.keys() and found.topic_ids else None


class OffsetsBehindListener(StreamingQueryListener):
    """`session.streams.addListener(OffsetsBehindListener(report))` calls `report` after every micro-batch of a query
    that reads topics. Without `report` it writes a line to the log of the library."""

    def __init__(self, report: Callable[[StreamingQueryProgress, OffsetsBehindLatest], None] | None = None) -> None:
        self._report = report or _log

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing is known yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        found = offsets_behind_latest(event.progress)
        if found is not None:
            self._report(event.progress, found)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing has changed since the last progress."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """The last progress was reported before."""


def _log(progress: StreamingQueryProgress, found: OffsetsBehindLatest) -> None:
    logger.info(
        "query %s, micro-batch %d: behind latest by %d messages in all (min %d, avg %.1f, max %d of a partition)",
        progress.name or progress.id,
        progress.batchId,
        found.total,
        found.min,
        found.avg,
        found.max,
    )
