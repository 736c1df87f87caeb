"""Writing to topics from Spark: what `df.write` and `df.writeStream` do with `format("myqueue")`."""

import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from myqueue.http_connection import HttpConnection
from myqueue.producer_identity import ProducerIdentity
from myqueue.protocol.batch import Header, encode_record_batch, header_for, validate
from myqueue.protocol.errors import InvalidRequest, MyQueueError
from myqueue.spark import rows
from myqueue.spark.manifest import MicroBatch, StagedBatch
from myqueue.spark.options import (
    MICRO_BATCH,
    QUERY_ID,
    WriteOptions,
    batch_write_options,
    stream_write_options,
    without,
)
from myqueue.spark.publisher import publish
from myqueue.spark.rows import RowAccumulator
from myqueue.spark.staging import Stager, open_staging
from myqueue.spark.target_topics import TargetTopics
from myqueue.spark.topic_log import TASK_RETRY, SendQueues, TopicLog, stamped
from myqueue.transport import Transport

OpenTopic = Callable[[str], TopicLog]

_MAX_INLINE_OF_ALL = 8 << 20
_BATCH_ID = "streaming.sql.batchId"  # a property of a stream's tasks


def batch_writer(options: Mapping[str, str], schema: StructType) -> DataSourceArrowWriter:
    """With the option MICRO_BATCH the frame is a micro-batch of a stream, and is written exactly once."""
    micro_batch = next((value for name, value in options.items() if name.lower() == MICRO_BATCH.lower()), None)
    if micro_batch is None:
        checked = batch_write_options(options)
        rows.check_columns(schema, topic_is_given=checked.topic is not None)
        return MyQueueWriter(checked)
    checked = stream_write_options(without(options, MICRO_BATCH))
    rows.check_columns(schema, topic_is_given=checked.topic is not None)
    return MyQueueMicroBatchWriter(checked, MicroBatch.parse(micro_batch))


def stream_writer(options: Mapping[str, str], schema: StructType) -> DataSourceStreamArrowWriter:
    checked = stream_write_options(options)
    rows.check_columns(schema, topic_is_given=checked.topic is not None)
    return MyQueueStreamWriter(checked)


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    messages: int


@dataclass(frozen=True)
class StagedByTask(WriterCommitMessage):
    query: str
    task: int
    batches: list[StagedBatch] = field(repr=False)


class MyQueueWriter(DataSourceArrowWriter):
    """Tasks append to the brokers as they go. Each stores its rows once, but a task that Spark runs again, after a
    failure or to speculate, writes its rows again: at least once, as with Spark's Kafka sink."""

    def __init__(self, options: WriteOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return Written(append(self.options, iterator, _task()))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Everything is written already."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Written messages stay: a log is append-only."""


class MyQueueStreamWriter(DataSourceStreamArrowWriter):
    """Exactly once: tasks stage their batches, the driver's commit publishes those of one attempt of the micro-batch.

    The commit may die anywhere and be repeated, also by another process and with rows that were computed in another
    order: the attempt that was first to store its manifest is the one that is completed.
    """

    def __init__(self, options: WriteOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedByTask:
        context = TaskContext.get()
        query = context.getLocalProperty(QUERY_ID) if context is not None else None
        number = context.getLocalProperty(_BATCH_ID) if context is not None else None
        if query is None or number is None:
            raise InvalidRequest(f"a stream is written by Spark's tasks, which have the property {QUERY_ID}")
        return stage(self.options, iterator, MicroBatch(query, int(number)), _task())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        publish_staged(self.options, messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Retention deletes what was staged."""


class MyQueueMicroBatchWriter(DataSourceArrowWriter):
    """The same for a frame that foreachBatch has got, in any output mode."""

    def __init__(self, options: WriteOptions, micro_batch: MicroBatch) -> None:
        self.options = options
        self.micro_batch = micro_batch

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedByTask:
        return stage(self.options, iterator, self.micro_batch, _task())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        publish_staged(self.options, messages, self.micro_batch.number)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Retention deletes what was staged."""


def publish_staged(options: WriteOptions, messages: list[WriterCommitMessage | None], number: int) -> None:
    """Publishes what all tasks of a micro-batch have staged."""
    tasks = sorted((one for one in messages if isinstance(one, StagedByTask)), key=lambda one: one.task)
    if len(tasks) < len(messages):
        raise MyQueueError(
            f"micro-batch {number}: {len(messages) - len(tasks)} of {len(messages)} tasks did not say what they"
            " have staged; nothing is published, start the query again"
        )
    batches = [batch for one in tasks for batch in one.batches]
    if number == 0 and options.topic is not None and not batches:
        # Later micro-batches take a missing topic for one that was deleted.
        with closing(Transport(options.url)) as transport:
            TargetTopics(transport, options, _own_name()).open(options.topic)
    if tasks:
        publish(options, MicroBatch(tasks[0].query, number), batches)


def append(options: WriteOptions, batches: Iterator[pa.RecordBatch], task: int) -> int:
    """Appends the rows to their topics; how many."""
    count = 0
    with closing(Transport(options.url, retry=TASK_RETRY)) as transport, SendQueues(options.url) as queues:
        topics = TargetTopics(transport, options, _own_name())
        identities: dict[str, ProducerIdentity] = {}
        for log, header, body in _encoded(batches, options, topics.open, task):
            if log.topic not in identities:
                identities[log.topic] = ProducerIdentity(transport, log.topic, _own_name(), create=False)
                identities[log.topic].check_topic(log.topic_id)  # the read manager may not know yet that it was deleted
            queues.submit(header.partition, partial(_append, identities[log.topic], log, header, body))
            count += header.count
        queues.finish()
    return count


def _append(identity: ProducerIdentity, log: TopicLog, header: Header, body: bytes, connection: HttpConnection) -> None:
    stamp = identity.next_stamp(header.partition)
    log.append(connection, stamped(header, stamp), body)
    identity.stored(header.partition, stamp, header.count)


def stage(options: WriteOptions, batches: Iterator[pa.RecordBatch], micro_batch: MicroBatch, task: int) -> StagedByTask:
    """The rows as the batches to publish, stored in the staging topic if they are too much for the manifest."""
    held: list[StagedBatch] = []
    size, most = 0, inline_limit(options, task)
    with closing(Transport(options.url, retry=TASK_RETRY)) as transport, SendQueues(options.url) as queues:
        topics = TargetTopics(transport, options, MicroBatch(micro_batch.query, 0).producer, micro_batch)
        stager: Stager | None = None
        for log, header, body in _encoded(batches, options, topics.open, task):
            # Validate now: a batch that brokers refuse when it is published would stop the query for good.
            validate(header, body)
            held.append(StagedBatch.inline(log.topic, log.topic_id, header, body))
            size += len(body)
            if stager is None and size > most:
                stager = Stager(open_staging(transport, options), queues, task)
            if stager is not None:
                for batch in held:
                    stager.add(batch)
                held = []
        return StagedByTask(micro_batch.query, task, stager.finish() if stager else held)


def inline_limit(options: WriteOptions, task: int) -> int:
    """What a task may hand to the driver, which has the batches of all tasks in memory at the same time. There are more
    tasks than this one's number: the higher it is, the smaller the share. For 20,000 of them that makes 48 MB."""
    return min(options.max_inline_bytes, _MAX_INLINE_OF_ALL // (task + 1))


class _Encoded(NamedTuple):
    log: TopicLog
    header: Header
    body: bytes


def _encoded(
    batches: Iterator[pa.RecordBatch], options: WriteOptions, opened: OpenTopic, task: int
) -> Iterator[_Encoded]:
    """Batches for partitions, in each partition in the order of the rows."""
    accumulator = RowAccumulator[tuple[str, int]](options.batch_bytes)
    next_partition = task  # tasks begin with different partitions

    def encoded(place: tuple[str, int], messages: pa.RecordBatch) -> _Encoded:
        nonlocal next_partition
        log, partition = opened(place[0]), place[1]
        if partition == rows.ANYWHERE:
            partition, next_partition = next_partition % log.partitions, next_partition + 1
        body = encode_record_batch(messages, options.codec)
        return _Encoded(log, header_for(log.topic_id, partition, body, messages.num_rows, options.codec), body)

    for batch in batches:
        now_ms = time.time_ns() // 1_000_000
        for topic, part in rows.by_topic(batch, options.topic):
            messages = rows.messages_of(part, now_ms)
            numbers = rows.partitions_of(part, messages.column("key"), topic, opened(topic).partitions)
            for number, its_messages in rows.split(messages, numbers):
                for place, full in accumulator.add((topic, number), its_messages):
                    yield encoded(place, full)
    for place, rest in accumulator.flush():
        yield encoded(place, rest)


_names: dict[int, str] = {}


def _own_name() -> str:
    """A producer name for this process: its next task takes it over with a new epoch."""
    return _names.setdefault(os.getpid(), f"spark-{uuid.uuid4().hex}")


def _task() -> int:
    context = TaskContext.get()
    return context.partitionId() if context is not None else 0
