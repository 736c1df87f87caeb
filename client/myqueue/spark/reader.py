"""The batch reader: offsets are fixed when the query is planned, and each task fetches one range of them."""

import logging
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from uuid import UUID

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from myqueue import data_plane
from myqueue.http_connection import HttpConnection
from myqueue.protocol.batch import batches_in, check_body, decode_body
from myqueue.protocol.errors import (
    Forbidden,
    GrantInvalid,
    InvalidRequest,
    MyQueueError,
    OffsetOutOfRange,
    TopicNotFound,
    Unavailable,
)
from myqueue.routing import ReplicaSelector, RoutingCache, RoutingTable
from myqueue.spark.columns import Columns, Rows
from myqueue.spark.offset_reader import STALE_METADATA_S, OffsetReader
from myqueue.spark.offsets import OffsetSnapshot, SpecificOffsets, TopicPartition, name_of, resolve, topic_partitions
from myqueue.spark.options import ReadOptions
from myqueue.spark.planner import (
    OffsetRange,
    TopicLost,
    deleted_by_retention,
    report_data_loss,
    split_ranges,
    topic_deleted,
    topic_recreated,
)
from myqueue.transport import RetryPolicy, Transport

logger = logging.getLogger("myqueue")

FETCH_S = 10.0  # for a response, on top of the long poll
WAIT_S = 1.0  # of the long poll, for messages that the leader has and another replica has not yet
BATCH_BYTES = 4 << 20  # batches are concatenated up to this size: Spark has a cost per batch
_RETRY = RetryPolicy(first_pause_s=0.05, longest_pause_s=0.5)


class MyQueueReader(DataSourceReader):
    """Pickled and sent to the tasks."""

    def __init__(self, options: ReadOptions, wanted: pa.Schema) -> None:
        self._options = options
        self._wanted = wanted

    def partitions(self) -> list[InputPartition]:
        options = self._options
        with closing(Transport(options.url, retry=RetryPolicy(deadline_s=options.timeout_s))) as transport:
            offset_reader = OffsetReader(transport, options.subscription, timeout_s=options.timeout_s)
            snapshot = offset_reader.snapshot()
            offset_reader.require(snapshot)
            start = resolve(options.starting, "starting", snapshot, offset_reader.offset_at)
            end = resolve(options.ending, "ending", snapshot, offset_reader.offset_at)
        ranges = [self._range(tp, start[tp], end[tp], snapshot) for tp in topic_partitions(snapshot)]
        return list(split_ranges(ranges, options.min_partitions))

    def _range(self, tp: TopicPartition, first: int, last: int, snapshot: OffsetSnapshot) -> OffsetRange:
        topic, partition = tp
        beginning = snapshot[topic].partitions[partition].beginning
        if first > last and isinstance(self._options.starting, SpecificOffsets):
            raise InvalidRequest(f"option startingOffsets: {name_of(tp)}: {first} is past where the read ends, {last}")
        if first < min(beginning, last):
            loss = deleted_by_retention(tp, first, min(beginning, last), beginning)
            report_data_loss(loss, fail=self._options.fail_on_data_loss)
        return OffsetRange(topic, snapshot[topic].topic_id, partition, min(max(first, beginning), last), last)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, OffsetRange):
            return iter(())  # Spark's own empty partition, when there is nothing to read
        return read_range(self._options, partition, self._wanted)


def read_range(options: ReadOptions, range_: OffsetRange, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
    columns = Columns(wanted, range_.topic, range_.partition)
    waiting: list[Rows] = []
    size = 0
    for rows in RangeFetcher(options, range_):
        if waiting and size + rows.messages.nbytes > BATCH_BYTES:
            yield columns.record_batch(waiting)
            waiting, size = [], 0
        waiting.append(rows)
        size += rows.messages.nbytes
    if waiting:
        yield columns.record_batch(waiting)


@dataclass(frozen=True, slots=True)
class FetchedRows:
    rows: list[Rows]
    next_offset: int


class RangeFetcher:
    """Fetches the next batches of a range while Spark takes the last ones.

    Raises OffsetOutOfRange or TopicLost for messages that are gone, if failOnDataLoss is set.
    """

    def __init__(self, options: ReadOptions, range_: OffsetRange) -> None:
        self._options = options
        self._range = range_
        # A task's process is new, but the driver has reached the cluster.
        retry = RetryPolicy(deadline_s=options.timeout_s, connect_deadline_s=None)
        self._transport = Transport(options.url, retry=retry)
        self._connection = HttpConnection(self._transport.url)
        self._routing: RoutingCache | None = None
        self._selector = ReplicaSelector()
        self._stopped = threading.Event()

    def __iter__(self) -> Iterator[Rows]:
        pool = ThreadPoolExecutor(1, thread_name_prefix="myqueue-fetch")
        try:
            in_flight = pool.submit(self._fetch, self._range.start)
            while True:
                fetched = in_flight.result()
                if fetched.next_offset < self._range.end:
                    in_flight = pool.submit(self._fetch, fetched.next_offset)
                yield from fetched.rows
                if fetched.next_offset >= self._range.end:
                    return
        finally:
            self._stopped.set()  # Spark may stop before the end of the range
            self._connection.interrupt()
            pool.shutdown()
            self._connection.close()
            self._transport.close()

    def _fetch(self, offset: int) -> FetchedRows:
        """At least one batch from this offset on, or from the partition's current beginning."""
        deadline = time.monotonic() + self._options.timeout_s
        failures = 0
        while True:
            table: RoutingTable | None = None
            try:
                table = self._table()
                fetched = self._attempt(table, offset)
                if fetched.rows:
                    return fetched
                error: MyQueueError = Unavailable(f"nothing there at {offset}")
            except OffsetOutOfRange as gone:
                offset = self._skip(offset, gone)
                if offset >= self._range.end:
                    return FetchedRows([], offset)
                continue
            except TopicLost as lost:
                report_data_loss(lost, fail=self._options.fail_on_data_loss)
                return FetchedRows([], self._range.end)
            except MyQueueError as failed:
                error = failed
            failures += 1
            self._give_up_or_wait(error, failures, deadline)
            if table is not None:
                self._switch_replica(table, error)

    def _table(self) -> RoutingTable:
        """Raises TopicLost. Another topic's id counts only when it lasts: metadata of read managers may be stale."""
        topic, doubted_until = self._range.topic, time.monotonic() + STALE_METADATA_S
        while True:
            try:
                if self._routing is None:
                    self._routing = RoutingCache(self._transport, topic)
                table = self._routing.table()
            except TopicNotFound as error:
                raise topic_deleted(topic) from error
            if table.topic_id == UUID(self._range.topic_id):
                return table
            if time.monotonic() >= doubted_until or self._stopped.wait(STALE_METADATA_S / 10):
                raise topic_recreated(topic)
            self._routing = None

    def _attempt(self, table: RoutingTable, offset: int) -> FetchedRows:
        partition = self._range.partition
        broker_id = self._selector.choose(table, partition, time.monotonic())
        answer = data_plane.fetch(
            self._connection,
            table,
            broker_id,
            partition,
            offset,
            max_bytes=self._options.fetch_bytes,
            wait_s=WAIT_S,
            read_s=FETCH_S,
        )
        return self._taken(answer.data, offset)

    def _taken(self, data: bytes | bytearray | memoryview, offset: int) -> FetchedRows:
        taken: list[Rows] = []
        for header, body in batches_in(memoryview(data)):
            if header.end_offset <= offset:
                continue
            if header.base_offset >= self._range.end:
                break
            check_body(header, body)
            messages = decode_body(body)
            skip = max(0, offset - header.base_offset)
            count = min(header.end_offset, self._range.end) - header.base_offset - skip
            if count < header.count:
                messages = messages.slice(skip, count)
            taken.append(Rows(header.base_offset + skip, header.append_time, messages))
            offset = taken[-1].first + count
        return FetchedRows(taken, offset)

    def _skip(self, offset: int, error: OffsetOutOfRange) -> int:
        beginning = error.details.get("beginning_offset")
        if not isinstance(beginning, int) or beginning <= offset:
            raise error
        last = min(beginning, self._range.end)
        tp = (self._range.topic, self._range.partition)
        report_data_loss(deleted_by_retention(tp, offset, last, beginning), fail=self._options.fail_on_data_loss)
        return last

    def _give_up_or_wait(self, error: MyQueueError, failures: int, deadline: float) -> None:
        logger.debug("fetch of %s failed: %s", self._range, error)
        quick = isinstance(error, GrantInvalid) and failures == 1
        pause_s = 0.0 if quick else _RETRY.pause_s(failures, error.retry_after_s, random.random())  # noqa: S311
        if self._stopped.is_set():
            raise error
        if isinstance(error, Forbidden) or time.monotonic() + pause_s >= deadline:
            message = f"{self._range}: no messages for {self._options.timeout_s:g} s; the last attempt: {error.message}"
            raise type(error)(message, request_id=error.request_id, details=error.details) from error
        self._stopped.wait(pause_s)

    def _switch_replica(self, table: RoutingTable, error: MyQueueError) -> None:
        if not isinstance(error, GrantInvalid):
            self._selector.failed(table, self._range.partition, time.monotonic())
        assert self._routing is not None
        try:
            self._routing.refreshed(table)
        except TopicNotFound:
            self._routing = None  # a new one shows whether the topic was deleted or recreated
        except MyQueueError as unanswered:
            logger.debug("routing is not renewed: %s", unanswered)
