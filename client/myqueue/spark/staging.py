"""Staging: a task stores its batches in a topic of their own, from where the driver publishes them."""

from functools import partial
from typing import NamedTuple

import pyarrow as pa

from myqueue.protocol import routes
from myqueue.protocol.batch import SCHEMA, Header, encode_record_batch, header_for, no_headers
from myqueue.protocol.errors import InvalidRequest, TopicExists, TopicNotFound
from myqueue.protocol.limits import DEFAULT_PARTITIONS, MAX_MESSAGE_BYTES
from myqueue.spark.lanes import Lanes
from myqueue.spark.manifest import Staged
from myqueue.spark.sink_options import SinkOptions
from myqueue.spark.topic_log import TopicLog
from myqueue.transport import Transport
from myqueue.wire import Wire

MANIFESTS = 0  # the partition of the staging topic that holds them; the others hold batches
MOST_PARTITIONS = 4  # for batches
_STAGED_BYTES = 1 << 20  # small ones share a batch of the staging topic up to this size


def open_staging(transport: Transport, options: SinkOptions) -> TopicLog:
    """The staging topic, made if it is missing."""
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


def _create(transport: Transport, options: SinkOptions) -> TopicLog:
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
        return open_staging(transport, options)  # another query was quicker
    return TopicLog(transport, options.staging_topic)


def _partitions(transport: Transport, topic: str | None) -> int:
    """Of the topic that is written to, or as many as it will have when it is made with the first message."""
    if topic is None:
        return DEFAULT_PARTITIONS
    try:
        return TopicLog(transport, topic).partitions
    except TopicNotFound:
        return DEFAULT_PARTITIONS


def envelope(values: list[bytes]) -> bytes:
    """The body of a batch with these values; the same values give the same bytes."""
    count = len(values)
    columns = [
        pa.nulls(count, SCHEMA.field("key").type),
        pa.array(values, pa.binary()),
        pa.repeat(pa.scalar(0, pa.int64()), count),
        no_headers(count),
    ]
    return encode_record_batch(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))


class _Waiting(NamedTuple):
    number: int  # in the order of staging
    staged: Staged  # its offset counts from the start of the batch that it shares


class Stager:
    def __init__(self, log: TopicLog, lanes: Lanes, task: int) -> None:
        self._log = log
        self._lanes = lanes
        self._turn = task  # tasks begin with different partitions
        self._values: list[bytes] = []
        self._size = 0
        self._waiting: list[_Waiting] = []
        self._staged: dict[int, Staged] = {}
        self._count = 0

    def add(self, topic: TopicLog, header: Header, body: bytes) -> None:
        data = header.pack() + body
        if self._values and self._size + len(data) > _STAGED_BYTES:
            self._send()
        pieces = [data[at : at + MAX_MESSAGE_BYTES] for at in range(0, len(data), MAX_MESSAGE_BYTES)]
        staged = Staged(
            topic.topic,
            topic.topic_id,
            self._log.topic_id,
            header.partition,
            header.count,
            header.body_crc,
            staging_partition=-1,
            offset=len(self._values),
            pieces=len(pieces),
        )
        self._waiting.append(_Waiting(self._count, staged))
        self._count += 1
        self._values += pieces
        self._size += len(data)

    def finish(self) -> list[Staged]:
        """Where they are, in the order in which they were added."""
        if self._values:
            self._send()
        self._lanes.finish()
        return [self._staged[number] for number in range(self._count)]

    def _send(self) -> None:
        partition = 1 + self._turn % (self._log.partitions - 1)
        self._turn += 1
        body = envelope(self._values)
        # Without a stamp: a copy that an attempt of unknown outcome leaves behind is named by nobody.
        header = header_for(self._log.topic_id, partition, body, len(self._values))
        self._lanes.put(partition, partial(self._append, header, body, self._waiting))
        self._values, self._size, self._waiting = [], 0, []

    def _append(self, header: Header, body: bytes, waiting: list[_Waiting], wire: Wire) -> None:
        try:
            base_offset = self._log.append(wire, header, body)
        except TopicNotFound as error:
            raise TopicNotFound(
                f"the staging topic {self._log.topic!r} was deleted meanwhile; start the query again"
            ) from error
        for number, staged in waiting:
            self._staged[number] = staged._replace(
                staging_partition=header.partition, offset=base_offset + staged.offset
            )
