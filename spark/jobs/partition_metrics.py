"""partition_metrics: offsets, messages, bytes, times and rate of every partition, and whether offsets are missing."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from uuid import UUID

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as f

from myqueue.protocol import routes
from myqueue.protocol.errors import NoTopics, TopicNotFound, Unavailable
from myqueue.protocol.models import PartitionMeasure
from myqueue.spark.options import STAGED
from myqueue.transport import Transport
from spark.incremental_query import IncrementalQuery, PlannedBatch
from spark.jobs.work import SUM_OF_BYTES, JobResult, Work, result_parts

COLUMNS = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP"
_THREADS = 8  # concurrent requests for offsets
_TOPIC_TIMEOUT_S = 5.0
_WORD_BITS = 6  # of an offset: its place in a word of 64 bits


@dataclass(frozen=True, slots=True, order=True)
class PartitionKey:
    """A partition; a topic that was deleted and created again has another id."""

    topic: str
    partition: int
    topic_id: UUID


@dataclass(frozen=True, slots=True)
class Extent:
    beginning: int
    end: int
    stored_bytes: int | None = None  # on the leader's disk; None: not asked


@dataclass(frozen=True, slots=True)
class PartitionSums:
    """Over messages of one partition."""

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


def run(work: Work) -> JobResult:
    read_new_messages(work)
    return JobResult(f"{work.run.rows:,} new messages")


def read_new_messages(work: Work) -> None:
    """Posts one micro-batch; without one, the brokers' current offsets."""
    batches = 0

    def take(messages: DataFrame, batch: PlannedBatch, query_id: str, batch_id: int) -> None:
        nonlocal batches
        sums = sums_in(per_partition(messages).collect())
        _post(work, sums, batch.topic_ids, query_id, batch_id)
        batches += 1
        work.run.rows += sum(each.messages for each in sums)

    query_id = IncrementalQuery(work.session, work.url, COLUMNS, work.checkpoint).run(work.run, take)
    if not batches:
        _post(work, [], {}, query_id, None)


def _post(
    work: Work, sums: list[PartitionSums], topic_ids: Mapping[str, UUID], query_id: str, batch_id: int | None
) -> None:
    # Query the brokers after the messages were read: the ends then lie at or behind everything that was.
    measures = partition_measures(sums, topic_ids, extents(work.calls.transport))
    work.post(result_parts(query_id=query_id, batch_id=batch_id, partitions=measures))


def per_partition(messages: DataFrame) -> DataFrame:
    """One row per partition: topic, partition, low, high, messages, distinct, bytes, first_ms, last_ms.

    Counts distinct offsets exactly, with a bitmap in words of 64 bits. A word is a number, which Spark aggregates in a
    hash table; for its own bitmaps, which are byte arrays, it would sort all messages.
    """
    words = messages.groupBy("topic", "partition", f.expr(f"shiftright(offset, {_WORD_BITS})").alias("word")).agg(
        f.expr("bit_or(shiftleft(1L, int(offset & 63)))").alias("bits"),
        f.expr("count(1)").alias("messages"),
        f.expr(SUM_OF_BYTES).alias("bytes"),
        f.expr("min(offset)").alias("low"),
        f.expr("max(offset)").alias("high"),
        f.expr("min(unix_millis(timestamp))").alias("first_ms"),
        f.expr("max(unix_millis(timestamp))").alias("last_ms"),
    )
    return words.groupBy("topic", "partition").agg(
        f.expr("min(low)").alias("low"),
        f.expr("max(high)").alias("high"),
        f.expr("sum(messages)").alias("messages"),
        f.expr("sum(bit_count(bits))").alias("distinct"),
        f.expr("sum(bytes)").alias("bytes"),
        f.expr("min(first_ms)").alias("first_ms"),
        f.expr("max(last_ms)").alias("last_ms"),
    )


def sums_in(rows: list[Row]) -> list[PartitionSums]:
    return [PartitionSums(**row.asDict()) for row in rows]


def extents(transport: Transport) -> dict[PartitionKey, Extent]:
    """Offsets of all partitions, from their leaders. Without staging topics, and topics with a leaderless partition."""
    try:
        names: list[str] = transport.call(routes.LIST_TOPICS).body["topics"]
    except NoTopics:
        return {}
    wanted = [name for name in names if not name.startswith(STAGED)]
    found: dict[PartitionKey, Extent] = {}
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="catalog") as pool:
        for extents_of_topic in pool.map(lambda name: _extents_of(transport, name), wanted):
            found |= extents_of_topic
    return found


def _extents_of(transport: Transport, topic: str) -> dict[PartitionKey, Extent]:
    try:
        body = transport.call(routes.TOPIC_OFFSETS, path={"topic": topic}, deadline_s=_TOPIC_TIMEOUT_S).body
    except (TopicNotFound, Unavailable):
        return {}  # deleted since it was listed, or without a leader: the other topics must not wait for it
    return {
        PartitionKey(topic, entry["partition_id"], UUID(body["topic_id"])): Extent(
            entry["beginning_offset"], entry["end_offset"], entry.get("stored_bytes")
        )
        for entry in body["partitions"]
    }


def partition_measures(
    sums: Sequence[PartitionSums], topic_ids: Mapping[str, UUID], extents: Mapping[PartitionKey, Extent]
) -> list[PartitionMeasure]:
    """One for every partition that is known or was read, in order.

    `topic_ids` are those that were read: a topic that was recreated since has another id in `extents`.
    """
    read = {PartitionKey(each.topic, each.partition, topic_ids[each.topic]): each for each in sums}
    return [_measure(key, extents.get(key), read.get(key)) for key in sorted({*extents, *read})]


def _measure(key: PartitionKey, extent: Extent | None, read: PartitionSums | None) -> PartitionMeasure:
    if read is None:
        assert extent is not None
        return PartitionMeasure(
            topic=key.topic,
            topic_id=key.topic_id,
            partition_id=key.partition,
            beginning_offset=extent.beginning,
            end_offset=extent.end,
            stored_bytes=extent.stored_bytes,
        )
    end = read.high + 1
    return PartitionMeasure(
        topic=key.topic,
        topic_id=key.topic_id,
        partition_id=key.partition,
        from_offset=read.low,
        to_offset=end,
        messages=read.messages,
        payload_bytes=read.bytes,
        first_timestamp=read.first_ms,
        last_timestamp=read.last_ms,
        gaps=read.gaps,
        duplicates=read.duplicates,
        # Without an extent, nothing is known to be removed, and the partition ends where reading ended.
        beginning_offset=0 if extent is None else extent.beginning,
        end_offset=end if extent is None else max(extent.end, end),
        stored_bytes=None if extent is None else extent.stored_bytes,
    )
