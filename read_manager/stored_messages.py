"""Messages as the log API shows them: cut out of stored batches, as JSON or as an Arrow stream. No IO."""

import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from myqueue.protocol import batch as wire
from myqueue.protocol.arrow_message import claims_of
from myqueue.protocol.dedup_records import DEDUP_RECORD_BYTES
from myqueue.protocol.errors import InternalError
from myqueue.protocol.internal import FETCH_ITEM
from myqueue.protocol.limits import MAX_UNCOMPRESSED_BYTES
from myqueue.protocol.wire_bytes import bytes_to_wire

ARROW_SCHEMA: pa.Schema = pa.schema(
    [
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        wire.SCHEMA.field("timestamp"),
        pa.field("append_time", pa.int64(), nullable=False),
        wire.SCHEMA.field("key"),
        wire.SCHEMA.field("value"),
        wire.SCHEMA.field("headers"),
    ]
)

_WHO = struct.Struct("<II20x")  # position and producer of a mark


@dataclass(frozen=True, slots=True)
class Piece:
    """Messages of one batch that follow each other."""

    partition_id: int
    first_offset: int
    append_time: int
    rows: pa.RecordBatch
    producers: Sequence[int | None]  # one for each row

    @property
    def next_offset(self) -> int:
        return self.first_offset + int(self.rows.num_rows)

    @property
    def bytes(self) -> int:
        return int(pc.sum(_sizes(self.rows)).as_py() or 0)


def cut(items: bytes, offset: int, limit: int, max_bytes: int, *, need_one: bool = True) -> tuple[list[Piece], bool]:
    """Messages from `offset` on, as many as fit, and whether that was the limit. One that is needed always fits."""
    pieces: list[Piece] = []
    decoded_bytes = 0
    for header, body, marks in _items(items):
        start = max(0, offset - header.base_offset)
        if start >= header.count:
            continue
        if limit <= 0:
            return pieces, True
        wire.check_body(header, body)
        if header.codec != wire.CODEC_NONE:
            decoded_bytes += claims_of(body).decoded_bytes
            if pieces and decoded_bytes > MAX_UNCOMPRESSED_BYTES:
                return pieces, True
        rows = wire.decode_body(body).slice(start, limit)
        fitting = max(_fitting(rows, max_bytes), 1 if need_one and not pieces else 0)
        if not fitting:
            return pieces, True
        rows = rows.slice(0, fitting)
        if header.codec != wire.CODEC_NONE:
            rows = _alone(rows)
        end = start + fitting
        piece = Piece(
            header.partition,
            header.base_offset + start,
            header.append_time,
            rows,
            _producers(header, marks, start, end),
        )
        pieces.append(piece)
        if end < header.count:
            return pieces, True
        limit -= fitting
        max_bytes -= piece.bytes
    return pieces, limit <= 0


def _items(data: bytes) -> Iterator[tuple[wire.Header, memoryview, memoryview]]:
    view, at = memoryview(data), 0
    while at < len(view):
        batch_size, marks_size = FETCH_ITEM.unpack_from(view, at)
        at += FETCH_ITEM.size
        if at + batch_size + marks_size > len(view):
            raise InternalError("a broker's answer is cut off")
        header = wire.decode_header(view[at : at + wire.HEADER_BYTES])
        end = at + batch_size
        yield header, view[at + wire.HEADER_BYTES : end], view[end : end + marks_size]
        at = end + marks_size


def has_compressed(items: bytes) -> bool:
    """Whether to decode them may take far more than their size says."""
    view, at = memoryview(items), 0
    while at + FETCH_ITEM.size + wire.HEADER_BYTES <= len(view):
        batch_size, marks_size = FETCH_ITEM.unpack_from(view, at)
        if wire.decode_header(view[at + FETCH_ITEM.size :]).codec != wire.CODEC_NONE:
            return True
        at += FETCH_ITEM.size + batch_size + marks_size
    return False


def _alone(rows: pa.RecordBatch) -> pa.RecordBatch:
    """A few rows of a batch would keep all of what it was decoded to."""
    return pa.ipc.read_record_batch(rows.serialize(), rows.schema)


def _sizes(rows: pa.RecordBatch) -> pa.Array:
    """Bytes of key, value and headers of each."""
    sizes = pc.add(_lengths(rows.column("key")), _lengths(rows.column("value")))
    headers = rows.column("headers")
    if headers.null_count == len(headers):
        return sizes
    pairs = headers.values
    of_pairs = pc.cumulative_sum(pc.add(_lengths(pairs.field("key")), _lengths(pairs.field("value"))))
    until = pa.concat_arrays([pa.array([0], pa.int64()), of_pairs])
    bounds = headers.offsets
    return pc.add(sizes, pc.subtract(until.take(bounds[1:]), until.take(bounds[:-1])))


def _lengths(column: pa.Array) -> pa.Array:
    return pc.cast(pc.fill_null(pc.binary_length(column), 0), pa.int64())


def _fitting(rows: pa.RecordBatch, max_bytes: int) -> int:
    ends = pc.cumulative_sum(_sizes(rows))
    if not len(ends) or ends[-1].as_py() <= max_bytes:
        return int(rows.num_rows)
    return int(pc.sum(pc.cast(pc.less_equal(ends, max_bytes), pa.int64())).as_py())


def _producers(header: wire.Header, marks: memoryview, start: int, end: int) -> list[int | None]:
    """Messages that came one at a time share a batch: their marks, which are in order, name the producers."""
    of_batch = None if header.producer_id == wire.NO_PRODUCER else header.producer_id
    producers: list[int | None] = [of_batch] * (end - start)
    if not marks:
        return producers
    first, last = (
        bisect_left(
            range(len(marks) // DEDUP_RECORD_BYTES),
            at,
            key=lambda i: _WHO.unpack_from(marks, i * DEDUP_RECORD_BYTES)[0],
        )
        for at in (start, end)
    )
    for position, producer_id in _WHO.iter_unpack(marks[first * DEDUP_RECORD_BYTES : last * DEDUP_RECORD_BYTES]):
        producers[position - start] = None if producer_id == wire.NO_PRODUCER else producer_id
    return producers


def as_json(pieces: Sequence[Piece]) -> list[dict[str, Any]]:
    """In the shape of answers.StoredMessage, without making one for each."""
    messages: list[dict[str, Any]] = []
    for piece in pieces:
        keys, values, timestamps, headers = (_listed(piece.rows.column(i)) for i in range(4))
        for row, value in enumerate(values):
            key, pairs = keys[row], headers[row]
            messages.append(
                {
                    "partition_id": piece.partition_id,
                    "offset": piece.first_offset + row,
                    "timestamp": timestamps[row],
                    "append_time": piece.append_time,
                    "key": None if key is None else bytes_to_wire(key),
                    "value": bytes_to_wire(value),
                    "headers": [_header(pair) for pair in pairs or ()],
                    "producer_id": piece.producers[row],
                }
            )
    return messages


def _listed(column: pa.Array) -> Sequence[Any]:
    """Most messages have neither key nor headers, and a list of them takes long to make."""
    if column.null_count == len(column):
        return [None] * len(column)
    values: list[Any] = column.to_pylist()
    return values


def _header(pair: dict[str, Any]) -> dict[str, Any]:
    value = pair["value"]
    return {"key": pair["key"], "value": None if value is None else bytes_to_wire(value)}


def as_arrow(pieces: Sequence[Piece]) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, ARROW_SCHEMA) as stream:
        for piece in pieces:
            rows, count = piece.rows, piece.rows.num_rows
            columns = [
                pa.repeat(pa.scalar(piece.partition_id, pa.int32()), count),
                pa.array(range(piece.first_offset, piece.next_offset), pa.int64()),
                rows.column("timestamp"),
                pa.repeat(pa.scalar(piece.append_time, pa.int64()), count),
                rows.column("key"),
                rows.column("value"),
                rows.column("headers"),
            ]
            stream.write_batch(pa.record_batch(columns, schema=ARROW_SCHEMA))
    written: bytes = sink.getvalue().to_pybytes()
    return written
