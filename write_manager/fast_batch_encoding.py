"""Batches of a few messages, encoded without Arrow's builders.

Those cost about sixty microseconds for each batch, however small, and single messages arrive a few thousand times a
second. All batches of one schema have the same Arrow metadata except for the numbers in it, so these are written into
a copy of it. Messages with headers and large batches are encoded by Arrow.
"""

import struct
from collections.abc import Sequence
from itertools import accumulate
from uuid import UUID

import pyarrow as pa

from myqueue.protocol import batch as protocol_batch
from myqueue.protocol.batch import SCHEMA, Message

FEW = 256  # for more of them Arrow is faster

_PREFIX_BYTES = 8  # of an Arrow message: continuation and size of the metadata
_BODY_LENGTH, _ROWS, _BUFFERS, _NODES = (_PREFIX_BYTES + place for place in (32, 64, 80, 360))
_METADATA_BYTES = 472
_I64 = struct.Struct("<q")
_BUFFER_NUMBERS = struct.Struct("<34q")  # where each of the 17 buffers is and how long
_NODE_NUMBERS = struct.Struct("<14q")  # rows and nulls of key, value, timestamp, headers, and the headers' fields
_NO_OFFSETS = bytes(4)


def _metadata() -> bytes:
    numbers = pa.py_buffer(bytes(8))
    one_row = [
        pa.nulls(1, pa.binary()),
        pa.Array.from_buffers(pa.binary(), 1, [None, numbers, pa.py_buffer(b"")]),
        pa.Array.from_buffers(pa.int64(), 1, [None, numbers]),
        pa.nulls(1, SCHEMA.field("headers").type),
    ]
    message = pa.RecordBatch.from_arrays(one_row, schema=SCHEMA).serialize().to_pybytes()
    metadata: bytes = message[: _PREFIX_BYTES + _METADATA_BYTES]
    counts = [struct.unpack_from("<I", metadata, place - 4)[0] for place in (_BUFFERS, _NODES)]
    if struct.unpack_from("<I", metadata, 4)[0] != _METADATA_BYTES or counts != [17, 7]:
        raise RuntimeError("this version of Arrow lays a record batch's metadata out in another way")
    return metadata


_METADATA = _metadata()


def encode_batch(topic_id: UUID, partition_id: int, messages: Sequence[Message]) -> bytes:
    """The same as protocol.batch.encode: header and body, offsets not yet set."""
    if len(messages) > FEW or any(message.headers for message in messages):
        return protocol_batch.encode(topic_id, partition_id, messages)
    body = _body(messages)
    return protocol_batch.header_for(topic_id, partition_id, body, len(messages)).pack() + body


def _body(messages: Sequence[Message]) -> bytes:
    rows = len(messages)
    keys = [message.key for message in messages]
    values = [message.value for message in messages]
    nulls = keys.count(None)
    present = (
        b""
        if nulls == 0
        else sum(1 << row for row, key in enumerate(keys) if key is not None).to_bytes((rows + 7) // 8, "little")
    )
    found_keys = [key for key in keys if key is not None]
    offsets = struct.Struct(f"<{rows + 1}i")
    buffers = (
        present,
        offsets.pack(*accumulate((0 if key is None else len(key) for key in keys), initial=0)),
        b"".join(found_keys),
        b"",
        offsets.pack(*accumulate(map(len, values), initial=0)),
        b"".join(values),
        b"",
        struct.pack(f"<{rows}q", *[message.timestamp for message in messages]),
        bytes((rows + 7) // 8),  # headers: null everywhere
        bytes(4 * (rows + 1)),
        b"",
        b"",
        _NO_OFFSETS,
        b"",
        b"",
        _NO_OFFSETS,
        b"",
    )
    places: list[int] = []
    padded: list[bytes] = []
    size = 0
    for buffer in buffers:
        length = len(buffer)
        places += (size, length)
        padding = -length % 8
        padded += (buffer, bytes(padding))
        size += length + padding
    metadata = bytearray(_METADATA)
    _I64.pack_into(metadata, _BODY_LENGTH, size)
    _I64.pack_into(metadata, _ROWS, rows)
    _BUFFER_NUMBERS.pack_into(metadata, _BUFFERS, *places)
    _NODE_NUMBERS.pack_into(metadata, _NODES, rows, nulls, rows, 0, rows, 0, rows, rows, 0, 0, 0, 0, 0, 0)
    return b"".join((metadata, *padded))
