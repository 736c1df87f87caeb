"""Batches of a few messages without headers, encoded without Arrow's builders.

Those cost about sixty microseconds for each batch, however small, and several times that when they have left the
processor's cache. All batches of one schema have the same Arrow metadata except for the numbers in it, so these are
written into a copy of it.
"""

import struct
from collections.abc import Sequence
from itertools import accumulate

import pyarrow as pa

from myqueue.protocol.batch import SCHEMA

_PREFIX_BYTES = 8  # of an Arrow message: continuation and size of the metadata
_BODY_LENGTH, _ROWS, _BUFFERS, _NODES = (_PREFIX_BYTES + place for place in (32, 64, 80, 360))
_METADATA_BYTES = 472
_I64 = struct.Struct("<q")
_BUFFER_NUMBERS = struct.Struct("<34q")  # where each of the 17 buffers is and how long
_NODE_NUMBERS = struct.Struct("<14q")  # rows and nulls of key, value, timestamp, headers, and the headers' fields
_NO_OFFSETS = bytes(4)


def _metadata() -> bytes | None:
    """Of a batch of one message; None if this version of Arrow lays it out in another way."""
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
        return None
    return metadata


_METADATA = _metadata()
FEW = 256 if _METADATA is not None else 0  # for more of them Arrow is faster


def encode_few(keys: Sequence[bytes | None] | None, values: Sequence[bytes], timestamps: Sequence[int]) -> bytes:
    """The body of a batch of at most `FEW` messages: the same bytes as Arrow's. `keys`: None if no message has one."""
    rows = len(values)
    offsets = struct.Struct(f"<{rows + 1}i")
    if keys is None:
        nulls, present, key_offsets, key_bytes = rows, bytes((rows + 7) // 8), bytes(4 * (rows + 1)), b""
    else:
        nulls = keys.count(None)
        bits = sum(1 << row for row, key in enumerate(keys) if key is not None) if nulls else 0
        present = bits.to_bytes((rows + 7) // 8, "little") if nulls else b""
        key_offsets = offsets.pack(*accumulate((0 if key is None else len(key) for key in keys), initial=0))
        key_bytes = b"".join([key for key in keys if key is not None])
    buffers = (
        present,
        key_offsets,
        key_bytes,
        b"",
        offsets.pack(*accumulate(map(len, values), initial=0)),
        b"".join(values),
        b"",
        struct.pack(f"<{rows}q", *timestamps),
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
    assert _METADATA is not None
    metadata = bytearray(_METADATA)
    _I64.pack_into(metadata, _BODY_LENGTH, size)
    _I64.pack_into(metadata, _ROWS, rows)
    _BUFFER_NUMBERS.pack_into(metadata, _BUFFERS, *places)
    _NODE_NUMBERS.pack_into(metadata, _NODES, rows, nulls, rows, 0, rows, 0, rows, rows, 0, 0, 0, 0, 0, 0)
    return b"".join((metadata, *padded))
