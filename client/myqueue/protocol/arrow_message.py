"""The metadata of an encoded Arrow record batch, read before the batch is decoded.

Arrow reserves as much memory for a compressed buffer as the sender claims, so a server checks the claims first. This
walks the message's flatbuffer by hand; every position is checked against the end, because all of them come from the
sender.

    FF FF FF FF   4
    size          4   of the flatbuffer that follows
    flatbuffer        Message { header: RecordBatch { length, nodes, buffers, compression }, bodyLength }
    body              the buffers; a compressed one starts with its size before compression
"""

import struct
from functools import lru_cache, reduce
from operator import add, or_
from typing import NamedTuple

from myqueue.protocol.errors import InvalidRequest

CONTINUATION = b"\xff\xff\xff\xff"
LZ4_FRAME, ZSTD = 0, 1
NO_COMPRESSION = -1
NOT_COMPRESSED = -1  # a buffer that was left uncompressed in a compressed message

_PREFIX_BYTES = 8
_I8, _I16, _U16, _I32, _U32, _I64 = (struct.Struct(form) for form in ("<b", "<h", "<H", "<i", "<I", "<q"))
_V5 = 4  # of MetadataVersion; older ones mark a compressed body differently
_RECORD_BATCH = 3  # of MessageHeader
_BY_BUFFER = 0  # of BodyCompressionMethod
_MAX_VECTOR = 1 << 12
_SMALL_METADATA_BYTES = 1 << 10

# Fields by their position in the schema of Arrow's format
_MESSAGE_VERSION, _MESSAGE_HEADER_TYPE, _MESSAGE_HEADER, _MESSAGE_BODY_LENGTH, _MESSAGE_METADATA = range(5)
_BATCH_LENGTH, _BATCH_NODES, _BATCH_BUFFERS, _BATCH_COMPRESSION = 0, 1, 2, 3
_COMPRESSION_CODEC, _COMPRESSION_METHOD = 0, 1


class Claims(NamedTuple):
    rows: int
    node_rows: tuple[int, ...]  # of every column and every column inside of it
    buffers: int
    codec: int  # LZ4_FRAME, ZSTD, anything else that fits a byte, or NO_COMPRESSION
    decoded_bytes: int  # of all buffers together


def claims_of(body: bytes | memoryview) -> Claims:
    """Raises InvalidRequest for anything that is not laid out as a record batch message."""
    try:
        return _read(memoryview(body))
    except struct.error as error:  # a position behind the end
        raise InvalidRequest("batch body is not an Arrow record batch: it is cut off") from error


def _read(body: memoryview) -> Claims:
    if body[:4] != CONTINUATION:
        raise InvalidRequest("batch body does not start as an Arrow message")
    metadata_bytes = _I32.unpack_from(body, 4)[0]
    buffers_at = _PREFIX_BYTES + metadata_bytes
    if metadata_bytes < 0 or metadata_bytes % 8 or buffers_at > len(body):
        raise InvalidRequest("batch body has a wrong size of its Arrow metadata")
    read = _read_small if metadata_bytes <= _SMALL_METADATA_BYTES else _read_metadata
    rows, node_rows, codec, offsets, lengths = read(bytes(body[_PREFIX_BYTES:buffers_at]), len(body) - buffers_at)
    if codec == NO_COMPRESSION:
        decoded_bytes = sum(lengths)
    else:
        decoded_bytes = sum(
            [_decoded_bytes(body, buffers_at + at, size) for at, size in zip(offsets, lengths, strict=True)]
        )
    return Claims(rows, node_rows, len(offsets), codec, decoded_bytes)


def _read_metadata(
    metadata: bytes, buffers_bytes: int
) -> tuple[int, tuple[int, ...], int, tuple[int, ...], tuple[int, ...]]:
    """Rows, rows of every node, codec, places and lengths of the buffers, checked against what follows them."""
    message = _Table(memoryview(metadata), _place(memoryview(metadata), 0))
    if message.number(_MESSAGE_VERSION, _I16, 0) != _V5 or message.has(_MESSAGE_METADATA):
        raise InvalidRequest("batch body is not an Arrow message of version 5 without metadata of its own")
    if message.number(_MESSAGE_HEADER_TYPE, _I8, 0) != _RECORD_BATCH:
        raise InvalidRequest("batch body is an Arrow message of another kind than a record batch")
    if message.number(_MESSAGE_BODY_LENGTH, _I64, 0) != buffers_bytes:
        raise InvalidRequest("batch body is longer or shorter than its Arrow message says")
    batch = message.table(_MESSAGE_HEADER)
    if batch is None:
        raise InvalidRequest("batch body is an Arrow message without a record batch")
    compression = batch.table(_BATCH_COMPRESSION)
    codec = NO_COMPRESSION
    if compression is not None:
        codec = compression.number(_COMPRESSION_CODEC, _I8, LZ4_FRAME) & 0xFF
        if compression.number(_COMPRESSION_METHOD, _I8, _BY_BUFFER) != _BY_BUFFER:
            raise InvalidRequest("batch body is compressed in another way than by buffer")
    node_rows, _null_counts = batch.pairs(_BATCH_NODES)
    offsets, lengths = batch.pairs(_BATCH_BUFFERS)
    if offsets and (
        min(offsets) < 0
        or min(lengths) < 0
        or max(map(add, offsets, lengths)) > buffers_bytes
        or reduce(or_, offsets) % 8
    ):
        raise InvalidRequest("batch body has an Arrow buffer outside of the body, or one that is not aligned")
    return batch.number(_BATCH_LENGTH, _I64, 0), node_rows, codec, offsets, lengths


# Single messages of one size have the same metadata, and reading it costs more than decoding them.
_read_small = lru_cache(maxsize=512)(_read_metadata)


def _decoded_bytes(body: memoryview, at: int, length: int) -> int:
    if length == 0:
        return 0
    if length < _I64.size:
        raise InvalidRequest("batch body has a compressed buffer without its size")
    claimed: int = _I64.unpack_from(body, at)[0]
    if claimed == NOT_COMPRESSED:
        return length - _I64.size
    if claimed < 0:
        raise InvalidRequest("batch body has a compressed buffer of negative size")
    return claimed


def _place(metadata: memoryview, at: int) -> int:
    """The target of the reference at `at`; references point forward only."""
    to: int = at + _U32.unpack_from(metadata, at)[0]
    return to


class _Table:
    """A flatbuffer table: a list holds the distances of its fields from its start."""

    __slots__ = ("_at", "_fields", "_metadata", "_size")

    def __init__(self, metadata: memoryview, at: int) -> None:
        self._metadata = metadata
        self._at = at
        self._fields = at - _I32.unpack_from(metadata, at)[0]
        if self._fields < 0:
            raise InvalidRequest("batch body has Arrow metadata that cannot be read")
        self._size = _U16.unpack_from(metadata, self._fields)[0]

    def _field(self, number: int) -> int | None:
        entry = 4 + 2 * number
        if entry + 2 > self._size:
            return None
        distance = _U16.unpack_from(self._metadata, self._fields + entry)[0]
        return None if distance == 0 else self._at + distance

    def has(self, number: int) -> bool:
        return self._field(number) is not None

    def number(self, number: int, form: struct.Struct, default: int) -> int:
        at = self._field(number)
        if at is None:
            return default
        value: int = form.unpack_from(self._metadata, at)[0]
        return value

    def table(self, number: int) -> "_Table | None":
        at = self._field(number)
        return None if at is None else _Table(self._metadata, _place(self._metadata, at))

    def pairs(self, number: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """A vector of structs of two 64-bit numbers: the first ones and the second ones."""
        at = self._field(number)
        if at is None:
            return (), ()
        at = _place(self._metadata, at)
        count = _U32.unpack_from(self._metadata, at)[0]
        if count > _MAX_VECTOR:
            raise InvalidRequest("batch body has too many Arrow buffers")
        values = struct.unpack_from(f"<{2 * count}q", self._metadata, at + 4)
        return values[::2], values[1::2]
