"""The producer's accumulator: collects messages into batches and chooses the next batch to send.

No threads, no IO; the caller locks. A batch is sent at once if nothing of its partition is in flight; otherwise it
collects messages until that is answered or it is full. A sticky partitioner places messages without key and partition:
they stay with a partition while it collects, up to a batch's worth of bytes or a tenth of a second, then move to the
partition with the shortest queue.
"""

from collections.abc import Callable, Iterator

import pyarrow as pa
from crc32c import crc32c

from myqueue.delivery import BatchResult, Delivery
from myqueue.message_columns import MESSAGE_OVERHEAD, FewMessages, split_columns
from myqueue.partition_queue import WINDOW, Batch, BatchState, Headers, PartitionQueue
from myqueue.producer_identity import Sequences
from myqueue.protocol.batch import CODEC_NONE, SCHEMA, encode_record_batch, no_headers
from myqueue.protocol.errors import MyQueueError, PartitionNotFound
from myqueue.protocol.partitioner import partition_for
from myqueue.protocol.small_batch import FEW, encode_few
from myqueue.send_buffer import SendBuffer

# `split` does not fill a batch of which less than this fraction is free.
_WORTH_FILLING = 16
_LONGEST_STAY_S = 0.1  # of messages without key and partition, at one partition
_KEY, _VALUE, _TIMESTAMP, _HEADERS = (SCHEMA.field(name).type for name in ("key", "value", "timestamp", "headers"))


class Accumulator:
    def __init__(
        self,
        topic: str,
        partitions: int,
        sequences: Sequences,
        *,
        batch_bytes: int,
        linger_s: float,
        delivery_timeout_s: float,
        clock: Callable[[], float],
        buffer: SendBuffer,
        most_in_flight: int = WINDOW,
        skip_linger: Callable[[BatchResult], None] | None = None,
    ) -> None:
        """`most_in_flight`: for each partition. `buffer` counts the bytes of all topics of a producer."""
        self.flushing = False  # batches do not linger
        self.incomplete: set[Batch] = set()
        self._buffer = buffer
        self.changed = False  # `next_due` may have become earlier; for the caller to reset
        self._topic = topic
        self._batch_bytes = batch_bytes
        self._linger_s = linger_s
        self._delivery_timeout_s = delivery_timeout_s
        self._clock = clock
        self._skip_linger = skip_linger if linger_s > 0 else None
        self._queues = [PartitionQueue(partition, sequences, most_in_flight) for partition in range(partitions)]
        # Queues with a batch that may be sent, now or later, whatever is answered; longest waiting first.
        self._active: dict[int, PartitionQueue] = {}
        self._sticky = self._queues[0]
        self._sticky_batch: Batch | None = None  # the last one, its bytes are not counted yet
        self._sticky_bytes = 0
        self._sticky_until = 0.0

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
        index = batch.count
        batch.count = index + 1
        values = batch.values
        values.append(value)
        batch.timestamps.append(timestamp)
        if key is not None or batch.keys is not None:
            if batch.keys is None:
                batch.keys = [None] * (len(values) - 1)
            batch.keys.append(key)
        if headers is not None or batch.headers is not None:
            if batch.headers is None:
                batch.headers = [None] * (len(values) - 1)
            batch.headers.append(headers)
        batch.size += size
        self._buffer.used += size
        if batch.size + size > self._batch_bytes:
            self._close_full(batch)
        return Delivery(batch, index)

    def add_many(
        self, messages: list[bytes] | pa.RecordBatch, partition: int | None, timestamp: int, size: int
    ) -> tuple[BatchResult, int, int]:
        """Adds messages that fit into one batch: the batch, index of the first, count.

        They are values, which get the timestamp, or columns, which have all of it.
        """
        queue = self._sticky if partition is None else self._queue_of(None, partition)
        batch = queue.open
        if batch is None or batch.size + size > self._batch_bytes:
            batch = self._new_batch(queue, size, partition is None)
        index, count = batch.count, len(messages)
        batch.count += count
        if isinstance(messages, list):
            batch.values += messages
            batch.timestamps += [timestamp] * count
            if batch.keys is not None:
                batch.keys += [None] * count
            if batch.headers is not None:
                batch.headers += [None] * count
        else:
            batch.columns.append((len(batch.values), messages))
        batch.size += size
        self._buffer.used += size
        batch.bulks.append((index, count))
        if batch.size + size // count > self._batch_bytes:
            self._close_full(batch)
        return batch, index, count

    def add_few(
        self, messages: FewMessages, partition: int | None, timestamp: int
    ) -> list[tuple[BatchResult, int, int]]:
        """Adds messages with the partitions of their keys; the parts of batches that they have become."""
        parts: dict[BatchResult, tuple[int, int]] = {}  # index of the first, count: nothing comes between them
        for value, key, headers, its_timestamp, size in messages.rows:
            added_at = timestamp if its_timestamp is None else its_timestamp
            batch, index, _ = self.add(value, key, partition, added_at, headers, size).as_part()
            first, count = parts.get(batch, (index, 0))
            parts[batch] = first, count + 1
        for batch, part in parts.items():
            assert isinstance(batch, Batch)
            batch.bulks.append(part)
        return [(batch, first, count) for batch, (first, count) in parts.items()]

    @property
    def partitions(self) -> int:
        return len(self._queues)

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

    def split_columns(self, messages: pa.RecordBatch, free_bytes: int = 0) -> Iterator[tuple[pa.RecordBatch, int]]:
        """The same for messages as columns."""
        worth_filling = free_bytes >= self._batch_bytes // _WORTH_FILLING
        yield from split_columns(messages, self._batch_bytes, free_bytes if worth_filling else self._batch_bytes)

    def take(self, now: float) -> Batch | None:
        """The next batch to send. It has a stamp, unless it needs a new epoch first."""
        for queue in self._active.values():
            due = queue.due(self.flushing)
            if due is not None and due <= now:
                break
        else:
            return None
        del self._active[queue.partition]
        batch = queue.take()
        self._refresh(queue)
        return batch

    def next_due(self) -> float | None:
        """When the next batch is due."""
        dues = [queue.due(self.flushing) for queue in self._active.values()]
        return min((due for due in dues if due is not None), default=None)

    def awaits(self, batch: Batch, attempt: int) -> bool:
        """Whether the outcome of this attempt counts."""
        return batch.attempt == attempt and batch.state is BatchState.SENDING and batch in self.incomplete

    def stored(self, batch: Batch, base_offset: int) -> None:
        batch.queue.stored(batch, base_offset)
        self._refresh(batch.queue)

    def retry(self, batch: Batch, at: float, *, new_epoch: bool = False) -> None:
        if new_epoch:
            batch.queue.retry_under_new_epoch(batch, at)
        else:
            batch.queue.retry(batch, at)
        self._refresh(batch.queue)

    def failed(self, batch: Batch, error: MyQueueError, *, log_disagrees: bool = False) -> None:
        batch.queue.failed(batch, error, log_disagrees=log_disagrees)
        self._refresh(batch.queue)

    def next_decided(self, queue: PartitionQueue) -> Batch | None:
        """The first batch of the queue, if it is decided: to be completed before any other."""
        batches = queue.batches
        return batches[0] if batches and batches[0].state is BatchState.DECIDED else None

    def complete(self, batch: Batch) -> None:
        """Removes a decided batch."""
        if batch in self.incomplete:
            batch.queue.batches.popleft()
            self.incomplete.remove(batch)
            self._buffer.used -= batch.size
            self._refresh(batch.queue)

    def skip_linger(self, batch: Batch) -> None:
        batch.due = 0.0

    def abandon(self) -> list[Batch]:
        """Empties the queues; their batches, in order."""
        batches = [
            batch
            for queue in self._queues
            for batch in (*queue.batches, queue.open)
            if batch is not None and batch in self.incomplete
        ]
        for queue in self._queues:
            queue.batches.clear()
            queue.open = None
        for batch in batches:
            self._buffer.used -= batch.size
        self._active.clear()
        self.incomplete.clear()
        return batches

    def _queue_of(self, key: bytes | None, partition: int | None) -> PartitionQueue:
        if partition is None:
            assert key is not None
            return self._queues[partition_for(key, len(self._queues))]
        if not 0 <= partition < len(self._queues):
            raise PartitionNotFound(
                f"partition not found: {partition} of topic {self._topic!r}; its partitions are 0 to"
                f" {len(self._queues) - 1}"
            )
        return self._queues[partition]

    def _new_batch(self, queue: PartitionQueue, size: int, sticky: bool) -> Batch:
        """An open batch that can take `size` bytes: of this queue, or with `sticky` of the next sticky partition."""
        if queue.open is not None:
            self._close_full(queue.open)
        now = self._clock()
        if sticky:
            queue = self._choose_sticky(now)
            if queue.open is not None:
                if queue.open.size + size <= self._batch_bytes:
                    self._sticky_batch = queue.open
                    return queue.open
                self._close_full(queue.open)
        batch = Batch(self._topic, self._skip_linger, queue, now + self._linger_s, now + self._delivery_timeout_s)
        queue.open = batch
        if sticky:
            self._sticky_batch = batch
        self.incomplete.add(batch)
        self._refresh(queue)
        return batch

    def _close_full(self, batch: Batch) -> None:
        batch.queue.close_open()
        self._refresh(batch.queue)

    def _refresh(self, queue: PartitionQueue) -> None:
        """To be called after every change of a queue."""
        if queue.due(self.flushing) is None:
            self._active.pop(queue.partition, None)
        else:
            self._active.setdefault(queue.partition, queue)
            self.changed = True

    def _choose_sticky(self, now: float) -> PartitionQueue:
        if self._sticky_batch is not None:
            self._sticky_bytes += self._sticky_batch.size
            self._sticky_batch = None
        stay = self._sticky_bytes < self._batch_bytes and now < self._sticky_until and self._sticky.collects
        if not stay:
            self._sticky = self._next_sticky()
            self._sticky_bytes, self._sticky_until = 0, now + _LONGEST_STAY_S
        return self._sticky

    def _next_sticky(self) -> PartitionQueue:
        """Round robin among the shortest queues, so that a partition without a leader does not collect all messages."""
        queues, start = self._queues, self._sticky.partition + 1
        return min(
            (queues[(start + step) % len(queues)] for step in range(len(queues))),
            key=lambda queue: queue.backlog + (queue.open is not None),
        )


def encode(batch: Batch, codec: int) -> tuple[int, bytes]:
    """CRC and bytes of the batch's body. Of many messages, builds whole columns: no Python code runs for each."""
    if batch.count <= FEW and codec == CODEC_NONE and batch.headers is None and not batch.columns:
        body = encode_few(batch.keys, batch.values, batch.timestamps)
        return crc32c(body), body
    parts = []
    start = 0
    for end, columns in batch.columns:
        parts += [_as_columns(batch, start, end), columns] if end > start else [columns]
        start = end
    if len(batch.values) > start:
        parts.append(_as_columns(batch, start, len(batch.values)))
    body = encode_record_batch(parts[0] if len(parts) == 1 else pa.concat_batches(parts), codec)
    return crc32c(body), body


def _as_columns(batch: Batch, start: int, end: int) -> pa.RecordBatch:
    count = end - start
    columns = [
        pa.nulls(count, _KEY) if batch.keys is None else pa.array(batch.keys[start:end], _KEY),
        pa.array(batch.values[start:end], _VALUE),
        pa.array(batch.timestamps[start:end], _TIMESTAMP),
        no_headers(count)
        if batch.headers is None
        else pa.array([_pairs(headers) for headers in batch.headers[start:end]], _HEADERS),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _pairs(headers: Headers | None) -> list[dict[str, str | bytes | None]] | None:
    return [{"key": key, "value": value} for key, value in headers] if headers else None
