"""The threads of a producer: they take batches, send each to its leader until it is decided, and tell deliveries."""

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable

from myqueue import attempts, data_plane
from myqueue.attempts import Next
from myqueue.batcher import Batch, Batcher
from myqueue.delivery import Decision, Deliveries, Delivery
from myqueue.encoding import encode
from myqueue.identity import Identity
from myqueue.protocol.batch import HEADER_BYTES, Header
from myqueue.protocol.errors import MyQueueError, NoLeader, ProducerFenced, TooLarge, TopicNotFound, Unavailable
from myqueue.protocol.limits import MAX_BATCH_BYTES
from myqueue.routing import Routing, RoutingTable
from myqueue.sequences import Stamp
from myqueue.simple_api import SimpleApi
from myqueue.transport import SHORTEST_ATTEMPT_S, Transport
from myqueue.wire import Wire

logger = logging.getLogger("myqueue")

OnDelivery = Callable[[Delivery | Deliveries], None]
MAX_REMEMBERED = 10_000  # batches that failed, for the next flush to tell
APPEND_S = 3.0  # for one attempt: a broker decides within 2 s, the rest is for the way there and back


class Single(Decision):
    """A message with an identity of its own: it goes alone, by the simple API."""

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
        super().__init__(topic, _no_hurry)
        self.value, self.key, self.to_partition = value, key, partition
        self.idempotency_key, self.deadline = idempotency_key, deadline
        self.count = 1

    @property
    def size(self) -> int:
        return len(self.value) + len(self.key or b"")


class Sender:
    """`lock` guards the batcher and everything else in here; what happens outside of it is waiting and IO."""

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
        self.changed = threading.Condition(self.lock)  # something was decided
        self.refusing = False  # closed or fenced: no more sends
        self.fatal: MyQueueError | None = None
        self._work = threading.Condition(self.lock)
        self._stopping = False
        self._idle_threads = 0
        self._threads: set[threading.Thread] = set()
        self._max_threads = max_in_flight
        self._singles: deque[Single] = deque()
        self._undecided_singles: set[Single] = set()
        self._flushes = 0
        self._failed: list[Decision] = []
        self._telling = threading.Lock()  # callbacks run one at a time
        self._on_delivery = on_delivery
        self._transport = transport
        self._api = SimpleApi(transport)
        self._codec = codec
        self.identity = Identity(transport, topic, name)
        self._routing = Routing(transport, topic)
        table = self._routing.table()
        self.identity.check_topic(table.topic_id)
        self.batcher = Batcher(
            topic,
            len(table.leaders),
            batch_bytes=batch_bytes,
            linger_s=linger_s,
            delivery_timeout_s=delivery_timeout_s,
            clock=time.monotonic,
            wake=self._wake,
            hurry=self._hurry,
        )

    @property
    def in_callback(self) -> bool:
        return threading.current_thread() in self._threads

    @property
    def undecided(self) -> int:
        return sum(len(batch.values) for batch in self.batcher.undecided) + len(self._undecided_singles)

    def add_single(self, single: Single) -> None:
        self._singles.append(single)
        self._undecided_singles.add(single)
        self.batcher.buffered += single.size
        self._wake()

    def drain(self, timeout: float | None) -> list[Decision]:
        """Waits until all is decided; what has failed since the last time. TimeoutError if it takes longer."""
        with self.lock:
            self._flushes += 1
            self._set_hurried()
            self._wake()
            try:
                done = self.changed.wait_for(
                    lambda: not self.batcher.undecided and not self._undecided_singles, timeout
                )
            finally:
                self._flushes -= 1
                self._set_hurried()
            if not done:
                raise TimeoutError(f"{self.undecided} messages are still on their way after {timeout} s")
            failed, self._failed = self._failed, []
            return failed

    def stop(self) -> None:
        """What is not decided now fails; the threads end."""
        with self.lock:
            self._stopping = True
            left: list[Decision] = [*self.batcher.abandon(), *self._undecided_singles]
            waiting = set(self._singles)
            self._singles.clear()
            self._undecided_singles.clear()
            for decision in left:
                sent = decision.perhaps_sent if isinstance(decision, Batch) else decision not in waiting
                decision.failed(
                    Unavailable(
                        "the producer was closed before the answer", outcome="unknown" if sent else "not_written"
                    )
                )
            self._work.notify_all()
            self.changed.notify_all()
        if self._on_delivery is not None:
            for decision in left:
                self._tell(self._on_delivery, decision)
        for thread in self._threads:
            thread.join(1.0)  # longer only while an attempt that was abandoned waits for its answer

    # Called with the lock held

    def _wake(self) -> None:
        if self._idle_threads == 0 and len(self._threads) < self._max_threads:
            thread = threading.Thread(
                target=self._run, name=f"myqueue-{self.identity.name}-{len(self._threads)}", daemon=True
            )
            self._threads.add(thread)
            thread.start()
        else:
            self._work.notify()

    def _set_hurried(self) -> None:
        self.batcher.hurried = self._flushes > 0 or self.fatal is not None

    # Called without it

    def _hurry(self, decision: Decision) -> None:
        if isinstance(decision, Batch):
            with self.lock:
                self.batcher.hurry(decision)
                self._wake()

    def _run(self) -> None:
        wire = Wire(self._transport.url)
        while (taken := self._take()) is not None:
            if isinstance(taken, Batch):
                self._send(wire, taken)
            else:
                self._settle(taken, self._send_single(taken))
        wire.close()

    def _take(self) -> Batch | Single | None:
        with self.lock:
            while True:
                now = time.monotonic()
                taken = self._singles.popleft() if self._singles else self.batcher.take(now)
                due = self.batcher.next_due()
                if taken is not None:
                    if self._singles or due is not None:
                        self._wake()  # somebody else looks after the rest
                    return taken
                if self._stopping:
                    return None
                self._idle_threads += 1
                self._work.wait(None if due is None else max(0.0, due - now))
                self._idle_threads -= 1

    def _send(self, wire: Wire, batch: Batch) -> None:
        try:
            self._attempt(wire, batch)
        except Exception as error:
            # The thread must outlive a defect, else every later send would wait for ever.
            logger.exception("sending to %s", self.identity.topic)
            self._spend(batch)
            self._settle(batch, MyQueueError(f"defect while sending: {error!r}", outcome="unknown"))

    def _attempt(self, wire: Wire, batch: Batch) -> None:
        table: RoutingTable | None = None
        try:
            stamp, body = self._prepare(batch)
            table = self._routing.table()
            leader = self._leader(table, batch.partition)
        except MyQueueError as error:
            error.outcome = "not_written"  # whatever was asked for, the batch was not sent
            self._attempt_failed(batch, error, table, sent=False)
            return
        left_s = max(SHORTEST_ATTEMPT_S, batch.deadline - time.monotonic())
        head = self._head(batch, stamp)
        with self.lock:
            if batch not in self.batcher.undecided:
                return  # given up by close, which has said that it was not written
            batch.attempts += 1
        try:
            base_offset = data_plane.append(wire, table, leader, batch.partition, head, body, min(APPEND_S, left_s))
        except MyQueueError as error:
            self._attempt_failed(batch, error, table, sent=True)
            return
        self.identity.stored(batch.partition, stamp, batch.count)
        self._settle(batch, base_offset)

    def _leader(self, table: RoutingTable, partition: int) -> int:
        self.identity.check_topic(table.topic_id)
        leader = table.leaders[partition]
        if leader is None:
            raise NoLeader(outcome="not_written")
        return leader

    def _prepare(self, batch: Batch) -> tuple[Stamp, bytes]:
        if self.fatal is not None:
            raise _again(self.fatal)
        if time.monotonic() >= batch.deadline:
            raise batch.trouble or TimedOut("waited in the send buffer past its delivery timeout")
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
        batch.trouble = error
        if sent:
            batch.maybe_written = batch.maybe_written or error.outcome != "not_written"
            following = attempts.judge(error, batch.maybe_written)
        elif isinstance(error, ProducerFenced):
            following = Next.FENCED
        elif isinstance(error, NoLeader):
            following = Next.REROUTE
        else:
            following = Next.RETRY if error.retriable else Next.FAIL
        pause_s = 0.0
        if not attempts.at_once(error, batch.failures):
            # Retry-After is for those who would ask the same broker again, not for who asks where else to go.
            retry_after_s = None if following is Next.REROUTE else error.retry_after_s
            pause_s = self._transport.retry.pause_s(batch.failures, retry_after_s, random.random())  # noqa: S311
        retry_at = time.monotonic() + pause_s
        if following is Next.REROUTE and table is not None and (gone := self._reroute(batch.partition, error, table)):
            error, following = gone, Next.FAIL
        if following is Next.FENCED:
            self._fence(error)
        elif following is not Next.FAIL and retry_at < batch.deadline:
            if following is Next.NEW_EPOCH:
                self._spend(batch)
                batch.stamp = None
            with self.lock:
                if batch in self.batcher.undecided:
                    self.batcher.retry(batch, retry_at)
                    self._wake()
            return
        error.outcome = "unknown" if batch.maybe_written else "not_written"
        if attempts.spends_epoch(error, batch.maybe_written):
            self._spend(batch)
        self._settle(batch, error)

    def _reroute(self, partition: int, error: MyQueueError, table: RoutingTable) -> TopicNotFound | None:
        """Learns who leads; the error if there is nobody to learn of any more."""
        leader = error.details.get("leader")
        if isinstance(leader, int) and leader != table.leaders[partition]:
            self._routing.follow(partition, leader)
            return None
        try:
            self._routing.renewed(table)
        except TopicNotFound as gone:
            return gone
        except MyQueueError as failed:
            logger.debug("routing of %s is not renewed: %s", self.identity.topic, failed)  # the next attempt tells
        return None

    def _spend(self, batch: Batch) -> None:
        if batch.stamp is not None:
            self.identity.spend(batch.partition, batch.stamp)

    def _fence(self, error: MyQueueError) -> None:
        with self.lock:
            if self.fatal is None:
                self.fatal = _again(error)
            self.refusing = True
            self._set_hurried()
            self._work.notify_all()

    def _send_single(self, single: Single) -> int | MyQueueError:
        left_s = single.deadline - time.monotonic()
        if left_s <= 0:
            return TimedOut("waited in the send buffer past its delivery timeout")
        try:
            body = self._api.produce(
                single.topic,
                self.identity.producer_id,
                single.value,
                single.key,
                single.to_partition,
                idempotency_key=single.idempotency_key,
                deadline_s=left_s,
            )
        except MyQueueError as error:
            return error
        except Exception as error:
            logger.exception("sending to %s", single.topic)
            return MyQueueError(f"defect while sending: {error!r}", outcome="unknown")
        single.to_partition = body["partition_id"]
        offset: int = body["offset"]
        return offset

    def _settle(self, decision: Batch | Single, outcome: int | MyQueueError) -> None:
        with self.lock:
            if decision not in self.batcher.undecided and decision not in self._undecided_singles:
                return  # abandoned by close
            if isinstance(outcome, MyQueueError):
                if self._on_delivery is None and len(self._failed) < MAX_REMEMBERED:
                    self._failed.append(decision)
                decision.failed(outcome)
            else:
                partition = decision.partition if isinstance(decision, Batch) else decision.to_partition
                assert partition is not None
                decision.stored(partition, outcome)
        # Before the lane goes on: callbacks come in the partition's order, and a flush returns when they have run.
        if self._on_delivery is not None:
            self._tell(self._on_delivery, decision)
        with self.lock:
            if isinstance(decision, Batch):
                self.batcher.settle(decision)
                decision.drop_messages()
            elif decision in self._undecided_singles:
                self._undecided_singles.remove(decision)
                self.batcher.buffered -= decision.size
            self.changed.notify_all()

    def _tell(self, on_delivery: OnDelivery, decision: Decision) -> None:
        deliveries: list[Delivery | Deliveries] = []
        at = 0
        for first, count in [*(decision.bulks if isinstance(decision, Batch) else ()), (decision.count, 0)]:
            deliveries += [Delivery(decision, index) for index in range(at, first)]
            if count:
                deliveries.append(Deliveries([(decision, first, count)]))
            at = first + count
        with self._telling:
            for delivery in deliveries:
                try:
                    delivery.exception(0)  # from here on it counts as noticed
                    on_delivery(delivery)
                except Exception:
                    logger.exception("on_delivery raised")  # the caller's defect must not stop the messages behind


class TimedOut(Unavailable):
    """It waited longer than its delivery timeout."""

    retriable = False
    default_outcome = "not_written"


def _again(error: MyQueueError) -> MyQueueError:
    """An error of the same kind for another message: each carries its own outcome and traceback."""
    return type(error)(error.message, outcome="not_written", request_id=error.request_id, details=error.details)


def _no_hurry(_decision: Decision) -> None:
    """It does not linger anyway."""
