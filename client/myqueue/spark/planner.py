"""Plans what a read or a micro-batch takes: ranges of offsets, cut into Spark's input partitions. Pure.

Messages that a query was to read and that are gone are data loss: an error, or a warning without failOnDataLoss.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from pyspark.sql.datasource import InputPartition

from myqueue.protocol.errors import MyQueueError, OffsetOutOfRange, TopicNotFound
from myqueue.spark.offsets import OffsetBounds, OffsetSnapshot, StreamOffset, TopicPartition, name_of, topic_partitions

logger = logging.getLogger("myqueue")


class TopicLost(TopicNotFound):
    """The topic that was read is deleted, even if another one has its name now."""


def deleted_by_retention(tp: TopicPartition, start: int, end: int, beginning: int) -> MyQueueError:
    return OffsetOutOfRange(
        f"{name_of(tp)}: messages {start} to {end - 1} are gone, retention has removed what is before {beginning}",
        details={"beginning_offset": beginning},
    )


def truncated(tp: TopicPartition, start: int, end: int) -> MyQueueError:
    return OffsetOutOfRange(
        f"{name_of(tp)} was read up to {start} and now ends at {end}: messages are gone",
        details={"end_offset": end},
    )


def topic_recreated(topic: str) -> TopicLost:
    return TopicLost(f"topic {topic!r} was deleted and made again: messages are gone")


def topic_deleted(topic: str) -> TopicLost:
    return TopicLost(f"topic {topic!r} was deleted: messages are gone")


def report_data_loss(loss: MyQueueError, *, fail: bool) -> None:
    """Raises it, with what can be done; without failOnDataLoss it is a line in the log, which says what is done."""
    if fail:
        advice = f"{loss.message}; set failOnDataLoss to false to go on with what is there"
        raise type(loss)(advice, details=loss.details)
    logger.warning("%s; failOnDataLoss is false: the query goes on with what is there", loss.message)


@dataclass(frozen=True)
class OffsetRange(InputPartition):
    """Messages of one partition, for one Spark task: pickled and sent to it."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int  # the first offset that is not read

    @property
    def size(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition} from {self.start} to {self.end}"


def split_ranges(ranges: Iterable[OffsetRange], at_least: int | None) -> list[OffsetRange]:
    """The ranges that are not empty; with `at_least`, large ones are split so that there are about that many."""
    filled = [range_ for range_ in ranges if range_.size > 0]
    if at_least is None or len(filled) >= at_least:
        return filled
    total = sum(range_.size for range_ in filled)
    return [piece for range_ in filled for piece in _pieces(range_, max(1, round(at_least * range_.size / total)))]


def _pieces(range_: OffsetRange, count: int) -> list[OffsetRange]:
    count = min(count, range_.size)
    edges = [range_.start + range_.size * number // count for number in range(count + 1)]
    return [replace(range_, start=start, end=end) for start, end in pairwise(edges)]


def rate_limited(waiting: Mapping[TopicPartition, int], most: int) -> dict[TopicPartition, int]:
    """How many messages of each partition go into a micro-batch of `most`, in proportion to its backlog.

    Every partition with a backlog gives at least one, so that small ones do not starve behind large ones that grow as
    fast as they are read. With more such partitions than `most` the micro-batch is larger than that.
    """
    total = sum(waiting.values())
    if total <= most:
        return dict(waiting)
    shares = {tp: most * count // total for tp, count in waiting.items()}
    small = {tp for tp, count in waiting.items() if count and not shares[tp]}
    shares |= dict.fromkeys(small, 1)
    left_over = most - sum(shares.values())
    # The rest of rounding down goes to the partitions that lost most by it; the largest give what the small ones got.
    by_loss = sorted(waiting.keys() - small, key=lambda tp: (-(most * waiting[tp] % total), tp))
    for tp in by_loss[: max(0, left_over)]:
        shares[tp] += 1
    for _ in range(-left_over):
        largest = max(shares, key=lambda tp: (shares[tp], tp))
        if shares[largest] <= 1:
            break
        shares[largest] -= 1
    return shares


@dataclass(frozen=True, slots=True)
class PlannedEnd:
    end: StreamOffset
    waiting: int  # messages, before any limit
    data_loss: tuple[MyQueueError, ...]


@dataclass(frozen=True, slots=True)
class BatchPlan:
    ranges: list[OffsetRange]
    data_loss: tuple[MyQueueError, ...]


def latest(snapshot: OffsetSnapshot) -> StreamOffset:
    """The end of every partition."""
    return StreamOffset(_topic_ids(snapshot), {tp: _bounds(tp, snapshot).end for tp in topic_partitions(snapshot)})


def next_end(
    start: StreamOffset, snapshot: OffsetSnapshot, max_messages: int | None, is_subscribed: Callable[[str], bool]
) -> PlannedEnd:
    """Where the next micro-batch ends.

    New topics and partitions are read from their beginning, and so are a recreated topic and a truncated partition.
    """
    data_loss: list[MyQueueError] = []
    for topic in sorted(start.topic_ids):
        if topic not in snapshot:
            if is_subscribed(topic):
                data_loss.append(topic_deleted(topic))
        elif start.topic_ids[topic] != snapshot[topic].topic_id:
            data_loss.append(topic_recreated(topic))
    first: dict[TopicPartition, int] = {}
    waiting: dict[TopicPartition, int] = {}
    for tp in topic_partitions(snapshot):
        bounds = _bounds(tp, snapshot)
        read = _read(start, tp, snapshot[tp[0]].topic_id)
        if read is not None and read > bounds.end:
            data_loss.append(truncated(tp, read, bounds.end))
            read = None
        first[tp] = max(bounds.beginning, read or 0)
        waiting[tp] = bounds.end - first[tp]
    counts = waiting if max_messages is None else rate_limited(waiting, max_messages)
    end = {tp: first[tp] + counts[tp] for tp in first} | _leaderless(start, snapshot)
    return PlannedEnd(StreamOffset(_topic_ids(snapshot), end), sum(waiting.values()), tuple(data_loss))


def _leaderless(start: StreamOffset, snapshot: OffsetSnapshot) -> dict[TopicPartition, int]:
    """Partitions without a leader stay where they are; one that was never read starts when it has a leader."""
    found = {}
    for topic, bounds in snapshot.items():
        for partition in bounds.leaderless:
            read = _read(start, (topic, partition), bounds.topic_id)
            if read is not None:
                found[topic, partition] = read
    return found


class TriggerDelay:
    """minOffsetsPerTrigger and maxTriggerDelay: waits for that many messages, but no longer than that. Pure."""

    def __init__(self, min_offsets: int | None, max_delay_s: float) -> None:
        self._min_offsets = min_offsets
        self._max_delay_s = max_delay_s
        self._last_s: float | None = None  # None: the first micro-batch does not wait, as with Kafka's source

    def is_due(self, waiting: int, now_s: float) -> bool:
        if self._min_offsets is None or waiting == 0:
            return True
        is_late = self._last_s is None or now_s - self._last_s >= self._max_delay_s
        if not is_late and waiting < self._min_offsets:
            return False
        self._last_s = now_s
        return True


def plan_batch(start: StreamOffset, end: StreamOffset, snapshot: OffsetSnapshot) -> BatchPlan:
    """The ranges between two offsets of a stream. The snapshot says where partitions begin now."""
    ranges: list[OffsetRange] = []
    data_loss: list[MyQueueError] = []
    for tp in sorted(end.offsets):
        topic, partition = tp
        topic_id, last = end.topic_ids[topic], end.offsets[tp]
        is_there = (
            topic in snapshot and snapshot[topic].topic_id == topic_id and partition in snapshot[topic].partitions
        )
        beginning = min(_bounds(tp, snapshot).beginning, last) if is_there else 0
        read = _read(start, tp, topic_id)
        if read is not None and read > last:
            read = None  # truncated: read again from its beginning
        if read is not None and read < beginning:
            data_loss.append(deleted_by_retention(tp, read, beginning, _bounds(tp, snapshot).beginning))
        ranges.append(OffsetRange(topic, topic_id, partition, max(beginning, read or 0), last))
    return BatchPlan(ranges, tuple(data_loss))


def _topic_ids(snapshot: OffsetSnapshot) -> dict[str, str]:
    return {topic: bounds.topic_id for topic, bounds in snapshot.items()}


def _bounds(tp: TopicPartition, snapshot: OffsetSnapshot) -> OffsetBounds:
    return snapshot[tp[0]].partitions[tp[1]]


def _read(start: StreamOffset, tp: TopicPartition, topic_id: str) -> int | None:
    """Up to where this partition was read; None if it is new or its topic was recreated."""
    return start.offsets.get(tp) if start.topic_ids.get(tp[0]) == topic_id else None
