"""A batch: a fixed 64-byte header and one Arrow RecordBatch message of one fixed schema.

The producer encodes it once; leader, followers, disk and readers hand the same body on.

     0  magic "mq"          2
     2  version             1
     3  codec               1   0 none, 1 lz4, 2 zstd (inside the Arrow body)
     4  topic id           16   UUID
    20  partition           2
    22  producer epoch      2
    24  base offset         8   set by the leader
    32  append time         8   leader's clock, ms since 1970, never decreasing
    40  count               4
    44  producer id         4   NO_PRODUCER: not an idempotent producer
    48  sequence            4   of the first message
    52  body size           4
    56  CRC32C of the body  4
    60  CRC32C of the bytes above
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from myqueue.protocol.errors import InvalidRequest, TooLarge
from myqueue.protocol.limits import MAX_BATCH_BYTES, MAX_KEY_BYTES, MAX_MESSAGE_BYTES

MAGIC = b"mq"
VERSION = 1
HEADER_BYTES = 64
NO_PRODUCER = 0xFFFFFFFF
CODEC_NONE, CODEC_LZ4, CODEC_ZSTD = 0, 1, 2

_HEADER = struct.Struct("<2sBB16sHHQQIIIII")  # all but the header's own CRC
_CRC = struct.Struct("<I")

SCHEMA: pa.Schema = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("timestamp", pa.int64(), nullable=False),
        pa.field(
            "headers",
            pa.list_(pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])),
        ),
    ]
)


@dataclass(frozen=True, slots=True)
class Message:
    """What a producer sends. `timestamp` is the client's clock in ms since 1970."""

    value: bytes
    key: bytes | None = None
    timestamp: int = 0
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True, slots=True)
class Header:
    topic_id: UUID
    partition: int
    count: int
    body_size: int
    body_crc: int
    base_offset: int = 0
    append_time: int = 0
    producer_id: int = NO_PRODUCER
    producer_epoch: int = 0
    sequence: int = 0
    codec: int = CODEC_NONE

    def pack(self) -> bytes:
        head = _HEADER.pack(
            MAGIC,
            VERSION,
            self.codec,
            self.topic_id.bytes,
            self.partition,
            self.producer_epoch,
            self.base_offset,
            self.append_time,
            self.count,
            self.producer_id,
            self.sequence,
            self.body_size,
            self.body_crc,
        )
        return head + _CRC.pack(crc32c(head))

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.count


def encode_body(messages: Sequence[Message]) -> bytes:
    headers = [
        [{"key": key, "value": value} for key, value in message.headers] if message.headers else None
        for message in messages
    ]
    batch = pa.record_batch(
        [
            pa.array([m.key for m in messages], SCHEMA.field("key").type),
            pa.array([m.value for m in messages], SCHEMA.field("value").type),
            pa.array([m.timestamp for m in messages], SCHEMA.field("timestamp").type),
            pa.array(headers, SCHEMA.field("headers").type),
        ],
        schema=SCHEMA,
    )
    return encode_record_batch(batch)


def encode_record_batch(batch: pa.RecordBatch) -> bytes:
    body: bytes = batch.serialize().to_pybytes()
    return body


def header_for(topic_id: UUID, partition: int, body: bytes, count: int) -> Header:
    return Header(topic_id=topic_id, partition=partition, count=count, body_size=len(body), body_crc=crc32c(body))


def encode(topic_id: UUID, partition: int, messages: Sequence[Message]) -> bytes:
    """Header and body, offsets not yet set."""
    body = encode_body(messages)
    return header_for(topic_id, partition, body, len(messages)).pack() + body


def decode_header(data: bytes | memoryview) -> Header:
    if len(data) < HEADER_BYTES:
        raise InvalidRequest(f"batch is shorter than its {HEADER_BYTES}-byte header")
    head = bytes(data[:HEADER_BYTES])
    (magic, version, codec, topic, partition, epoch, base, time_, count, producer, sequence, size, body_crc) = (
        _HEADER.unpack_from(head)
    )
    if magic != MAGIC:
        raise InvalidRequest("batch does not start with the myqueue magic")
    if crc32c(head[: _HEADER.size]) != _CRC.unpack_from(head, _HEADER.size)[0]:
        raise InvalidRequest("batch header has a wrong checksum")
    if version != VERSION:
        raise InvalidRequest(f"batch version {version} is not supported; this server speaks version {VERSION}")
    return Header(
        topic_id=UUID(bytes=topic),
        partition=partition,
        count=count,
        body_size=size,
        body_crc=body_crc,
        base_offset=base,
        append_time=time_,
        producer_id=producer,
        producer_epoch=epoch,
        sequence=sequence,
        codec=codec,
    )


def check_body(header: Header, body: bytes | memoryview) -> None:
    if len(body) != header.body_size:
        raise InvalidRequest(f"batch body has {len(body)} bytes, its header says {header.body_size}")
    if crc32c(body) != header.body_crc:
        raise InvalidRequest("batch body has a wrong checksum")


def decode_body(body: bytes | memoryview) -> pa.RecordBatch:
    try:
        return pa.ipc.read_record_batch(pa.py_buffer(body), SCHEMA)
    except (pa.ArrowException, EOFError, OSError, ValueError) as error:
        raise InvalidRequest(f"batch body is not an Arrow record batch of the myqueue schema: {error}") from error


def validate(header: Header, body: bytes | memoryview) -> pa.RecordBatch:
    """Everything a leader checks once, so that no client can poison readers. Returns the decoded batch."""
    if HEADER_BYTES + header.body_size > MAX_BATCH_BYTES:
        raise TooLarge(f"batch is larger than {MAX_BATCH_BYTES} bytes")
    if header.count == 0:
        raise InvalidRequest("batch is empty")
    if header.codec not in (CODEC_NONE, CODEC_LZ4, CODEC_ZSTD):
        raise InvalidRequest(f"codec {header.codec} is not known")
    check_body(header, body)
    batch = decode_body(body)
    try:
        batch.validate(full=True)
    except pa.ArrowException as error:
        raise InvalidRequest(f"batch body is not valid Arrow: {error}") from error
    if batch.num_rows != header.count:
        raise InvalidRequest(f"batch holds {batch.num_rows} messages, its header says {header.count}")
    for name in ("value", "timestamp"):
        if batch.column(name).null_count:
            raise InvalidRequest(f"column {name} must not hold nulls")
    for name, limit in (("value", MAX_MESSAGE_BYTES), ("key", MAX_KEY_BYTES)):
        column = batch.column(name)
        data = column.buffers()[2]
        if data is None or data.size <= limit:
            continue  # no room for a longer one; for a single message looking at each costs more than all else
        longest = pc.max(pc.binary_length(column)).as_py()
        if longest is not None and longest > limit:
            raise TooLarge(f"message {name} has {longest} bytes, the limit is {limit}")
    return batch


def messages_of(batch: pa.RecordBatch) -> list[Message]:
    keys, values, timestamps, headers = (batch.column(i).to_pylist() for i in range(4))
    return [
        Message(value, key, timestamp, tuple((h["key"], h["value"]) for h in pairs or ()))
        for key, value, timestamp, pairs in zip(keys, values, timestamps, headers, strict=True)
    ]


def placed(header: Header, base_offset: int, append_time: int) -> Header:
    """The header as the leader stores it; the body and its CRC stay as they are."""
    return replace(header, base_offset=base_offset, append_time=append_time)


def split(data: bytes) -> tuple[Header, memoryview, memoryview]:
    """One batch and whatever follows it (marks, or the next batch)."""
    header = decode_header(data)
    view = memoryview(data)
    end = HEADER_BYTES + header.body_size
    if len(view) < end:
        raise InvalidRequest("batch is cut off")
    return header, view[HEADER_BYTES:end], view[end:]
