"""The threads of a producer: they send batches to their leaders, retry them, and complete their deliveries."""

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable

from myqueue import append_retry, data_plane
from myqueue.accumulator import Accumulator, Batch, encode
from myqueue.append_retry import NextStep
from myqueue.delivery import BatchResult, Deliveries, Delivery
from myqueue.http_connection import HttpConnection
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


class IdempotentMessage(BatchResult):
    """A message with an idempotency key: it is sent alone, by the simple API."""

    __slots__ = ("deadline", "idempotency_key", "key", "to_partition", "value")

    def __init__(
        self,
        topic: str,
        value: bytes,
        key: bytes | None,
        partition: int | None,
        idempotency_key: str,
        deadline: float,
    ) -> None:
        super().__init__(topic, _no_linger)
        self.value, self.key, self.to_partition = value, key, partition
        self.idempotency_key, self.deadline = idempotency_key, deadline
        self.count = 1

    @property
    def size(self) -> int:
        return len(self.value) + len(self.key or b"")


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
        self._work = threading.Condition(self.lock)
        self._stopping = False
        self._idle_threads = 0
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
        self.identity = ProducerIdentity(transport, topic, name)
        self._routing = RoutingCache(transport, topic)
        table = self._routing.table()
        self.identity.check_topic(table.topic_id)
        self.accumulator = Accumulator(
            topic,
            len(table.leaders),
            batch_bytes=batch_bytes,
            linger_s=linger_s,
            delivery_timeout_s=delivery_timeout_s,
            clock=time.monotonic,
            wake=self._wake,
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
        self._wake()

    def drain(self, timeout: float | None) -> list[BatchResult]:
        """Waits until nothing is in flight; the batches that failed since the last call. Raises TimeoutError."""
        with self.lock:
            self._flushes += 1
            self._set_flushing()
            self._wake()
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
            self._work.notify_all()
            self.changed.notify_all()
        if self._on_delivery is not None:
            for result in left:
                self._run_callbacks(self._on_delivery, result)
        for thread in self._threads:
            thread.join(1.0)  # longer only while an abandoned attempt waits for its response

    # `_wake` and `_set_flushing` are called with the lock held.

    def _wake(self) -> None:
        if self._idle_threads == 0 and len(self._threads) < self._max_threads:
            thread = threading.Thread(
                target=self._run, name=f"myqueue-{self.identity.name}-{len(self._threads)}", daemon=True
            )
            self._threads.add(thread)
            thread.start()
        else:
            self._work.notify()

    def _set_flushing(self) -> None:
        self.accumulator.flushing = self._flushes > 0 or self.fatal is not None

    def _skip_linger(self, result: BatchResult) -> None:
        if isinstance(result, Batch):
            with self.lock:
                self.accumulator.skip_linger(result)
                self._wake()

    def _run(self) -> None:
        connection = HttpConnection(self._transport.url)
        while (taken := self._take()) is not None:
            if isinstance(taken, Batch):
                self._send(connection, taken)
            else:
                self._complete(taken, self._send_idempotent(taken))
        connection.close()

    def _take(self) -> Batch | IdempotentMessage | None:
        with self.lock:
            while True:
                now = time.monotonic()
                taken = self._idempotent.popleft() if self._idempotent else self.accumulator.take(now)
                due = self.accumulator.next_due()
                if taken is not None:
                    if self._idempotent or due is not None:
                        self._wake()  # another thread takes the next one
                    return taken
                if self._stopping:
                    return None
                self._idle_threads += 1
                self._work.wait(None if due is None else max(0.0, due - now))
                self._idle_threads -= 1

    def _send(self, connection: HttpConnection, batch: Batch) -> None:
        try:
            self._attempt(connection, batch)
        except Exception as error:
            # The thread must survive a defect, else every later send would wait for ever.
            logger.exception("sending to %s", self.identity.topic)
            self._require_new_epoch(batch)
            self._complete(batch, MyQueueError(f"defect while sending: {error!r}", outcome="unknown"))

    def _attempt(self, connection: HttpConnection, batch: Batch) -> None:
        table: RoutingTable | None = None
        try:
            stamp, body = self._prepare(batch)
            table = self._routing.table()
            self.identity.check_topic(table.topic_id)
            leader = table.leader(batch.partition)
        except MyQueueError as error:
            error.outcome = "not_written"  # of the batch, whatever the outcome of the request that failed
            self._attempt_failed(batch, error, table, sent=False)
            return
        left_s = max(SHORTEST_ATTEMPT_S, batch.deadline - time.monotonic())
        head = self._head(batch, stamp)
        with self.lock:
            if batch not in self.accumulator.incomplete:
                return  # abandoned by close, which has reported it as not written
            batch.attempts += 1
        try:
            base_offset = data_plane.append(
                connection, table, leader, batch.partition, head, body, min(APPEND_S, left_s)
            )
        except MyQueueError as error:
            self._attempt_failed(batch, error, table, sent=True)
            return
        self.identity.stored(batch.partition, stamp, batch.count)
        self._complete(batch, base_offset)

    def _prepare(self, batch: Batch) -> tuple[Stamp, bytes]:
        if self.fatal is not None:
            raise _copy_of(self.fatal)
        if time.monotonic() >= batch.deadline:
            raise batch.last_error or TimedOut("waited in the send buffer past its delivery timeout")
        if batch.encoded is None:
            batch.encoded = encode(batch, self._codec)
        body = batch.encoded[1]
        if HEADER_BYTES + len(body) > MAX_BATCH_BYTES:
            raise TooLarge(f"a batch of {len(body)} bytes is over the limit of {MAX_BATCH_BYTES}")
        if batch.stamp is None:
            batch.stamp = self.identity.next_stamp(batch.partition)
        return batch.stamp, body

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

    def _attempt_failed(self, batch: Batch, error: MyQueueError, table: RoutingTable | None, *, sent: bool) -> None:
        batch.failures += 1
        batch.last_error = error
        if sent:
            batch.maybe_written = batch.maybe_written or error.outcome != "not_written"
            following = append_retry.next_step(error, batch.maybe_written)
        elif isinstance(error, ProducerFenced):
            following = NextStep.FENCED
        elif isinstance(error, NoLeader):
            following = NextStep.REROUTE
        else:
            following = NextStep.RETRY if error.retriable else NextStep.FAIL
        pause_s = 0.0
        if not append_retry.retries_at_once(error, batch.failures):
            # Retry-After is for another request to the same broker.
            retry_after_s = None if following is NextStep.REROUTE else error.retry_after_s
            pause_s = self._transport.retry.pause_s(batch.failures, retry_after_s, random.random())  # noqa: S311
        retry_at = time.monotonic() + pause_s
        if following is NextStep.REROUTE and table is not None:
            try:
                self._routing.reroute(batch.partition, error, table)
            except TopicNotFound as gone:
                error, following = gone, NextStep.FAIL
        if following is NextStep.FENCED:
            self._fence(error)
        elif following is not NextStep.FAIL and retry_at < batch.deadline:
            if following is NextStep.NEW_EPOCH:
                self._require_new_epoch(batch)
                batch.stamp = None
            with self.lock:
                if batch in self.accumulator.incomplete:
                    self.accumulator.retry(batch, retry_at)
                    self._wake()
            return
        error.outcome = "unknown" if batch.maybe_written else "not_written"
        if append_retry.needs_new_epoch(error, batch.maybe_written):
            self._require_new_epoch(batch)
        self._complete(batch, error)

    def _require_new_epoch(self, batch: Batch) -> None:
        if batch.stamp is not None:
            self.identity.require_new_epoch(batch.partition, batch.stamp)

    def _fence(self, error: MyQueueError) -> None:
        with self.lock:
            if self.fatal is None:
                self.fatal = _copy_of(error)
            self.refusing = True
            self._set_flushing()
            self._work.notify_all()

    def _send_idempotent(self, message: IdempotentMessage) -> int | MyQueueError:
        left_s = message.deadline - time.monotonic()
        if left_s <= 0:
            return TimedOut("waited in the send buffer past its delivery timeout")
        try:
            body = self._api.produce(
                message.topic,
                self.identity.producer_id,
                message.value,
                message.key,
                message.to_partition,
                idempotency_key=message.idempotency_key,
                deadline_s=left_s,
            )
        except MyQueueError as error:
            return error
        except Exception as error:
            logger.exception("sending to %s", message.topic)
            return MyQueueError(f"defect while sending: {error!r}", outcome="unknown")
        message.to_partition = body["partition_id"]
        offset: int = body["offset"]
        return offset

    def _complete(self, result: Batch | IdempotentMessage, outcome: int | MyQueueError) -> None:
        with self.lock:
            if result not in self.accumulator.incomplete and result not in self._incomplete_idempotent:
                return  # abandoned by close
            if isinstance(outcome, MyQueueError):
                if self._on_delivery is None and len(self._failed) < MAX_REMEMBERED:
                    self._failed.append(result)
                result.failed(outcome)
            else:
                partition = result.partition if isinstance(result, Batch) else result.to_partition
                assert partition is not None
                result.stored(partition, outcome)
        # Before the partition's next batch: callbacks run in the partition's order, and before a flush returns.
        if self._on_delivery is not None:
            self._run_callbacks(self._on_delivery, result)
        with self.lock:
            if isinstance(result, Batch):
                self.accumulator.complete(result)
                result.drop_messages()
            elif result in self._incomplete_idempotent:
                self._incomplete_idempotent.remove(result)
                self.accumulator.buffered -= result.size
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


class TimedOut(Unavailable):
    retriable = False
    default_outcome = "not_written"


def _copy_of(error: MyQueueError) -> MyQueueError:
    """The same error for another message: each has its own outcome and traceback."""
    return type(error)(error.message, outcome="not_written", request_id=error.request_id, details=error.details)


def _no_linger(_result: BatchResult) -> None:
    """An idempotent message does not linger."""
