"""The messages of a range, batch after batch: the next answer is fetched while the last one is being taken."""

import logging
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from uuid import UUID

import pyarrow as pa

from myqueue import data_plane
from myqueue.protocol.batch import batches_in, check_body, decode_body
from myqueue.protocol.errors import (
    Forbidden,
    GrantInvalid,
    MyQueueError,
    NoLeader,
    OffsetOutOfRange,
    TopicNotFound,
    Unavailable,
)
from myqueue.retry import RetryPolicy
from myqueue.routing import Routing, RoutingTable
from myqueue.sources import Source
from myqueue.spark import losses
from myqueue.spark.columns import Columns, Rows
from myqueue.spark.ranges import Range
from myqueue.transport import Transport
from myqueue.wire import Wire

logger = logging.getLogger("myqueue")

FETCH_S = 10.0  # for an answer, on top of what the broker was asked to wait
WAIT_S = 1.0  # for messages that the leader has and another replica has not yet
BATCH_BYTES = 4 << 20  # batches are put together up to this size: each one that Spark takes costs it something
_RETRY = RetryPolicy(first_pause_s=0.05, longest_pause_s=0.5)


@dataclass(frozen=True, slots=True)
class Fetched:
    rows: list[Rows]
    next_offset: int


def record_batches(
    url: str, range_: Range, wanted: pa.Schema, *, fail_on_data_loss: bool, fetch_bytes: int, timeout_s: float
) -> Iterator[pa.RecordBatch]:
    fetching = Fetching(url, range_, fail_on_data_loss=fail_on_data_loss, fetch_bytes=fetch_bytes, timeout_s=timeout_s)
    columns = Columns(wanted, range_.topic, range_.partition)
    waiting: list[Rows] = []
    size = 0
    for rows in fetching:
        if waiting and size + rows.messages.nbytes > BATCH_BYTES:
            yield columns.together(waiting)
            waiting, size = [], 0
        waiting.append(rows)
        size += rows.messages.nbytes
    if waiting:
        yield columns.together(waiting)


class Fetching:
    """Raises OffsetOutOfRange or TopicLost for what is gone, unless that is to be passed over."""

    def __init__(self, url: str, range_: Range, *, fail_on_data_loss: bool, fetch_bytes: int, timeout_s: float) -> None:
        self._url = url
        self._range = range_
        self._fail_on_data_loss = fail_on_data_loss
        self._fetch_bytes = fetch_bytes
        self._timeout_s = timeout_s
        self._transport = Transport(url, retry=RetryPolicy(deadline_s=timeout_s))
        self._wire = Wire(self._transport.url)
        self._routing: Routing | None = None
        self._source = Source()
        self._stopped = threading.Event()

    def __iter__(self) -> Iterator[Rows]:
        pool = ThreadPoolExecutor(1, thread_name_prefix="myqueue-fetch")
        try:
            under_way = pool.submit(self._fetch, self._range.start)
            while True:
                fetched = under_way.result()
                if fetched.next_offset < self._range.end:
                    under_way = pool.submit(self._fetch, fetched.next_offset)
                yield from fetched.rows
                if fetched.next_offset >= self._range.end:
                    return
        finally:
            self._stopped.set()  # whoever takes the messages may stop before their end
            self._wire.interrupt()
            pool.shutdown()
            self._wire.close()
            self._transport.close()

    def _fetch(self, offset: int) -> Fetched:
        """At least one batch from this offset on, or from where the partition begins by now."""
        deadline = time.monotonic() + self._timeout_s
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
                    return Fetched([], offset)
                continue
            except losses.TopicLost as lost:
                losses.report(lost, fail=self._fail_on_data_loss)
                return Fetched([], self._range.end)
            except MyQueueError as failed:
                error = failed
            failures += 1
            self._give_up_or_wait(error, failures, deadline)
            if table is not None:
                self._elsewhere(table, error)

    def _table(self) -> RoutingTable:
        """Who leads the partition; raises TopicLost."""
        topic = self._range.topic
        try:
            if self._routing is None:
                self._routing = Routing(self._transport, topic)
            table = self._routing.table()
        except TopicNotFound as error:
            raise losses.deleted(topic) from error
        if table.topic_id != UUID(self._range.topic_id):
            raise losses.made_again(topic)
        return table

    def _attempt(self, table: RoutingTable, offset: int) -> Fetched:
        partition = self._range.partition
        broker_id = self._source.choose(table, partition, time.monotonic())
        if broker_id is None:
            raise NoLeader()
        answer = data_plane.fetch(
            self._wire,
            table,
            broker_id,
            partition,
            offset,
            max_bytes=self._fetch_bytes,
            wait_s=WAIT_S,
            read_s=FETCH_S,
        )
        return self._taken(answer.data, offset)

    def _taken(self, data: bytes | bytearray, offset: int) -> Fetched:
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
        return Fetched(taken, offset)

    def _skip(self, offset: int, error: OffsetOutOfRange) -> int:
        beginning = error.details.get("beginning_offset")
        if not isinstance(beginning, int) or beginning <= offset:
            raise error
        last = min(beginning, self._range.end)
        place = (self._range.topic, self._range.partition)
        losses.report(losses.retained(place, offset, last, beginning), fail=self._fail_on_data_loss)
        return last

    def _give_up_or_wait(self, error: MyQueueError, failures: int, deadline: float) -> None:
        logger.debug("fetch of %s failed: %s", self._range, error)
        quick = isinstance(error, GrantInvalid) and failures == 1
        pause_s = 0.0 if quick else _RETRY.pause_s(failures, error.retry_after_s, random.random())  # noqa: S311
        if self._stopped.is_set():
            raise error
        if isinstance(error, Forbidden) or time.monotonic() + pause_s >= deadline:
            message = f"{self._range}: no messages for {self._timeout_s:g} s; the last attempt: {error.message}"
            raise type(error)(message, request_id=error.request_id, details=error.details) from error
        self._stopped.wait(pause_s)

    def _elsewhere(self, table: RoutingTable, error: MyQueueError) -> None:
        if not isinstance(error, GrantInvalid):
            self._source.failed(table, self._range.partition, time.monotonic())
        assert self._routing is not None
        try:
            self._routing.renewed(table)
        except TopicNotFound:
            self._routing = None  # asked anew, it says whether the topic is gone or another one
        except MyQueueError as unanswered:
            logger.debug("routing is not renewed: %s", unanswered)
