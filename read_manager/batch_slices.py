"""Slices of stored batches, encoded as JSON or as an Arrow stream. No IO; large jobs run in a thread."""

import asyncio
import struct
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from myqueue.protocol import batch
from myqueue.protocol.arrow_message import claims_of
from myqueue.protocol.dedup_records import DEDUP_RECORD_BYTES
from myqueue.protocol.errors import InternalError
from myqueue.protocol.internal import FETCH_ITEM
from myqueue.protocol.json_bytes import bytes_to_json
from myqueue.protocol.limits import MAX_UNCOMPRESSED_BYTES

ARROW_SCHEMA: pa.Schema = pa.schema(
    [
        pa.field("partition_id", pa.int32(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),  # its older name
        pa.field("offset", pa.int64(), nullable=False),
        batch.SCHEMA.field("timestamp"),
        pa.field("append_time", pa.int64(), nullable=False),
        batch.SCHEMA.field("key"),
        batch.SCHEMA.field("value"),
        batch.SCHEMA.field("headers"),
    ]
)

_POSITION_AND_PRODUCER = struct.Struct("<II20x")  # the first fields of a dedup record

INLINE_BYTES = 32 << 10  # decoding more would block the event loop for too long

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class BatchSlice:
    """Consecutive messages of one batch."""

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


async def run_aside(size: int, job: Callable[[], R]) -> R:
    """Run large jobs in a thread."""
    return job() if size <= INLINE_BYTES else await asyncio.to_thread(job)


async def slice_aside(
    items: bytes, offset: int, limit: int, max_bytes: int, *, need_one: bool
) -> tuple[list[BatchSlice], bool]:
    size = MAX_UNCOMPRESSED_BYTES if has_compressed(items) else len(items)
    return await run_aside(size, partial(slice_batches, items, offset, limit, max_bytes, need_one=need_one))


def has_compressed(items: bytes) -> bool:
    """Compressed batches may take far longer to decode than their size suggests."""
    view, at = memoryview(items), 0
    while at + FETCH_ITEM.size + batch.HEADER_BYTES <= len(view):
        batch_size, records_size = FETCH_ITEM.unpack_from(view, at)
        if batch.decode_header(view[at + FETCH_ITEM.size :]).codec != batch.CODEC_NONE:
            return True
        at += FETCH_ITEM.size + batch_size + records_size
    return False


def slice_batches(
    items: bytes, offset: int, limit: int, max_bytes: int, *, need_one: bool = True
) -> tuple[list[BatchSlice], bool]:
    """Messages from `offset` on, as many as fit, and whether a limit ended them. With `need_one` the first message
    fits whatever its size."""
    slices: list[BatchSlice] = []
    decoded_bytes = 0
    for header, body, records in _items(items):
        start = max(0, offset - header.base_offset)
        if start >= header.count:
            continue
        if limit <= 0:
            return slices, True
        batch.check_body(header, body)
        if header.codec != batch.CODEC_NONE:
            decoded_bytes += claims_of(body).decoded_bytes
            if slices and decoded_bytes > MAX_UNCOMPRESSED_BYTES:
                return slices, True
        rows = batch.decode_body(body).slice(start, limit)
        fitting = max(_fitting(rows, max_bytes), 1 if need_one and not slices else 0)
        if not fitting:
            return slices, True
        rows = rows.slice(0, fitting)
        if header.codec != batch.CODEC_NONE:
            rows = _copied(rows)
        end = start + fitting
        taken = BatchSlice(
            header.partition,
            header.base_offset + start,
            header.append_time,
            rows,
            _producers(header, records, start, end),
        )
        slices.append(taken)
        if end < header.count:
            return slices, True
        limit -= fitting
        max_bytes -= taken.bytes
    return slices, limit <= 0


def _items(data: bytes) -> Iterator[tuple[batch.Header, memoryview, memoryview]]:
    view, at = memoryview(data), 0
    while at < len(view):
        batch_size, records_size = FETCH_ITEM.unpack_from(view, at)
        at += FETCH_ITEM.size
        if at + batch_size + records_size > len(view):
            raise InternalError("a broker's answer is cut off")
        header = batch.decode_header(view[at : at + batch.HEADER_BYTES])
        end = at + batch_size
        yield header, view[at + batch.HEADER_BYTES : end], view[end : end + records_size]
        at = end + records_size


def _copied(rows: pa.RecordBatch) -> pa.RecordBatch:
    """A slice of a decoded batch would keep all of its memory."""
    return pa.ipc.read_record_batch(rows.serialize(), rows.schema)


def _sizes(rows: pa.RecordBatch) -> pa.Array:
    """Bytes of key, value and headers of each row."""
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


def _producers(header: batch.Header, records: memoryview, start: int, end: int) -> list[int | None]:
    """Messages that were produced one at a time share a batch: their dedup records, which are in order of position,
    name the producers."""
    of_batch = None if header.producer_id == batch.NO_PRODUCER else header.producer_id
    producers: list[int | None] = [of_batch] * (end - start)
    if not records:
        return producers
    first, last = (
        bisect_left(
            range(len(records) // DEDUP_RECORD_BYTES),
            at,
            key=lambda i: _POSITION_AND_PRODUCER.unpack_from(records, i * DEDUP_RECORD_BYTES)[0],
        )
        for at in (start, end)
    )
    for position, producer_id in _POSITION_AND_PRODUCER.iter_unpack(
        records[first * DEDUP_RECORD_BYTES : last * DEDUP_RECORD_BYTES]
    ):
        producers[position - start] = None if producer_id == batch.NO_PRODUCER else producer_id
    return producers


def as_json(slices: Sequence[BatchSlice]) -> list[dict[str, Any]]:
    """In the shape of answers.StoredMessage, without the cost of one model for each message."""
    messages: list[dict[str, Any]] = []
    for each in slices:
        keys, values, timestamps, headers = (_values(each.rows.column(i)) for i in range(4))
        for row, value in enumerate(values):
            key, pairs = keys[row], headers[row]
            messages.append(
                {
                    "partition_id": each.partition_id,
                    "offset": each.first_offset + row,
                    "timestamp": timestamps[row],
                    "append_time": each.append_time,
                    "key": None if key is None else bytes_to_json(key),
                    "value": bytes_to_json(value),
                    "headers": [_header(pair) for pair in pairs or ()],
                    "producer_id": each.producers[row],
                }
            )
    return messages


def _values(column: pa.Array) -> Sequence[Any]:
    """Most messages have neither key nor headers, and to_pylist is slow."""
    if column.null_count == len(column):
        return [None] * len(column)
    values: list[Any] = column.to_pylist()
    return values


def _header(pair: dict[str, Any]) -> dict[str, Any]:
    value = pair["value"]
    return {"key": pair["key"], "value": None if value is None else bytes_to_json(value)}


def as_arrow(slices: Sequence[BatchSlice]) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, ARROW_SCHEMA) as stream:
        for each in slices:
            rows, count = each.rows, each.rows.num_rows
            partition_id = pa.repeat(pa.scalar(each.partition_id, pa.int32()), count)
            columns = [
                partition_id,
                partition_id,
                pa.array(range(each.first_offset, each.next_offset), pa.int64()),
                rows.column("timestamp"),
                pa.repeat(pa.scalar(each.append_time, pa.int64()), count),
                rows.column("key"),
                rows.column("value"),
                rows.column("headers"),
            ]
            stream.write_batch(pa.record_batch(columns, schema=ARROW_SCHEMA))
    written: bytes = sink.getvalue().to_pybytes()
    return written
