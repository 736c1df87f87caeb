"""From sums over messages to what the statistics API takes. No IO."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

from myqueue.protocol import limits
from myqueue.protocol.models import ConsumerLagMeasure, PartitionMeasure, RunResults, TopicMinute
from spark.catalog import Extent, Place

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PartitionSums:
    """Over messages of one partition that were read together."""

    topic: str
    partition: int
    low: int  # the lowest offset
    high: int  # the highest one
    messages: int
    distinct: int  # different offsets
    bytes: int
    first_ms: int | None
    last_ms: int | None

    @property
    def gaps(self) -> int:
        return self.high + 1 - self.low - self.distinct

    @property
    def duplicates(self) -> int:
        return self.messages - self.distinct


@dataclass(frozen=True, slots=True)
class MinuteSums:
    topic: str
    minute: int
    messages: int
    bytes: int


def partition_measures(
    sums: Sequence[PartitionSums], topic_ids: Mapping[str, UUID], extents: Mapping[Place, Extent]
) -> list[PartitionMeasure]:
    """One for every partition that is known or was read, in order.

    `topic_ids` are those of the topics that were read: one that was made again since is another topic in `extents`.
    """
    read = {Place(each.topic, each.partition, topic_ids[each.topic]): each for each in sums}
    return [_measure(place, extents.get(place), read.get(place)) for place in sorted({*extents, *read})]


def _measure(place: Place, extent: Extent | None, read: PartitionSums | None) -> PartitionMeasure:
    if read is None:
        assert extent is not None
        return PartitionMeasure(
            topic=place.topic,
            topic_id=place.topic_id,
            partition_id=place.partition,
            beginning_offset=extent.beginning,
            end_offset=extent.end,
        )
    end = read.high + 1
    return PartitionMeasure(
        topic=place.topic,
        topic_id=place.topic_id,
        partition_id=place.partition,
        from_offset=read.low,
        to_offset=end,
        messages=read.messages,
        bytes=read.bytes,
        first_timestamp=read.first_ms,
        last_timestamp=read.last_ms,
        gaps=read.gaps,
        duplicates=read.duplicates,
        # Nobody could say: then nothing is known to be removed, and it ends where reading ended.
        beginning_offset=0 if extent is None else extent.beginning,
        end_offset=end if extent is None else max(extent.end, end),
    )


def topic_minutes(sums: Sequence[MinuteSums], topic_ids: Mapping[str, UUID]) -> list[TopicMinute]:
    """In order, so that a batch that is read again is cut into the same parts."""
    return [
        TopicMinute(
            topic=each.topic,
            topic_id=topic_ids[each.topic],
            minute=each.minute,
            messages=each.messages,
            bytes=each.bytes,
        )
        for each in sorted(sums, key=lambda each: (each.topic, each.minute))
    ]


def posts(
    *,
    query_id: str | None = None,
    batch_id: int | None = None,
    replace: bool = False,
    partitions: Sequence[PartitionMeasure] = (),
    topics: Sequence[TopicMinute] = (),
    consumers: Sequence[ConsumerLagMeasure] = (),
) -> Iterator[RunResults]:
    """One post, or as many as the API's limits ask for; at least one, which says that there was a run."""
    of_partitions = _slices(partitions, limits.MAX_MEASURED_PARTITIONS)
    of_topics = _slices(topics, limits.MAX_MEASURED_MINUTES)
    of_consumers = _slices(consumers, limits.MAX_MEASURED_LAGS)
    for part in range(max(1, len(of_partitions), len(of_topics), len(of_consumers))):
        yield RunResults(
            query_id=query_id,
            batch_id=batch_id,
            part=part,
            replace=replace,
            partitions=of_partitions.get(part, []),
            topics=of_topics.get(part, []),
            consumers=of_consumers.get(part, []),
        )


def _slices(items: Sequence[T], size: int) -> dict[int, list[T]]:
    return {part: list(items[part * size : (part + 1) * size]) for part in range(-(-len(items) // size))}
