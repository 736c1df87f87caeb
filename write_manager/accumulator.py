"""The accumulator: single messages wait per partition and share batches. No IO, no clock.

A partition has at most one batch in flight; messages that arrive meanwhile form the next one. Every message has its
own dedup record, so a retry may batch the same messages differently.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple, cast
from uuid import UUID

from myqueue.protocol import batch as batches
from myqueue.protocol.batch import NO_PRODUCER, Message
from myqueue.protocol.dedup_records import DedupRecord, encode_dedup_records, message_crc
from myqueue.protocol.errors import BY_CODE, InternalError, MyQueueError, NoLeader, Outcome, TooLarge
from myqueue.protocol.limits import MAX_KEY_BYTES, MAX_MESSAGE_BYTES
from myqueue.protocol.small_batch import FEW, encode_few
from write_manager.metadata_cache import CachedPartition

MAX_MESSAGES = 4096
MAX_BYTES = 1 << 20

# Size in a batch besides the bytes of the message itself: offsets, timestamp, dedup record; and of each header.
MESSAGE_OVERHEAD_BYTES = 56
HEADER_OVERHEAD_BYTES = 16


class AppendOutcome(NamedTuple):
    partition_id: int
    result: int | MyQueueError  # the message's offset, or why it has none


class ProduceRequest:
    """The messages of one request, which are answered together."""

    __slots__ = ("_done", "_outcomes", "_pending", "producer_id", "received_s", "request_id")

    def __init__(
        self,
        count: int,
        done: Callable[[list[AppendOutcome]], None],
        *,
        producer_id: int = NO_PRODUCER,
        request_id: str | None = None,
        received_s: float = 0.0,
    ) -> None:
        self._pending = count
        self._done = done
        self._outcomes: list[AppendOutcome | None] = [None] * count
        self.producer_id = producer_id
        self.request_id = request_id
        self.received_s = received_s

    def complete(self, position: int, outcome: AppendOutcome) -> None:
        self._outcomes[position] = outcome
        self._pending -= 1
        if self._pending == 0:
            self._done(cast(list[AppendOutcome], self._outcomes))


class StickyBatch:
    """Messages that the sticky partitioner sent to one partition together."""

    __slots__ = ("_done", "_pending", "count")

    def __init__(self, count: int, done: Callable[["StickyBatch"], None]) -> None:
        self.count = self._pending = count
        self._done = done

    def complete_one(self) -> None:
        self._pending -= 1
        if self._pending == 0:
            self._done(self)


@dataclass(slots=True, eq=False)
class PendingMessage:
    """One message, from the parsed request until its outcome is known."""

    message: Message
    partition_id: int | None  # None: any partition
    crc: int
    size_bytes: int  # at most, in a batch
    identity: bytes = b""  # hash of its idempotency key, for the broker's deduplication
    request: ProduceRequest = field(init=False)
    position: int = field(init=False)  # in the request
    outcome: Outcome = "not_written"  # of the attempts so far
    sticky_batch: StickyBatch | None = None  # for one that may go to any partition

    def complete(self, partition_id: int, result: int | MyQueueError) -> None:
        if self.sticky_batch is not None:
            self.sticky_batch.complete_one()
        self.request.complete(self.position, AppendOutcome(partition_id, result))


def pending_message(message: Message, partition_id: int | None) -> PendingMessage:
    """Raises TooLarge."""
    value_bytes = len(message.value)
    key_bytes = 0 if message.key is None else len(message.key)
    size = value_bytes + key_bytes + MESSAGE_OVERHEAD_BYTES
    header_bytes = 0
    if message.headers:
        header_bytes = sum(len(name.encode()) + len(value or b"") for name, value in message.headers)
        size += header_bytes + HEADER_OVERHEAD_BYTES * len(message.headers)
    if value_bytes > MAX_MESSAGE_BYTES or key_bytes > MAX_KEY_BYTES or header_bytes > MAX_MESSAGE_BYTES:
        _refuse_size(value_bytes, key_bytes, header_bytes)
    return PendingMessage(message, partition_id, message_crc(message), size)


def _refuse_size(value_bytes: int, key_bytes: int, header_bytes: int) -> None:
    for name, size, limit in (
        ("message", value_bytes, MAX_MESSAGE_BYTES),
        ("key", key_bytes, MAX_KEY_BYTES),
        ("headers", header_bytes, MAX_MESSAGE_BYTES),
    ):
        if size > limit:
            raise TooLarge(f"{name} has {size} bytes, the limit is {limit}")


class PartitionQueue:
    """The messages of one partition: those in flight in a batch, and those that wait, first come first served."""

    __slots__ = ("in_flight", "partition", "replica_index", "topic_id", "waiting")

    def __init__(self, topic_id: UUID, partition: CachedPartition) -> None:
        self.topic_id = topic_id
        self.partition = partition
        self.waiting: deque[PendingMessage] = deque()
        self.in_flight: Sequence[PendingMessage] = ()
        self.replica_index = 0  # which live replica to try next, the presumed leader being the first

    @property
    def oldest_s(self) -> float:
        """When the oldest message in flight was received."""
        return min(pending.request.received_s for pending in self.in_flight)

    def next_batch(self) -> bytes:
        """The next batch with its dedup records; in flight from now on. Needs waiting messages and none in flight."""
        count, size = 0, 0
        for pending in islice(self.waiting, MAX_MESSAGES):
            size += pending.size_bytes
            if count and size > MAX_BYTES:
                break
            count += 1
        taken = self.in_flight = [self.waiting.popleft() for _ in range(count)]
        batch = encode_batch(self.topic_id, self.partition.partition_id, [pending.message for pending in taken])
        return batch + encode_dedup_records(
            [
                DedupRecord(place, pending.request.producer_id, pending.crc, pending.identity)
                for place, pending in enumerate(taken)
            ]
        )

    def complete(self, offsets: Sequence[int]) -> None:
        """`offsets` are those of the messages, or minus the error codes that refused them."""
        taken, self.in_flight = self.in_flight, ()
        if len(offsets) != len(taken):
            for pending in taken:
                defect = InternalError("the broker answered for another number of messages", outcome="unknown")
                pending.complete(self.partition.partition_id, defect)
            return
        partition_id = self.partition.partition_id
        for pending, offset in zip(taken, offsets, strict=True):
            pending.complete(partition_id, offset if offset >= 0 else _refusal(-offset))

    def retry(self, error: MyQueueError) -> None:
        """Put the messages in flight back to the head of the queue, in the same order."""
        taken, self.in_flight = self.in_flight, ()
        if error.outcome == "unknown":
            for pending in taken:
                pending.outcome = "unknown"
        self.waiting.extendleft(reversed(taken))

    def fail(self, error: MyQueueError) -> None:
        """A retry cannot help. Each message gets an error of its own: requests are answered one by one."""
        taken, self.in_flight = self.in_flight, ()
        for pending in taken:
            outcome = "unknown" if pending.outcome == "unknown" else error.outcome
            own = type(error)(
                error.message, outcome=outcome, retry_after_s=error.retry_after_s, details=dict(error.details)
            )
            pending.complete(self.partition.partition_id, own)

    def expire(self, received_before_s: float) -> None:
        """Answer NoLeader to the waiting messages that were received before."""
        while self.waiting and self.waiting[0].request.received_s <= received_before_s:
            pending = self.waiting.popleft()
            pending.complete(self.partition.partition_id, NoLeader(outcome=pending.outcome, retry_after_s=1))


def _refusal(error_code: int) -> MyQueueError:
    error = BY_CODE.get(error_code)
    if error is None:
        return InternalError(f"the broker answered with an unknown error, {error_code}", outcome="unknown")
    return error(outcome="not_written")


def encode_batch(topic_id: UUID, partition_id: int, messages: Sequence[Message]) -> bytes:
    """The same as protocol.batch.encode: header and body, offsets not yet set. A few messages without headers need
    none of Arrow's builders."""
    if len(messages) > FEW or any(message.headers for message in messages):
        return batches.encode(topic_id, partition_id, messages)
    keys, values, timestamps = (
        [message.key for message in messages],
        [message.value for message in messages],
        [message.timestamp for message in messages],
    )
    body = encode_few(keys, values, timestamps)
    return batches.header_for(topic_id, partition_id, body, len(messages)).pack() + body
