"""The threads of a producer: they send batches to their leaders, retry them, and complete their deliveries.

A message takes one hand-over from `send` to the socket, to the one idle thread that is chosen for its batch, and one
from the socket to the thread that waits for its delivery.
"""

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from math import inf
from queue import Empty, SimpleQueue
from typing import NamedTuple

from myqueue import append_retry, data_plane
from myqueue.accumulator import Accumulator, encode
from myqueue.append_retry import NextStep
from myqueue.delivery import BatchResult, Deliveries, Delivery
from myqueue.http_connection import HttpConnection
from myqueue.idempotent_message import IdempotentMessage, TimedOut
from myqueue.partition_queue import WINDOW, Batch, PartitionQueue
from myqueue.producer_identity import ProducerIdentity, Stamp
from myqueue.protocol.batch import HEADER_BYTES, Header
from myqueue.protocol.errors import MyQueueError, NoLeader, ProducerFenced, TooLarge, TopicNotFound, Unavailable
from myqueue.protocol.limits import MAX_BATCH_BYTES
from myqueue.routing import RoutingCache, RoutingTable
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


class SendWorker:
    """A thread, with its connection and what it shall do next: None to look for itself."""

    __slots__ = ("connection", "until", "work")

    def __init__(self, url: str) -> None:
        self.connection = HttpConnection(url)
        self.work: SimpleQueue[Attempt | IdempotentMessage | None] = SimpleQueue()
        self.until = inf  # while it is idle: when it looks for work by itself


class Sender:
    """`lock` guards the accumulator and all other state; it is never held during IO."""

    def __init__(
        self,
        transport: Transport,
        topic: str,
        name: str,
        *,
        codec: int,
        batch_bytes: int,
        linger_s: float,
        max_in_flight: int,
        delivery_timeout_s: float,
        on_delivery: OnDelivery | None,
    ) -> None:
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)  # a message completed
        self.refusing = False  # closed or fenced: no more sends
        self.fatal: MyQueueError | None = None
        self._stopping = False
        self._idle: list[SendWorker] = []  # the last one was busy last: its connection is the warmest
        self._threads: set[threading.Thread] = set()
        self._max_threads = max_in_flight
        self._idempotent: deque[IdempotentMessage] = deque()
        self._incomplete_idempotent: set[IdempotentMessage] = set()
        self._flushes = 0
        self._failed: list[BatchResult] = []
        self._callback_lock = threading.Lock()  # callbacks run one at a time
        self._on_delivery = on_delivery
        self._transport = transport
        self._api = SimpleApi(transport)
        self._codec = codec
        self.identity = ProducerIdentity(transport, topic, name, self.lock)
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
            # A partition whose leader does not answer leaves a thread for the others.
            most_in_flight=WINDOW if len(table.leaders) == 1 else max(1, max_in_flight - 1),
            skip_linger=self._skip_linger,
        )

    @property
    def in_callback(self) -> bool:
        return threading.current_thread() in self._threads

    @property
    def incomplete(self) -> int:
        return sum(len(batch.values) for batch in self.accumulator.incomplete) + len(self._incomplete_idempotent)

    def add_idempotent(self, message: IdempotentMessage) -> None:
        self._idempotent.append(message)
        self._incomplete_idempotent.add(message)
        self.accumulator.buffered += message.size
        self.dispatch()

    def drain(self, timeout: float | None) -> list[BatchResult]:
        """Waits until nothing is in flight; the batches that failed since the last call. Raises TimeoutError."""
        with self.lock:
            self._flushes += 1
            self._set_flushing()
            self.dispatch()
            try:
                done = self.changed.wait_for(
                    lambda: not self.accumulator.incomplete and not self._incomplete_idempotent, timeout
                )
            finally:
                self._flushes -= 1
                self._set_flushing()
            if not done:
                raise TimeoutError(f"{self.incomplete} messages are still on their way after {timeout} s")
            failed, self._failed = self._failed, []
            return failed

    def stop(self) -> None:
        """Fails the messages that are not complete, and ends the threads."""
        with self.lock:
            self._stopping = True
            left: list[BatchResult] = [*self.accumulator.abandon(), *self._incomplete_idempotent]
            left = [result for result in left if not result.done]
            waiting = set(self._idempotent)
            self._idempotent.clear()
            self._incomplete_idempotent.clear()
            for result in left:
                sent = result.maybe_sent if isinstance(result, Batch) else result not in waiting
                result.failed(
                    Unavailable(
                        "the producer was closed before the answer", outcome="unknown" if sent else "not_written"
                    )
                )
            for worker in self._idle:
                worker.work.put(None)
            self._idle.clear()
            self.changed.notify_all()
        if self._on_delivery is not None:
            for result in left:
                self._run_callbacks(self._on_delivery, result)
        for thread in self._threads:
            thread.join(1.0)  # longer only while an abandoned attempt waits for its response

    def dispatch(self) -> None:
        """Gives what is due to idle threads. To be called whenever something may be due, with the lock held."""
        accumulator = self.accumulator
        accumulator.changed = False
        while self._has_worker and (work := self._take(time.monotonic())) is not None:
            self._worker().work.put(work)
        due = accumulator.next_due()
        if due is not None and all(due < worker.until for worker in self._idle) and self._has_worker:
            self._worker().work.put(None)  # to wait until then

    # `_has_worker`, `_worker`, `_set_flushing`, `_take`, `_fence`, `_set_result`, `_remove`: called with the lock held.

    @property
    def _has_worker(self) -> bool:
        return bool(self._idle) or len(self._threads) < self._max_threads

    def _worker(self) -> SendWorker:
        """An idle one, or a new one."""
        if self._idle:
            return self._idle.pop()
        worker = SendWorker(self._transport.url)
        thread = threading.Thread(
            target=self._run, args=(worker,), name=f"myqueue-{self.identity.name}-{len(self._threads)}", daemon=True
        )
        self._threads.add(thread)
        thread.start()
        return worker

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

    def _run(self, worker: SendWorker) -> None:
        work = worker.work.get()
        while work is not None or (work := self._next_work(worker)) is not None:
            if isinstance(work, Attempt):
                self._send(worker.connection, work)
            else:
                self._complete_idempotent(work, work.send(self._api, self.identity.producer_id))
            work = None
        worker.connection.close()

    def _next_work(self, worker: SendWorker) -> Attempt | IdempotentMessage | None:
        """Waits; None when the producer stops."""
        while True:
            with self.lock:
                now = time.monotonic()
                work = self._take(now)
                if work is not None:
                    self.dispatch()  # what else is due
                    return work
                if self._stopping:
                    return None
                due = self.accumulator.next_due()
                worker.until = inf if due is None else due
                self._idle.append(worker)
            try:
                work = worker.work.get(timeout=None if due is None else max(0.0, due - now))
            except Empty:
                with self.lock:
                    if worker in self._idle:
                        self._idle.remove(worker)
                        continue
                work = worker.work.get()  # it was chosen meanwhile
            if work is not None:
                return work

    def _send(self, connection: HttpConnection, attempt: Attempt) -> None:
        try:
            self._attempt(connection, attempt)
        except Exception as error:
            # The thread must survive a defect, else every later send would wait for ever.
            logger.exception("sending to %s", self.identity.topic)
            with self.lock:
                if self.accumulator.awaits(attempt.batch, attempt.number):
                    attempt.batch.maybe_written = True
                    defect = MyQueueError(f"defect while sending: {error!r}", outcome="unknown")
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
            raise _copy_of(self.fatal)
        if time.monotonic() >= batch.deadline:
            raise batch.last_error or TimedOut("waited in the send buffer past its delivery timeout")
        encoded = batch.encoded
        if encoded is None:
            encoded = batch.encoded = encode(batch, self._codec)
        if HEADER_BYTES + len(encoded[1]) > MAX_BATCH_BYTES:
            raise TooLarge(f"a batch of {len(encoded[1])} bytes is over the limit of {MAX_BATCH_BYTES}")
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
                self._fence(error)
            elif following is not NextStep.FAIL and retry_at < batch.deadline:
                self.accumulator.retry(batch, retry_at, new_epoch=following is NextStep.NEW_EPOCH)
                return
            error.outcome = "unknown" if maybe_written else "not_written"
            self.accumulator.failed(batch, error, log_disagrees=append_retry.log_disagrees(error))
        self._complete_decided(batch.queue)

    def _fence(self, error: MyQueueError) -> None:
        if self.fatal is None:
            self.fatal = _copy_of(error)
        self.refusing = True
        self._set_flushing()
        self.dispatch()

    def _complete_decided(self, queue: PartitionQueue) -> None:
        """Completes the decided batches at the queue's front, one thread at a time: callbacks run in its order."""
        with self.lock:
            if queue.completing:
                return  # the thread that is completing goes on with what was decided now
            if self._on_delivery is None:
                while (batch := self.accumulator.next_decided(queue)) is not None:
                    self._set_result(batch)
                    self._remove(batch)
                return
            queue.completing = True
        while True:
            with self.lock:
                batch = self.accumulator.next_decided(queue)
                if batch is None:
                    queue.completing = False
                    return
                self._set_result(batch)
            self._run_callbacks(self._on_delivery, batch)  # before a flush returns
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
        self.changed.notify_all()

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
        if self._on_delivery is not None:
            self._run_callbacks(self._on_delivery, message)
        with self.lock:
            if message in self._incomplete_idempotent:
                self._incomplete_idempotent.remove(message)
                self.accumulator.buffered -= message.size
            self.changed.notify_all()

    def _run_callbacks(self, on_delivery: OnDelivery, result: BatchResult) -> None:
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


def _copy_of(error: MyQueueError) -> MyQueueError:
    """The same error for another message: each has its own outcome and traceback."""
    return type(error)(error.message, outcome="not_written", request_id=error.request_id, details=error.details)
