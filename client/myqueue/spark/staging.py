"""Staging: tasks store their batches in a topic of its own, and the driver reads them back to publish them."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic, NamedTuple, TypeVar
from uuid import UUID

import pyarrow as pa

from myqueue.http_connection import HttpConnection
from myqueue.protocol import routes
from myqueue.protocol.batch import (
    HEADER_BYTES,
    SCHEMA,
    Header,
    check_body,
    decode_body,
    decode_header,
    encode_record_batch,
    header_for,
    no_headers,
)
from myqueue.protocol.errors import InvalidRequest, MyQueueError, OffsetOutOfRange, TopicExists, TopicNotFound
from myqueue.protocol.limits import DEFAULT_PARTITIONS, MAX_MESSAGE_BYTES
from myqueue.spark.manifest import MicroBatch, StagedBatch
from myqueue.spark.offset_reader import STALE_METADATA_S
from myqueue.spark.options import WriteOptions
from myqueue.spark.topic_log import DELIVERY_S, SendQueues, TopicLog
from myqueue.transport import Transport

T = TypeVar("T")

MANIFESTS = 0  # the partition of the staging topic that holds them; the others hold batches
MOST_PARTITIONS = 4  # for batches
CACHE_BYTES = 32 << 20
RESTART_QUERY = "nothing of this attempt is published; start the query again"
_STAGED_BYTES = 1 << 20  # small ones share a batch of the staging topic up to this size
Values = tuple[Header, pa.Array]  # of a batch of the staging topic


def open_staging(transport: Transport, options: WriteOptions) -> TopicLog:
    """The staging topic, created if it is missing."""
    name = options.staging_topic
    try:
        found = TopicLog(transport, name)
    except TopicNotFound:
        return _create(transport, options)
    if found.partitions < 2:
        raise InvalidRequest(f"topic {name!r} has 1 partition; as a staging topic it needs 2 or more: delete it")
    if options.staging_retention_given:
        kept_ms = transport.call(routes.DESCRIBE_TOPIC, path={"topic": name}).body["retention_ms"]
        if kept_ms != options.staging_retention_ms:
            raise InvalidRequest(
                f"stagingRetentionMs is {options.staging_retention_ms}, but {name!r} is there with {kept_ms}: use"
                " that, or stop the queries that write to it and delete it"
            )
    return found


def _create(transport: Transport, options: WriteOptions) -> TopicLog:
    try:
        transport.call(
            routes.PUT_TOPIC,
            path={"topic": options.staging_topic},
            body={
                "partitions": 1 + min(MOST_PARTITIONS, _partitions(transport, options.topic)),
                "retention_ms": options.staging_retention_ms,
            },
        )
    except TopicExists:
        return open_staging(transport, options)  # another query created it meanwhile
    return TopicLog(transport, options.staging_topic)


def _partitions(transport: Transport, topic: str | None) -> int:
    """Of the topic that is written to, or as many as it will have when the first message creates it."""
    if topic is None:
        return DEFAULT_PARTITIONS
    try:
        return TopicLog(transport, topic).partitions
    except TopicNotFound:
        return DEFAULT_PARTITIONS


def batch_body(values: list[bytes]) -> bytes:
    """The body of a batch with these values; the same values give the same bytes."""
    count = len(values)
    columns = [
        pa.nulls(count, SCHEMA.field("key").type),
        pa.array(values, pa.binary()),
        pa.repeat(pa.scalar(0, pa.int64()), count),
        no_headers(count),
    ]
    return encode_record_batch(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))


class _PendingBatch(NamedTuple):
    number: int  # in the order of staging
    staged: StagedBatch  # its offset counts from the start of the batch that it shares


class Stager:
    def __init__(self, log: TopicLog, queues: SendQueues, task: int) -> None:
        self._log = log
        self._queues = queues
        self._next_partition = task  # tasks begin with different partitions
        self._values: list[bytes] = []
        self._size = 0
        self._pending: list[_PendingBatch] = []
        self._staged: dict[int, StagedBatch] = {}
        self._count = 0

    def add(self, batch: StagedBatch) -> None:
        """One that has its data."""
        size = len(batch.data)
        if self._values and self._size + size > _STAGED_BYTES:
            self._send()
        pieces = [batch.data[at : at + MAX_MESSAGE_BYTES] for at in range(0, size, MAX_MESSAGE_BYTES)]
        staged = batch._replace(staging_id=self._log.topic_id, offset=len(self._values), pieces=len(pieces), data=b"")
        self._pending.append(_PendingBatch(self._count, staged))
        self._count += 1
        self._values += pieces
        self._size += size

    def finish(self) -> list[StagedBatch]:
        """The staged batches, in the order in which they were added."""
        if self._values:
            self._send()
        self._queues.finish()
        return [self._staged[number] for number in range(self._count)]

    def _send(self) -> None:
        partition = 1 + self._next_partition % (self._log.partitions - 1)
        self._next_partition += 1
        body = batch_body(self._values)
        # Without a stamp: no manifest names the copy that an attempt of unknown outcome may leave behind.
        header = header_for(self._log.topic_id, partition, body, len(self._values))
        self._queues.submit(partition, partial(self._append, header, body, self._pending))
        self._values, self._size, self._pending = [], 0, []

    def _append(self, header: Header, body: bytes, pending: list[_PendingBatch], connection: HttpConnection) -> None:
        try:
            base_offset = self._log.append(connection, header, body)
        except TopicNotFound as error:
            raise TopicNotFound(
                f"the staging topic {self._log.topic!r} was deleted meanwhile; start the query again"
            ) from error
        for number, staged in pending:
            self._staged[number] = staged._replace(
                staging_partition=header.partition, offset=base_offset + staged.offset
            )


@dataclass(frozen=True, slots=True)
class CachedBatches(Generic[T]):
    start: int
    end: int
    size: int  # bytes
    content: T


class FetchCache(Generic[T]):
    """An LRU cache of what was fetched of a partition, bounded in bytes. Pure."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._parts: OrderedDict[int, CachedBatches[T]] = OrderedDict()  # by start, in the order of use; they are few
        self._bytes = 0

    def find(self, offset: int) -> T | None:
        for start, part in self._parts.items():
            if start <= offset < part.end:
                self._parts.move_to_end(start)
                return part.content
        return None

    def add(self, part: CachedBatches[T]) -> None:
        """The newest entry stays, even if it alone is larger than the cache."""
        self._drop(part.start)
        self._parts[part.start] = part
        self._bytes += part.size
        while self._bytes > self._max_bytes and len(self._parts) > 1:
            self._drop(next(iter(self._parts)))

    def _drop(self, start: int) -> None:
        if (part := self._parts.pop(start, None)) is not None:
            self._bytes -= part.size


def stage_all(transport: Transport, options: WriteOptions, entries: list[StagedBatch]) -> list[StagedBatch]:
    """The same entries, staged in the topic where they have their data."""
    with SendQueues(options.url) as queues:
        stager = Stager(open_staging(transport, options), queues, 0)
        for entry in entries:
            if entry.data:
                stager.add(entry)
        staged = iter(stager.finish())
    return [next(staged) if entry.data else entry for entry in entries]


class StagedReader:
    """Reads staged batches back, for the driver. May be shared by threads, which share what they have fetched."""

    def __init__(self, log: TopicLog, micro_batch: MicroBatch) -> None:
        self._log = log
        self._micro_batch = micro_batch
        self._caches = [FetchCache[list[Values]](CACHE_BYTES // log.partitions) for _ in range(log.partitions)]
        self._fetching = [threading.Lock() for _ in range(log.partitions)]

    def read(self, connection: HttpConnection, staged: StagedBatch) -> tuple[Header, bytes]:
        """The batch as its task made it."""
        data = bytearray(staged.data)
        offset, end = staged.offset, staged.offset + staged.pieces
        while offset < end:
            batch, values = self._batch(connection, staged.staging_partition, offset)
            pieces = values.slice(offset - batch.base_offset, end - offset)
            for piece in pieces:
                data += piece.as_buffer()
            offset += len(pieces)
        header, body = decode_header(memoryview(data)), bytes(data[HEADER_BYTES:])
        check_body(header, body)
        if (header.body_crc, header.count) != (staged.crc, staged.messages):
            raise MyQueueError(f"{self._micro_batch}: what is staged is not what its manifest names")
        return header, body

    def _batch(self, connection: HttpConnection, partition: int, offset: int) -> Values:
        """The batch of the staging topic that holds this offset."""
        cache = self._caches[partition]
        with self._fetching[partition]:  # threads that need the same batch fetch it once
            batches = cache.find(offset)
            if batches is None:
                batches = self._fetched(connection, partition, offset)
                size = sum(header.body_size for header, _ in batches)
                cache.add(CachedBatches(batches[0][0].base_offset, batches[-1][0].end_offset, size, batches))
        return next(batch for batch in batches if offset < batch[0].end_offset)

    def _fetched(self, connection: HttpConnection, partition: int, offset: int) -> list[Values]:
        try:
            fetched = self._log.fetch(connection, partition, offset)
        except OffsetOutOfRange as error:
            raise staging_expired(self._micro_batch, self._log.topic) from error
        except TopicNotFound as error:
            raise staging_deleted(self._micro_batch, self._log.topic) from error
        return [(header, decode_body(body).column("value")) for header, body in fetched]


def staging_expired(micro_batch: MicroBatch, staging_topic: str) -> OffsetOutOfRange:
    return OffsetOutOfRange(
        f"{micro_batch} was begun to be published, but what it had staged in {staging_topic!r} is gone by retention"
        " (stagingRetentionMs): it cannot be completed. Messages of this micro-batch may be missing; start the query"
        " with a new checkpointLocation to go on"
    )


def staging_deleted(micro_batch: MicroBatch, staging_topic: str) -> TopicNotFound:
    return TopicNotFound(
        f"{micro_batch}: the staging topic {staging_topic!r} was deleted while it was being published; start the query"
        " again"
    )


def open_checked_staging(
    transport: Transport, options: WriteOptions, micro_batch: MicroBatch, entries: list[StagedBatch]
) -> TopicLog:
    """The staging topic, checked to hold all that was staged in it.

    Checked before the manifest is stored, because from then on only these batches can be published.
    """
    entries = [entry for entry in entries if entry.pieces]
    expected = {entry.staging_id for entry in entries}
    log = open_current(lambda: open_staging(transport, options), expected)
    if entries:
        answer = transport.call(routes.TOPIC_OFFSETS, path={"topic": log.topic}, deadline_s=DELIVERY_S).body
        beginnings = {one["partition_id"]: one["beginning_offset"] for one in answer["partitions"]}
        if found := staging_problem(log.topic, {log.topic_id, UUID(answer["topic_id"])}, beginnings, entries):
            raise type(found)(f"{micro_batch}: {found.message}")
    return log


def staging_problem(
    topic: str, topic_ids: set[UUID], beginnings: dict[int, int], entries: list[StagedBatch]
) -> MyQueueError | None:
    """Why the batches cannot be read back. Pure."""
    if {entry.staging_id for entry in entries} != topic_ids:
        return TopicNotFound(f"the staging topic {topic!r} was deleted meanwhile; {RESTART_QUERY}")
    if any(entry.offset < beginnings[entry.staging_partition] for entry in entries):
        return OffsetOutOfRange(
            f"what its tasks have staged in {topic!r} is gone by retention (stagingRetentionMs) before all of them were"
            f" done; {RESTART_QUERY}, with less in a micro-batch or a staging topic that keeps it for longer"
        )
    return None


def open_current(opened: Callable[[], TopicLog], expected: set[UUID]) -> TopicLog:
    """Opens a topic; an unexpected topic id counts only when it lasts, as metadata of read managers may be stale."""
    doubted_until = time.monotonic() + STALE_METADATA_S
    while True:
        log = opened()
        if expected <= {log.topic_id} or time.monotonic() >= doubted_until:
            return log
        time.sleep(STALE_METADATA_S / 10)
