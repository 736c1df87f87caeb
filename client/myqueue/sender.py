"""Sends the batches of one topic to their leaders, retries them, and completes their deliveries.

The threads are those of the pool; the one that gets a batch's answer completes its deliveries.
"""

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from myqueue import append_retry, data_plane
from myqueue.accumulator import Accumulator, encode
from myqueue.append_retry import NextStep
from myqueue.delivery import BatchResult, Deliveries, Delivery
from myqueue.http_connection import HttpConnection
from myqueue.idempotent_message import DeliveryExpired, IdempotentMessage
from myqueue.partition_queue import WINDOW, Batch, PartitionQueue
from myqueue.producer_identity import ProducerIdentity, Stamp
from myqueue.protocol.batch import HEADER_BYTES, Header
from myqueue.protocol.errors import MyQueueError, NoLeader, ProducerFenced, TooLarge, TopicNotFound, Unavailable
from myqueue.protocol.limits import MAX_BATCH_BYTES
from myqueue.routing import RoutingCache, RoutingTable
from myqueue.send_buffer import SendBuffer
from myqueue.send_threads import SendThreadPool
from myqueue.simple_api import SimpleApi
from myqueue.transport import SHORTEST_ATTEMPT_S, Transport

logger = logging.getLogger("myqueue")

OnDelivery = Callable[[Delivery | Deliveries], None]
MAX_REMEMBERED = 10_000  # failed batches, for the next flush to raise
APPEND_S = 3.0  # for one attempt: a broker decides within 2 s, the rest is for the network


class Attempt(NamedTuple):
    batch: Batch
    number: int
    stamp: Stamp | None  # None: it needs a new epoch first


class Sender:
    """`lock` is that of the producer's buffer: it guards the accumulator and all other state, never during IO."""

    def __init__(
        self,
        transport: Transport,
        topic: str,
        name: str,
        buffer: SendBuffer,
        pool: SendThreadPool,
        *,
        create: bool = True,
        codec: int,
        batch_bytes: int,
        linger_s: float,
        max_in_flight: int,
        delivery_timeout_s: float,
        on_delivery: OnDelivery | None,
    ) -> None:
        self.lock = buffer.lock
        self.refusing = False  # closed or fenced: no more sends
        self.fatal: MyQueueError | None = None
        self.buffer = buffer
        self._pool = pool
        self._in_flight = 0  # as many threads are at work for it
        self._max_in_flight = max_in_flight
        self._stopping = False
        self._idempotent: deque[IdempotentMessage] = deque()
        self._incomplete_idempotent: set[IdempotentMessage] = set()
        self._flushes = 0
        self._failed: list[BatchResult] = []
        self._callback_lock = threading.Lock()  # callbacks run one at a time
        self._on_delivery = on_delivery
        self._transport = transport
        self._api = SimpleApi(transport)
        self._codec = codec
        self.identity = ProducerIdentity(transport, topic, name, self.lock, create=create)
        self._routing = RoutingCache(transport, topic)
        table = self._routing.table()
        self.identity.check_topic(table.topic_id)
        self.accumulator = Accumulator(
            topic,
            len(table.leaders),
            self.identity.sequences,
            batch_bytes=batch_bytes,
            linger_s=linger_s,
            delivery_timeout_s=delivery_timeout_s,
            clock=time.monotonic,
            buffer=buffer,
            # A partition whose leader does not answer leaves a thread for the others.
            most_in_flight=WINDOW if len(table.leaders) == 1 else max(1, max_in_flight - 1),
            skip_linger=self._skip_linger,
        )

    # Called with the lock held: `add_idempotent`, `incomplete`, `drained`, `begin_flush`, `end_flush`, `dispatch`,
    # `_set_flushing`, `_take`, `_fence`, `_set_result`, `_remove`.

    @property
    def incomplete(self) -> int:
        return sum(batch.count for batch in self.accumulator.incomplete) + len(self._incomplete_idempotent)

    @property
    def busy(self) -> int:
        return self.buffer.busy

    @property
    def drained(self) -> bool:
        return not self.accumulator.incomplete and not self._incomplete_idempotent

    def add_idempotent(self, message: IdempotentMessage) -> None:
        self._idempotent.append(message)
        self._incomplete_idempotent.add(message)
        self.buffer.used += message.size
        self.dispatch()

    def begin_flush(self) -> None:
        self._flushes += 1
        self._set_flushing()
        self.dispatch()

    def end_flush(self) -> None:
        self._flushes -= 1
        self._set_flushing()

    def take_failed(self) -> list[BatchResult]:
        """The batches that failed since the last call."""
        failed, self._failed = self._failed, []
        return failed

    def abandon(self) -> None:
        """Fails the messages that are not complete. Threads may still be at work for one."""
        with self.lock:
            self._stopping = True
            left: list[BatchResult] = [*self.accumulator.abandon(), *self._incomplete_idempotent]
            left = [result for result in left if not result.done]
            waiting = set(self._idempotent)
            self.buffer.used -= sum(message.size for message in self._incomplete_idempotent)
            self._idempotent.clear()
            self._incomplete_idempotent.clear()
            for result in left:
                sent = result.maybe_sent if isinstance(result, Batch) else result not in waiting
                result.failed(
                    Unavailable(
                        f"the producer of {self.identity.topic!r} was closed before the answer",
                        outcome="unknown" if sent else "not_written",
                    )
                )
            self.buffer.notify()
        self._pool.forget(self)
        for result in left:
            self._run_callbacks(result)

    def fail_after_fork(self, error: MyQueueError) -> None:
        """In a child process, where no other thread runs."""
        for result in (*self.accumulator.incomplete, *self._incomplete_idempotent):
            result.fail_after_fork(error)

    def dispatch(self) -> None:
        """Gives what is due to threads. To be called whenever something may be due, with the lock held."""
        accumulator = self.accumulator
        accumulator.changed = False
        while self._in_flight < self._max_in_flight:
            due = 0.0 if self._idempotent else accumulator.next_due()
            if due is None:
                return
            now = time.monotonic()
            if due > now:
                self._pool.call_at(self, due)
                return
            thread = self._pool.acquire(self)
            if thread is None:
                return
            work = self._take(now)
            assert work is not None  # it is due
            self._count(1)
            thread.give(self, work)

    def _count(self, threads: int) -> None:
        self._in_flight += threads
        self.buffer.busy += threads

    def take_work(self) -> Attempt | IdempotentMessage | None:
        """For a thread of the pool that is free."""
        with self.lock:
            work = self._take(time.monotonic()) if self._in_flight < self._max_in_flight else None
            if work is not None:
                self._count(1)
            self.dispatch()  # what else is due
            return work

    def do_work(self, work: object, connection: HttpConnection) -> None:
        if isinstance(work, Attempt):
            self._send(connection, work)
        elif isinstance(work, IdempotentMessage):
            self._complete_idempotent(work, work.send(self._api, self.identity.producer_id))

    def next_work(self, *, others_wait: bool) -> Attempt | IdempotentMessage | None:
        with self.lock:
            self._count(-1)
            if self._stopping:
                self.buffer.changed.notify_all()
                return None
            work = None if others_wait else self._take(time.monotonic())
            if work is not None:
                self._count(1)
            self.dispatch()
            return work

    def _set_flushing(self) -> None:
        self.accumulator.flushing = self._flushes > 0 or self.fatal is not None

    def _skip_linger(self, result: BatchResult) -> None:
        if isinstance(result, Batch):
            with self.lock:
                self.accumulator.skip_linger(result)
                self.dispatch()

    def _take(self, now: float) -> Attempt | IdempotentMessage | None:
        if self._idempotent:
            return self._idempotent.popleft()
        batch = self.accumulator.take(now)
        return None if batch is None else Attempt(batch, batch.attempt, batch.stamp)

    def _send(self, connection: HttpConnection, attempt: Attempt) -> None:
        try:
            self._attempt(connection, attempt)
        except Exception as error:
            # The thread must survive a defect, else every later send would wait for ever.
            logger.exception("sending to %s", self.identity.topic)
            with self.lock:
                if self.accumulator.awaits(attempt.batch, attempt.number):
                    attempt.batch.maybe_written = True
                    defect = MyQueueError(
                        f"defect while sending to topic {self.identity.topic!r}: {error!r}", outcome="unknown"
                    )
                    self.accumulator.failed(attempt.batch, defect)
            self._complete_decided(attempt.batch.queue)

    def _attempt(self, connection: HttpConnection, attempt: Attempt) -> None:
        batch = attempt.batch
        table: RoutingTable | None = None
        try:
            body = self._encoded(batch)
            stamp = attempt.stamp or self._stamp_under_new_epoch(attempt)
            table = self._routing.table()
            self.identity.check_topic(table.topic_id)
            leader = table.leader(batch.partition)
        except MyQueueError as error:
            error.outcome = "not_written"  # of the batch, whatever the outcome of the request that failed
            self._attempt_failed(attempt, error, table, sent=False)
            return
        left_s = max(SHORTEST_ATTEMPT_S, batch.deadline - time.monotonic())
        with self.lock:
            if stamp is None or not self.accumulator.awaits(batch, attempt.number):
                return  # abandoned by close, which has reported it as not written
            batch.attempts += 1
        head = self._head(batch, stamp)
        try:
            base_offset = data_plane.append(
                connection, table, leader, batch.partition, head, body, min(APPEND_S, left_s)
            )
        except MyQueueError as error:
            self._attempt_failed(attempt, error, table, sent=True)
            return
        with self.lock:
            if self.accumulator.awaits(batch, attempt.number):
                self.accumulator.stored(batch, base_offset)
        self._complete_decided(batch.queue)

    def _encoded(self, batch: Batch) -> bytes:
        if self.fatal is not None:
            raise copy_of(self.fatal)
        if time.monotonic() >= batch.deadline:
            raise batch.last_error or DeliveryExpired(
                f"waited in the send buffer past its delivery timeout: partition {batch.partition} of topic"
                f" {self.identity.topic!r}"
            )
        encoded = batch.encoded
        if encoded is None:
            encoded = batch.encoded = encode(batch, self._codec)
        if HEADER_BYTES + len(encoded[1]) > MAX_BATCH_BYTES:
            raise TooLarge(
                f"a batch of {len(encoded[1])} bytes for topic {self.identity.topic!r} is over the limit of"
                f" {MAX_BATCH_BYTES}"
            )
        return encoded[1]

    def _stamp_under_new_epoch(self, attempt: Attempt) -> Stamp | None:
        """None if the attempt counts no more."""
        while True:
            self.identity.take_new_epoch(attempt.batch.partition)
            with self.lock:
                if not self.accumulator.awaits(attempt.batch, attempt.number):
                    return None
                attempt.batch.queue.stamp(attempt.batch)
                if attempt.batch.stamp is not None:
                    return attempt.batch.stamp

    def _head(self, batch: Batch, stamp: Stamp) -> bytes:
        assert batch.encoded is not None
        crc, body = batch.encoded
        return Header(
            topic_id=self.identity.topic_id,
            partition=batch.partition,
            count=batch.count,
            body_size=len(body),
            body_crc=crc,
            producer_id=stamp.producer_id,
            producer_epoch=stamp.epoch,
            sequence=stamp.sequence,
            codec=self._codec,
        ).pack()

    def _attempt_failed(self, attempt: Attempt, error: MyQueueError, table: RoutingTable | None, *, sent: bool) -> None:
        batch = attempt.batch
        maybe_written = batch.maybe_written or (sent and error.outcome != "not_written")
        failures = batch.failures + 1
        if sent:
            following = append_retry.next_step(error, maybe_written, batch.alone)
        elif isinstance(error, ProducerFenced):
            following = NextStep.FENCED
        elif isinstance(error, NoLeader):
            following = NextStep.REROUTE
        else:
            following = NextStep.RETRY if error.retriable else NextStep.FAIL
        pause_s = 0.0
        if following is not NextStep.IN_ORDER and not append_retry.retries_at_once(error, failures):
            # Retry-After is for another request to the same broker.
            retry_after_s = None if following is NextStep.REROUTE else error.retry_after_s
            pause_s = self._transport.retry.pause_s(failures, retry_after_s, random.random())  # noqa: S311
        retry_at = time.monotonic() + pause_s
        if following is NextStep.REROUTE and table is not None:
            try:
                self._routing.reroute(batch.partition, error, table)
            except TopicNotFound as gone:
                error, following = gone, NextStep.FAIL
        with self.lock:
            if not self.accumulator.awaits(batch, attempt.number):
                return  # abandoned, or known not to be written and stamped again
            batch.failures, batch.last_error, batch.maybe_written = failures, error, maybe_written
            if following is NextStep.FENCED:
                error = self._fence(error)
            elif following is not NextStep.FAIL and retry_at < batch.deadline:
                self.accumulator.retry(batch, retry_at, new_epoch=following is NextStep.NEW_EPOCH)
                return
            error.outcome = "unknown" if maybe_written else "not_written"
            self.accumulator.failed(batch, error, log_disagrees=append_retry.log_disagrees(error))
        self._complete_decided(batch.queue)

    def _fence(self, error: MyQueueError) -> MyQueueError:
        """The error, with what to do about it."""
        if self.fatal is None:
            self.fatal = self.identity.fenced(error)
        self.refusing = True
        self._set_flushing()
        self.buffer.notify()
        self.dispatch()
        return copy_of(self.fatal)

    def _complete_decided(self, queue: PartitionQueue) -> None:
        """Completes the decided batches at the queue's front, one thread at a time: callbacks run in its order."""
        with self.lock:
            if queue.completing:
                return  # the thread that is completing goes on with what was decided now
            queue.completing = True
        while True:
            with self.lock:
                while True:
                    batch = self.accumulator.next_decided(queue)
                    if batch is None:
                        queue.completing = False
                        return
                    self._set_result(batch)
                    if self._on_delivery is not None or batch.has_callbacks:
                        break
                    self._remove(batch)
            self._run_callbacks(batch)  # before a flush returns
            with self.lock:
                self._remove(batch)

    def _set_result(self, batch: Batch) -> None:
        assert batch.outcome is not None
        if isinstance(batch.outcome, MyQueueError):
            if self._on_delivery is None and len(self._failed) < MAX_REMEMBERED:
                self._failed.append(batch)
            batch.failed(batch.outcome)
        else:
            batch.stored(batch.partition, batch.outcome)

    def _remove(self, batch: Batch) -> None:
        self.accumulator.complete(batch)
        batch.drop_messages()
        self.buffer.notify()

    def _complete_idempotent(self, message: IdempotentMessage, outcome: int | MyQueueError) -> None:
        with self.lock:
            if message not in self._incomplete_idempotent:
                return  # abandoned by close
            if isinstance(outcome, MyQueueError):
                if self._on_delivery is None and len(self._failed) < MAX_REMEMBERED:
                    self._failed.append(message)
                message.failed(outcome)
            else:
                assert message.to_partition is not None
                message.stored(message.to_partition, outcome)
        self._run_callbacks(message)
        with self.lock:
            if message in self._incomplete_idempotent:
                self._incomplete_idempotent.remove(message)
                self.buffer.used -= message.size
            self.buffer.notify()

    def _run_callbacks(self, result: BatchResult) -> None:
        result.run_callbacks()
        if self._on_delivery is not None:
            self._run_on_delivery(self._on_delivery, result)

    def _run_on_delivery(self, on_delivery: OnDelivery, result: BatchResult) -> None:
        deliveries: list[Delivery | Deliveries] = []
        at = 0
        for first, count in [*(result.bulks if isinstance(result, Batch) else ()), (result.count, 0)]:
            deliveries += [Delivery(result, index) for index in range(at, first)]
            if count:
                deliveries.append(Deliveries([(result, first, count)]))
            at = first + count
        with self._callback_lock:
            for delivery in deliveries:
                try:
                    delivery.exception(0)  # marks its error as retrieved
                    on_delivery(delivery)
                except Exception:
                    logger.exception("on_delivery raised")  # a defect of the caller must not stop later messages


def copy_of(error: MyQueueError) -> MyQueueError:
    """The same error for another message: each has its own outcome and traceback."""
    return type(error)(error.message, outcome="not_written", request_id=error.request_id, details=error.details)
