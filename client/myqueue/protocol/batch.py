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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from myqueue.protocol import arrow_message
from myqueue.protocol.errors import InvalidRequest, TooLarge, UnsupportedCompression
from myqueue.protocol.limits import (
    MAX_BATCH_BYTES,
    MAX_HEADER_KEY_CHARS,
    MAX_HEADERS,
    MAX_KEY_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_UNCOMPRESSED_BYTES,
)

MAGIC = b"mq"
VERSION = 1
HEADER_BYTES = 64
NO_PRODUCER = 0xFFFFFFFF
CODEC_NONE, CODEC_LZ4, CODEC_ZSTD = 0, 1, 2
CODECS = {"none": CODEC_NONE, "lz4": CODEC_LZ4, "zstd": CODEC_ZSTD}

_HEADER = struct.Struct("<2sBB16sHHQQIIIII")  # all but the header's own CRC
_CRC = struct.Struct("<I")
_COUNT, _COUNT_AT = struct.Struct("<I"), 40

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
_NODES, _BUFFERS = 7, 17  # of a record batch of this schema
_COLUMNS = len(SCHEMA)

_ARROW_CODEC = {
    CODEC_NONE: arrow_message.NO_COMPRESSION,
    CODEC_LZ4: arrow_message.LZ4_FRAME,
    CODEC_ZSTD: arrow_message.ZSTD,
}
_WRITE_OPTIONS = {
    CODEC_LZ4: pa.ipc.IpcWriteOptions(compression="lz4"),
    CODEC_ZSTD: pa.ipc.IpcWriteOptions(compression="zstd"),
}
_SCHEMA_BYTES = SCHEMA.serialize().size
_END_OF_STREAM_BYTES = 8


@dataclass(frozen=True, slots=True)
class Message:
    """A message as a producer sends it. `timestamp` is the client's clock in ms since 1970."""

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


def encode_body(messages: Sequence[Message], codec: int = CODEC_NONE) -> bytes:
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
    return encode_record_batch(batch, codec)


def no_headers(count: int) -> pa.Array:
    """Nulls as of pa.nulls, but without the 8 bytes that Arrow would encode for the contents of each."""
    kind = SCHEMA.field("headers").type
    validity, offsets = pa.py_buffer(bytes((count + 7) // 8)), pa.py_buffer(bytes(4 * (count + 1)))
    return pa.ListArray.from_buffers(kind, count, [validity, offsets], count, 0, [pa.array([], kind.value_type)])


def encode_record_batch(batch: pa.RecordBatch, codec: int = CODEC_NONE) -> bytes:
    if codec == CODEC_NONE:
        body: bytes = batch.serialize().to_pybytes()
        return body
    # Arrow compresses only streams: cut off the schema in front and the end marker.
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA, options=_WRITE_OPTIONS[codec]) as stream:
        stream.write_batch(batch)
    written = memoryview(sink.getvalue())
    return bytes(written[_SCHEMA_BYTES:-_END_OF_STREAM_BYTES])


def header_for(topic_id: UUID, partition: int, body: bytes, count: int, codec: int = CODEC_NONE) -> Header:
    return Header(
        topic_id=topic_id, partition=partition, count=count, body_size=len(body), body_crc=crc32c(body), codec=codec
    )


def encode(topic_id: UUID, partition: int, messages: Sequence[Message], codec: int = CODEC_NONE) -> bytes:
    """Header and body, offsets not yet set."""
    body = encode_body(messages, codec)
    return header_for(topic_id, partition, body, len(messages), codec).pack() + body


def count_of(data: bytes | memoryview) -> int:
    """Of a batch that was checked before."""
    count: int = _COUNT.unpack_from(data, _COUNT_AT)[0]
    return count


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
        topic_id=_topic_id(topic),
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


@lru_cache(maxsize=4096)
def _topic_id(data: bytes) -> UUID:
    """Cached: few ids recur, and making a UUID takes as long as the rest of a header."""
    return UUID(bytes=data)


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


def check_codec(header: Header) -> None:
    if header.codec not in _ARROW_CODEC:
        raise UnsupportedCompression(
            f"codec {header.codec} is not known; this server knows none (0), lz4 (1), zstd (2)"
        )


def check_claims(header: Header, claims: arrow_message.Claims) -> None:
    """Reads the body's metadata without decoding it."""
    if claims.codec != _ARROW_CODEC[header.codec]:
        if claims.codec not in _ARROW_CODEC.values():
            raise UnsupportedCompression(f"the batch body is compressed by Arrow's codec {claims.codec}")
        raise InvalidRequest("batch header and body name different codecs")
    if claims.decoded_bytes > MAX_UNCOMPRESSED_BYTES:
        raise TooLarge(f"batch has {claims.decoded_bytes} bytes uncompressed, the limit is {MAX_UNCOMPRESSED_BYTES}")
    if (len(claims.node_rows), claims.buffers) != (_NODES, _BUFFERS):
        raise InvalidRequest("batch body does not have the columns of the myqueue schema")
    if claims.rows != header.count:
        raise InvalidRequest(f"batch holds {claims.rows} messages, its header says {header.count}")
    if claims.node_rows[:_COLUMNS] != (claims.rows,) * _COLUMNS or min(claims.node_rows) < 0:
        raise InvalidRequest("batch body has columns of different lengths")


def validate(header: Header, body: bytes | memoryview) -> pa.RecordBatch:
    """All checks of a leader, so that no client can poison readers. Returns the decoded batch."""
    if HEADER_BYTES + header.body_size > MAX_BATCH_BYTES:
        raise TooLarge(f"batch is larger than {MAX_BATCH_BYTES} bytes")
    if header.count == 0:
        raise InvalidRequest("batch is empty")
    check_codec(header)
    check_body(header, body)
    check_claims(header, arrow_message.claims_of(body))
    batch = decode_body(body)
    try:
        batch.validate(full=True)
    except pa.ArrowException as error:
        raise InvalidRequest(f"batch body is not valid Arrow: {error}") from error
    columns = dict(zip(SCHEMA.names, batch.columns, strict=True))
    for name in ("value", "timestamp"):
        if columns[name].null_count:
            raise InvalidRequest(f"column {name} must not hold nulls")
    for name, limit in (("value", MAX_MESSAGE_BYTES), ("key", MAX_KEY_BYTES)):
        column = columns[name]
        data = column.buffers()[2]
        if data is None or data.size <= limit:
            continue  # the total is within the limit; checking each string would cost more than the rest
        longest = pc.max(pc.binary_length(column)).as_py()
        if longest is not None and longest > limit:
            raise TooLarge(f"message {name} has {longest} bytes, the limit is {limit}")
    check_headers(columns["headers"])
    return batch


def check_headers(column: pa.ListArray) -> None:
    """Raises InvalidRequest or TooLarge for headers that no message may have."""
    pairs = column.values
    if not len(pairs):
        return
    keys, values = (pairs.field(number) for number in range(2))
    if pairs.null_count or keys.null_count:
        raise InvalidRequest("a header must have a key")
    most = pc.max(pc.list_value_length(column)).as_py()
    if most is not None and most > MAX_HEADERS:
        raise InvalidRequest(f"a message may have at most {MAX_HEADERS} headers, one has {most}")
    if pc.max(pc.utf8_length(keys)).as_py() > MAX_HEADER_KEY_CHARS:
        raise InvalidRequest(f"a header's key may have at most {MAX_HEADER_KEY_CHARS} characters")
    largest = pc.max(pc.add(_bytes_by_list(column, keys), _bytes_by_list(column, values))).as_py()
    if largest > MAX_MESSAGE_BYTES:
        raise TooLarge(f"the headers of a message have {largest} bytes, the limit is {MAX_MESSAGE_BYTES}")


def _bytes_by_list(column: pa.ListArray, strings: pa.Array) -> pa.Array:
    """Bytes of the strings in each row of the list."""
    ends = pa.Array.from_buffers(pa.int32(), len(strings) + 1, [None, strings.buffers()[1]], offset=strings.offset)
    at = pc.take(ends, column.offsets)
    return pc.subtract(at.slice(1), at.slice(0, len(at) - 1))


def messages_of(batch: pa.RecordBatch) -> list[Message]:
    keys, values, timestamps, headers = (batch.column(i).to_pylist() for i in range(4))
    return [
        Message(value, key, timestamp, tuple((h["key"], h["value"]) for h in pairs or ()))
        for key, value, timestamp, pairs in zip(keys, values, timestamps, headers, strict=True)
    ]


def placed(header: Header, base_offset: int, append_time: int) -> Header:
    """The header as the leader stores it; body and CRC do not change."""
    return replace(header, base_offset=base_offset, append_time=append_time)


def split(data: bytes) -> tuple[Header, memoryview, memoryview]:
    """One batch, and the bytes after it (dedup records, or the next batch)."""
    header = decode_header(data)
    view = memoryview(data)
    end = HEADER_BYTES + header.body_size
    if len(view) < end:
        raise InvalidRequest("batch is cut off")
    return header, view[HEADER_BYTES:end], view[end:]


def batches_in(data: bytes | memoryview) -> Iterator[tuple[Header, memoryview]]:
    """Consecutive batches, each with its body; nothing is copied."""
    view = memoryview(data)
    at = 0
    while at < len(view):
        header = decode_header(view[at : at + HEADER_BYTES])
        start, end = at + HEADER_BYTES, at + HEADER_BYTES + header.body_size
        if end > len(view):
            raise InvalidRequest("batch is cut off")
        yield header, view[start:end]
        at = end
