"""The partitions of a topic over the data plane: appends and fetches with retries, and threads that send."""

import logging
import random
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Self, TypeVar
from uuid import UUID

from myqueue import append_retry, data_plane
from myqueue.append_retry import NextStep
from myqueue.http_connection import HttpConnection
from myqueue.producer_identity import Stamp
from myqueue.protocol import errors
from myqueue.protocol.batch import Header, batches_in, check_body
from myqueue.routing import ReplicaSelector, RoutingCache, RoutingTable
from myqueue.transport import SHORTEST_ATTEMPT_S, RetryPolicy, Transport

logger = logging.getLogger("myqueue")

DELIVERY_S = 60.0  # for one batch, all attempts and pauses together
APPEND_S = 3.0  # for one attempt: a broker decides within 2 s, the rest is for the network
FETCH_S = 3.0
FETCH_BYTES = 1 << 20
TASK_RETRY = RetryPolicy(connect_deadline_s=None)  # a task's process is new, but the driver has reached the cluster
_RETRY = RetryPolicy(first_pause_s=0.05, longest_pause_s=1.0)
# These say whether the log holds the batch, whatever the outcome of earlier attempts.
_SEQUENCE_ERRORS = (errors.IdempotencyConflict, errors.ProducerFenced, errors.SequenceGap, errors.UnknownProducer)
QUEUES = 4
_QUEUED = 2  # jobs of a queue, the running one included: each holds its batch in memory
T = TypeVar("T")


class TopicLog:
    """May be shared by threads; each has a connection of its own."""

    def __init__(self, transport: Transport, topic: str) -> None:
        """Raises TopicNotFound."""
        self.topic = topic
        self._routing = RoutingCache(transport, topic)
        table = self._routing.table()
        self.topic_id: UUID = table.topic_id
        self.partitions = len(table.leaders)

    def append(self, connection: HttpConnection, header: Header, body: bytes) -> int:
        """The offset of the first message; raises the error of the last attempt."""
        head, partition = header.pack(), header.partition
        deadline = time.monotonic() + DELIVERY_S
        failures, maybe_written = 0, False
        while True:
            table: RoutingTable | None = None
            try:
                table = self._routing.table()
                left_s = max(SHORTEST_ATTEMPT_S, deadline - time.monotonic())
                read_s = min(APPEND_S, left_s)
                return data_plane.append(connection, table, table.leader(partition), partition, head, body, read_s)
            except errors.MyQueueError as error:
                failures += 1
                following = NextStep.RETRY if error.retriable else NextStep.FAIL
                if table is not None:
                    maybe_written = maybe_written or error.outcome != "not_written"
                    following = append_retry.next_step(error, maybe_written)
                if not isinstance(error, _SEQUENCE_ERRORS):
                    error.outcome = "unknown" if maybe_written else "not_written"
                if following is NextStep.REROUTE and table is not None:
                    self._routing.reroute(partition, error, table)
                retry_after_s = None if following is NextStep.REROUTE else error.retry_after_s
                pause_s = 0.0 if append_retry.retries_at_once(error, failures) else _pause_s(failures, retry_after_s)
                if following not in (NextStep.RETRY, NextStep.REROUTE) or time.monotonic() + pause_s >= deadline:
                    raise
                logger.debug("append to %s/%d failed: %s", self.topic, partition, error)
                time.sleep(pause_s)

    def fetch(self, connection: HttpConnection, partition: int, offset: int) -> list[tuple[Header, memoryview]]:
        """Whole batches, the first of which holds `offset`. That message must have been acknowledged.

        Raises OffsetOutOfRange for a message that is no longer stored.
        """
        selector = ReplicaSelector()
        deadline = time.monotonic() + DELIVERY_S
        failures = 0
        while True:
            table: RoutingTable | None = None
            try:
                table = self._routing.table()
                return self._fetched(connection, table, selector, partition, offset)
            except (errors.OffsetOutOfRange, errors.Forbidden):
                raise
            except errors.MyQueueError as error:
                failures += 1
                pause_s = _pause_s(failures, None)
                if (table is None and not error.retriable) or time.monotonic() + pause_s >= deadline:
                    raise
                if table is not None:
                    selector.failed(table, partition, time.monotonic())
                    self._routing.reroute(partition, error, table)
                logger.debug("fetch from %s/%d failed: %s", self.topic, partition, error)
                time.sleep(pause_s)

    def _fetched(
        self, connection: HttpConnection, table: RoutingTable, selector: ReplicaSelector, partition: int, offset: int
    ) -> list[tuple[Header, memoryview]]:
        broker_id = selector.choose(table, partition, time.monotonic())

        fetched = data_plane.fetch(
            connection, table, broker_id, partition, offset, max_bytes=FETCH_BYTES, wait_s=0.0, read_s=FETCH_S
        )
        if not fetched.data:
            raise errors.Unavailable(f"{self.topic}/{partition}: broker {broker_id} does not have offset {offset} yet")
        batches = list(batches_in(memoryview(fetched.data)))
        for header, body in batches:
            check_body(header, body)
        return batches


def stamped(header: Header, stamp: Stamp) -> Header:
    return replace(header, producer_id=stamp.producer_id, producer_epoch=stamp.epoch, sequence=stamp.sequence)


def _pause_s(failures: int, retry_after_s: float | None) -> float:
    return _RETRY.pause_s(failures, retry_after_s, random.random())  # noqa: S311


class SendQueues:
    """A few send queues, each with a thread and a connection. Jobs of one queue run in order. Used by one thread."""

    def __init__(self, url: str, queues: int = QUEUES) -> None:
        self._connections = [HttpConnection(url) for _ in range(queues)]
        self._threads = [ThreadPoolExecutor(1, thread_name_prefix=f"myqueue-send-{queue}") for queue in range(queues)]
        self._queued: list[deque[Future[Any]]] = [deque() for _ in range(queues)]

    def submit(self, number: int, job: Callable[[HttpConnection], T]) -> Future[T]:
        """Jobs of the same number run in order. Backpressure: waits while the queue is full; raises a job's error."""
        queue = number % len(self._threads)
        queued = self._queued[queue]
        while len(queued) >= _QUEUED:
            queued.popleft().result()
        submitted = self._threads[queue].submit(job, self._connections[queue])
        queued.append(submitted)
        return submitted

    def finish(self) -> None:
        """Waits for all jobs; raises the first error."""
        for queued in self._queued:
            while queued:
                queued.popleft().result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for thread in self._threads:
            thread.shutdown(wait=False, cancel_futures=True)
        for thread, connection in zip(self._threads, self._connections, strict=True):
            thread.shutdown()
            connection.close()
