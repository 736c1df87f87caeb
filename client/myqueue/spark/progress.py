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

from myqueue.spark.offsets import StreamOffset

logger = logging.getLogger("myqueue")

_SOURCE = "myqueue"  # as Spark describes it in a query's progress


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
    end: tuple[dict[str, str], dict[tuple[str, int], int]] = ({}, {})
    latest: tuple[dict[str, str], dict[tuple[str, int], int]] = ({}, {})
    for number, source in enumerate(progress.sources):
        if source.description != _SOURCE or source.latestOffset in (None, "null"):
            continue
        for text, (ids, offsets) in ((source.endOffset, end), (source.latestOffset, latest)):
            read = StreamOffset.from_json(json.loads(text))
            ids.update((f"{number}:{topic}", topic_id) for topic, topic_id in read.topic_ids.items())
            offsets.update(((f"{number}:{topic}", part), offset) for (topic, part), offset in read.offsets.items())
    return behind(StreamOffset(*end), StreamOffset(*latest))


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
