"""The producer's accumulator: collects messages into batches and chooses the next batch to send.

No threads, no IO; the caller locks. Each partition has a queue: its batches are sent one at a time and in order, and a
failed batch stays in front until it is stored or has failed. A sticky partitioner places messages without key and
partition: they fill one partition's batch, then move to the partition with the shortest queue.
"""

from collections import deque
from collections.abc import Callable, Iterator

import pyarrow as pa
from crc32c import crc32c

from myqueue.delivery import BatchResult, Delivery
from myqueue.producer_identity import Stamp
from myqueue.protocol.batch import SCHEMA, encode_record_batch, no_headers
from myqueue.protocol.errors import MyQueueError, PartitionNotFound
from myqueue.protocol.partitioner import partition_for

Headers = tuple[tuple[str, bytes | None], ...]

# Bytes of a message in a batch besides its content: value, key and header offsets, the timestamp.
MESSAGE_OVERHEAD = 21
# `split` does not fill a batch of which less than this fraction is free.
_WORTH_FILLING = 16
_KEY, _VALUE, _TIMESTAMP, _HEADERS = (SCHEMA.field(name).type for name in ("key", "value", "timestamp", "headers"))


class Batch(BatchResult):
    """Messages for one partition. Filled while it is open; encoded and stamped before its first attempt."""

    __slots__ = (
        "attempts",
        "bulks",
        "deadline",
        "due",
        "encoded",
        "failures",
        "headers",
        "keys",
        "last_error",
        "maybe_written",
        "queue",
        "size",
        "stamp",
        "timestamps",
        "values",
    )

    def __init__(
        self,
        topic: str,
        skip_linger: Callable[[BatchResult], None],
        queue: "PartitionQueue",
        due: float,
        deadline: float,
    ) -> None:
        super().__init__(topic, skip_linger)
        self.queue = queue
        self.partition = queue.partition
        self.due = due
        self.deadline = deadline
        self.size = 0
        self.values: list[bytes] = []
        self.timestamps: list[int] = []
        self.keys: list[bytes | None] | None = None  # while no message has one
        self.headers: list[Headers | None] | None = None
        self.bulks: list[tuple[int, int]] = []  # messages of one `send_many`: index of the first one, count
        self.encoded: tuple[int, bytes] | None = None  # CRC and body
        self.stamp: Stamp | None = None
        self.attempts = 0
        self.failures = 0  # of attempts, and of their preparation
        self.maybe_written = False
        self.last_error: MyQueueError | None = None

    @property
    def maybe_sent(self) -> bool:
        """Whether an attempt was carried out, or may be in flight."""
        return self.maybe_written or (self.attempts > 0 and self.queue.sending)

    def drop_messages(self) -> None:
        """Frees the messages of a completed batch: the caller may keep its deliveries for long."""
        self.values, self.timestamps, self.keys, self.headers, self.encoded = [], [], None, None, None


class PartitionQueue:
    __slots__ = ("in_flight", "open", "partition", "ready", "retry_at", "sending")

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.open: Batch | None = None
        self.ready: deque[Batch] = deque()
        self.in_flight: Batch | None = None  # the first one, from its first attempt until it is complete
        self.sending = False  # a thread is sending `in_flight` right now
        self.retry_at = 0.0

    @property
    def backlog(self) -> int:
        return len(self.ready) + (self.in_flight is not None)

    @property
    def idle(self) -> bool:
        return self.in_flight is None and self.open is None and not self.ready

    def due(self, flushing: bool) -> float:
        if self.in_flight is not None:
            return self.retry_at
        if self.ready or flushing:
            return 0.0
        return self.open.due if self.open is not None else 0.0


class Accumulator:
    def __init__(
        self,
        topic: str,
        partitions: int,
        *,
        batch_bytes: int,
        linger_s: float,
        delivery_timeout_s: float,
        clock: Callable[[], float],
        wake: Callable[[], None],
        skip_linger: Callable[[BatchResult], None],
    ) -> None:
        """`wake` is called when `next_due` may have become earlier."""
        self.flushing = False  # batches do not linger
        self.incomplete: set[Batch] = set()
        self.buffered = 0  # bytes
        self._topic = topic
        self._batch_bytes = batch_bytes
        self._linger_s = linger_s
        self._delivery_timeout_s = delivery_timeout_s
        self._clock = clock
        self._wake = wake
        self._skip_linger = skip_linger
        self._queues = [PartitionQueue(partition) for partition in range(partitions)]
        # Queues with a batch that no thread is sending, longest waiting first.
        self._active: dict[int, PartitionQueue] = {}
        self._last_sticky = 0
        self._sticky = self._queues[0]

    def add(
        self,
        value: bytes,
        key: bytes | None,
        partition: int | None,
        timestamp: int,
        headers: Headers | None,
        size: int,
    ) -> Delivery:
        queue = self._sticky if partition is None and key is None else self._queue_of(key, partition)
        batch = queue.open
        if batch is None or batch.size + size > self._batch_bytes:
            batch = self._new_batch(queue, size, partition is None and key is None)
        values = batch.values
        index = len(values)
        values.append(value)
        batch.timestamps.append(timestamp)
        if key is not None or batch.keys is not None:
            if batch.keys is None:
                batch.keys = [None] * index
            batch.keys.append(key)
        if headers is not None or batch.headers is not None:
            if batch.headers is None:
                batch.headers = [None] * index
            batch.headers.append(headers)
        batch.size += size
        self.buffered += size
        return Delivery(batch, index)

    def add_many(
        self, values: list[bytes], partition: int | None, timestamp: int, size: int
    ) -> tuple[BatchResult, int, int]:
        """Adds messages without keys or headers that fit into one batch: the batch, index of the first, count."""
        queue = self._sticky if partition is None else self._queue_of(None, partition)
        batch = queue.open
        if batch is None or batch.size + size > self._batch_bytes:
            batch = self._new_batch(queue, size, partition is None)
        index, count = len(batch.values), len(values)
        batch.values += values
        batch.timestamps += [timestamp] * count
        if batch.keys is not None:
            batch.keys += [None] * count
        if batch.headers is not None:
            batch.headers += [None] * count
        batch.size += size
        self.buffered += size
        batch.bulks.append((index, count))
        return batch, index, count

    def free_bytes(self, partition: int | None) -> int:
        """Bytes that the open batch of the partition can still take."""
        batch = (self._sticky if partition is None else self._queue_of(None, partition)).open
        return 0 if batch is None else max(0, self._batch_bytes - batch.size)

    def split(self, values: list[bytes], sizes: list[int], free_bytes: int = 0) -> Iterator[tuple[list[bytes], int]]:
        """Splits the values, in order, into parts that fit into a batch, with their sizes.

        A single value that is larger than a batch is a part of its own. The first part fits into `free_bytes` unless
        that is too little. `sizes` are those of the values. Slices whole lists: no Python code runs per message.
        """
        average = max(1, sum(sizes) // max(1, len(sizes)) + MESSAGE_OVERHEAD)
        limit = free_bytes if free_bytes >= max(average, self._batch_bytes // _WORTH_FILLING) else self._batch_bytes
        start = 0
        while start < len(values):
            end = start + max(1, limit // average)
            part = sizes[start:end]
            size = sum(part) + len(part) * MESSAGE_OVERHEAD
            while size > limit and len(part) > 1:
                part = part[: len(part) * 7 // 8]
                size = sum(part) + len(part) * MESSAGE_OVERHEAD
            end = start + len(part)
            yield values[start:end], size
            start = end
            limit = self._batch_bytes

    def take(self, now: float) -> Batch | None:
        """The next batch to send; no other batch of its partition is sent until `retry` or `complete`."""
        for queue in self._active.values():
            if queue.due(self.flushing) <= now:
                break
        else:
            return None
        del self._active[queue.partition]
        if queue.in_flight is None:
            if not queue.ready:
                self._close_open(queue)
            queue.in_flight = queue.ready.popleft()
            queue.in_flight.count = len(queue.in_flight.values)
        queue.sending = True
        return queue.in_flight

    def next_due(self) -> float | None:
        """When the next batch is due."""
        return min((queue.due(self.flushing) for queue in self._active.values()), default=None)

    def retry(self, batch: Batch, at: float) -> None:
        queue = batch.queue
        queue.retry_at = at
        queue.sending = False
        self._active[queue.partition] = queue

    def complete(self, batch: Batch) -> None:
        """The batch is stored or has failed: the next one of its partition may be sent."""
        queue = batch.queue
        if queue.in_flight is batch:
            queue.in_flight = None
            queue.sending = False
            if not queue.idle:
                self._active[queue.partition] = queue
        if batch in self.incomplete:
            self.incomplete.remove(batch)
            self.buffered -= batch.size

    def skip_linger(self, batch: Batch) -> None:
        batch.due = 0.0

    def abandon(self) -> list[Batch]:
        """Empties the queues; their batches, in order."""
        batches = [
            batch
            for queue in self._queues
            for batch in (queue.in_flight, *queue.ready, queue.open)
            if batch is not None and batch in self.incomplete
        ]
        for queue in self._queues:
            queue.in_flight, queue.open = None, None
            queue.ready.clear()
        for batch in batches:
            batch.count = len(batch.values)
        self._active.clear()
        self.incomplete.clear()
        self.buffered = 0
        return batches

    def _queue_of(self, key: bytes | None, partition: int | None) -> PartitionQueue:
        if partition is None:
            assert key is not None
            return self._queues[partition_for(key, len(self._queues))]
        if not 0 <= partition < len(self._queues):
            raise PartitionNotFound(f"partition not found: the topic has partitions 0 to {len(self._queues) - 1}")
        return self._queues[partition]

    def _new_batch(self, queue: PartitionQueue, size: int, sticky: bool) -> Batch:
        """An open batch that can take `size` bytes: of this queue, or with `sticky` of the next sticky partition."""
        if queue.open is not None:
            self._close_open(queue)
        if sticky:
            queue = self._sticky = self._next_sticky()
            if queue.open is not None:
                if queue.open.size + size <= self._batch_bytes:
                    return queue.open
                self._close_open(queue)
        now = self._clock()
        batch = Batch(self._topic, self._skip_linger, queue, now + self._linger_s, now + self._delivery_timeout_s)
        queue.open = batch
        self.incomplete.add(batch)
        if not queue.sending:
            self._active.setdefault(queue.partition, queue)
        self._wake()
        return batch

    def _close_open(self, queue: PartitionQueue) -> None:
        assert queue.open is not None
        queue.ready.append(queue.open)
        queue.open = None

    def _next_sticky(self) -> PartitionQueue:
        """Round robin among the shortest queues, so that a partition without a leader does not collect all messages."""
        queues, start = self._queues, self._last_sticky + 1
        best = min(
            (queues[(start + step) % len(queues)] for step in range(len(queues))),
            key=lambda queue: queue.backlog + (queue.open is not None),
        )
        self._last_sticky = best.partition
        return best


def encode(batch: Batch, codec: int) -> tuple[int, bytes]:
    """CRC and bytes of the batch's body. Builds whole columns: no Python code runs per message without headers."""
    count = len(batch.values)
    columns = [
        pa.nulls(count, _KEY) if batch.keys is None else pa.array(batch.keys, _KEY),
        pa.array(batch.values, _VALUE),
        pa.array(batch.timestamps, _TIMESTAMP),
        no_headers(count)
        if batch.headers is None
        else pa.array([_pairs(headers) for headers in batch.headers], _HEADERS),
    ]
    body = encode_record_batch(pa.RecordBatch.from_arrays(columns, schema=SCHEMA), codec)
    return crc32c(body), body


def _pairs(headers: Headers | None) -> list[dict[str, str | bytes | None]] | None:
    return [{"key": key, "value": value} for key, value in headers] if headers else None
