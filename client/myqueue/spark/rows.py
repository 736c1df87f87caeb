"""Rows of a DataFrame as messages: what the columns mean, each row's partition, and rows collected into batches. Pure.

Works with whole columns; only distinct keys are looked at one by one.
"""

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from myqueue.message_columns import HEADER_OVERHEAD, size_counter, split_columns, take_rows
from myqueue.protocol.batch import SCHEMA, no_headers
from myqueue.protocol.errors import InvalidRequest, PartitionNotFound, TooLarge
from myqueue.protocol.limits import (
    MAX_HEADER_KEY_CHARS,
    MAX_HEADERS,
    MAX_KEY_BYTES,
    MAX_MESSAGE_BYTES,
)
from myqueue.protocol.partitioner import partitions_for
from myqueue.spark.options import target_problem

Target = TypeVar("Target", bound=Hashable)

BUFFER_BYTES = 32 << 20  # of all partitions together
ANYWHERE = -1  # instead of a partition: the row may go to any of them

_BYTES = (BinaryType, StringType)
_TYPES: dict[str, tuple[tuple[type[DataType], ...], str]] = {
    "value": (_BYTES, "binary or string"),
    "key": (_BYTES, "binary or string"),
    "topic": ((StringType,), "string"),
    "partition": ((ByteType, ShortType, IntegerType, LongType), "int"),
    "timestamp": ((TimestampType,), "timestamp"),
    "headers": ((ArrayType,), "array<struct<key string, value binary>>"),
}
# Columns of the source that the sink ignores, so that rows that were read can be written unchanged.
_IGNORED = {"offset", "timestampType", "append_time"}
_HEADERS = SCHEMA.field("headers").type
_PAIR = _HEADERS.value_type


def check_columns(schema: StructType, *, topic_is_given: bool) -> None:
    """Raises InvalidRequest for columns that are unknown, missing, or of another type."""
    for field in schema.fields:
        if field.name in _IGNORED:
            continue
        known = _TYPES.get(field.name)
        if known is None:
            raise InvalidRequest(f"column {field.name!r} is not known; a sink takes {', '.join(_TYPES)}")
        kinds, expected = known
        if not isinstance(field.dataType, kinds) or (field.name == "headers" and not _are_pairs(field.dataType)):
            raise InvalidRequest(
                f"column {field.name!r} is {field.dataType.simpleString()}, it must be {expected}: cast it"
            )
    if "value" not in schema.names:
        raise InvalidRequest("column 'value' is missing: what is written is its bytes or text")
    if not topic_is_given and "topic" not in schema.names:
        raise InvalidRequest("topic is missing: set the option topic, or give each row one in a column 'topic'")


def _are_pairs(kind: DataType) -> bool:
    pair = kind.elementType if isinstance(kind, ArrayType) else None
    if not isinstance(pair, StructType) or pair.names != ["key", "value"]:
        return False
    key, value = pair.fields
    return isinstance(key.dataType, StringType) and isinstance(value.dataType, BinaryType)


def messages_of(batch: pa.RecordBatch, now_ms: int) -> pa.RecordBatch:
    """The messages in the schema of a batch; raises InvalidRequest or TooLarge for rows that are no valid message."""
    names, count = batch.schema.names, batch.num_rows
    value = batch.column("value").cast(pa.binary())
    if value.null_count:
        raise InvalidRequest(
            f"value is null in {value.null_count} of {count} rows: a message must have one; filter them"
        )
    key = batch.column("key").cast(pa.binary()) if "key" in names else pa.nulls(count, pa.binary())
    for name, column, limit in (("value", value, MAX_MESSAGE_BYTES), ("key", key, MAX_KEY_BYTES)):
        longest = pc.max(pc.binary_length(column)).as_py()
        if longest is not None and longest > limit:
            raise TooLarge(f"{name} of a row has {longest} bytes, the limit is {limit}")
    timestamp = _milliseconds(batch.column("timestamp"), now_ms) if "timestamp" in names else _now(count, now_ms)
    headers = _headers(batch.column("headers")) if "headers" in names else no_headers(count)
    return pa.RecordBatch.from_arrays([key, value, timestamp, headers], schema=SCHEMA)


def _now(count: int, now_ms: int) -> pa.Array:
    return pa.repeat(pa.scalar(now_ms, pa.int64()), count)


def _milliseconds(column: pa.Array, now_ms: int) -> pa.Array:
    times = column.cast(pa.timestamp("ms", tz=column.type.tz), safe=False).cast(pa.int64()).fill_null(now_ms)
    first = pc.min(times).as_py()
    if first is not None and first < 0:
        raise InvalidRequest("timestamp of a row lies before 1970")
    return times


def _headers(column: pa.Array) -> pa.Array:
    """The same lists under the names and types of a batch; the strings are not copied."""
    pairs = column.values
    keys = pairs.field("key").cast(pa.string())
    if pairs.null_count or keys.null_count:
        raise InvalidRequest("headers of a row hold a null: each header must have a key")
    most = pc.max(pc.list_value_length(column)).as_py()
    if most is not None and most > MAX_HEADERS:
        raise InvalidRequest(f"headers of a row are {most}, the limit is {MAX_HEADERS}")
    longest = pc.max(pc.utf8_length(keys)).as_py()
    if longest is not None and longest > MAX_HEADER_KEY_CHARS:
        raise InvalidRequest(
            f"headers of a row have a key of {longest} characters, the limit is {MAX_HEADER_KEY_CHARS}"
        )
    children = pa.StructArray.from_arrays([keys, pairs.field("value").cast(pa.binary())], fields=list(_PAIR))
    lists = pa.ListArray.from_buffers(
        _HEADERS, len(column), column.buffers()[:2], column.null_count, column.offset, [children]
    )
    largest = int(_header_bytes(lists).max(initial=0))
    if largest > MAX_MESSAGE_BYTES:
        raise TooLarge(f"headers of a row have {largest} bytes, the limit is {MAX_MESSAGE_BYTES}")
    return lists


def _header_bytes(column: pa.ListArray) -> npt.NDArray[np.int64]:
    """Of each row."""
    keys, values = (column.values.field(number) for number in range(2))
    each = pc.add(pc.binary_length(keys.cast(pa.binary())), pc.binary_length(values).fill_null(0))
    until = np.concatenate(([0], np.cumsum(each.to_numpy() + HEADER_OVERHEAD, dtype=np.int64)))
    at = until[column.offsets.to_numpy()]
    sizes: npt.NDArray[np.int64] = at[1:] - at[:-1]
    return sizes


def by_topic(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each topic, in order; with the option `topic`, all rows go there."""
    if topic is not None:
        yield topic, batch
        return
    column = batch.column("topic")
    if column.null_count:
        raise InvalidRequest(f"topic is null in {column.null_count} of {batch.num_rows} rows")
    encoded = column.dictionary_encode()
    names = encoded.dictionary.to_pylist()
    for number, rows in split(batch, encoded.indices):
        if problem := target_problem(names[number]):
            raise InvalidRequest(f"topic {names[number]!r}: {problem}")
        yield names[number], rows


def partitions_of(batch: pa.RecordBatch, key: pa.Array, topic: str, partitions: int) -> pa.Array:
    """Of each row: its own, else that of its key, else ANYWHERE."""
    chosen = [pa.scalar(ANYWHERE, pa.int64())]
    if key.null_count < len(key):
        chosen.insert(0, partitions_for(key, partitions).cast(pa.int64()))
    if "partition" in batch.schema.names:
        given = batch.column("partition").cast(pa.int64())
        bounds = pc.min_max(given)
        lowest, highest = bounds["min"].as_py(), bounds["max"].as_py()
        if lowest is not None and (lowest < 0 or highest >= partitions):
            wrong = lowest if lowest < 0 else highest
            raise PartitionNotFound(f"partition {wrong} of a row: topic {topic!r} has 0 to {partitions - 1}")
        chosen.insert(0, given)
    return pa.repeat(chosen[0], len(key)) if len(chosen) == 1 else pc.coalesce(*chosen)


def split(rows: pa.RecordBatch, numbers: pa.Array) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each number, in order. Each part is a copy, so that it does not keep the memory of the others."""
    counts = [(one["values"].as_py(), one["counts"].as_py()) for one in pc.value_counts(numbers)]
    if len(counts) == 1:
        yield counts[0][0], rows
        return
    order = pc.array_sort_indices(numbers)  # is stable
    start = 0
    for number, count in sorted(counts):
        taken = order.slice(start, count)
        yield number, take_rows(rows, taken) if rows.schema == SCHEMA else rows.take(taken)
        start += count


def size_of(messages: pa.RecordBatch) -> int:
    """Approximate bytes in a batch."""
    return size_counter(messages)(0, messages.num_rows)


class RowAccumulator(Generic[Target]):
    def __init__(self, batch_bytes: int, buffer_bytes: int = BUFFER_BYTES) -> None:
        self._batch_bytes = batch_bytes
        self._buffer_bytes = buffer_bytes
        self._parts: dict[Target, list[pa.RecordBatch]] = {}
        self._sizes: dict[Target, int] = {}
        self._buffered = 0

    def add(self, target: Target, messages: pa.RecordBatch) -> Iterator[tuple[Target, pa.RecordBatch]]:
        """Batches to send now: full ones, and the largest others while the buffer is over its limit."""
        size = size_of(messages)
        self._parts.setdefault(target, []).append(messages)
        self._sizes[target] = self._sizes.get(target, 0) + size
        self._buffered += size
        if self._sizes[target] >= self._batch_bytes:
            *full, last = split_by_size(self._take(target), self._batch_bytes)
            yield from ((target, batch) for batch in full)
            yield from self.add(target, _copied(last)) if size_of(last) < self._batch_bytes else [(target, last)]
        while self._buffered > self._buffer_bytes:
            largest = max(self._sizes, key=lambda one: self._sizes[one])
            yield largest, self._take(largest)

    def flush(self) -> Iterator[tuple[Target, pa.RecordBatch]]:
        for target in list(self._parts):
            yield target, self._take(target)

    def _take(self, target: Target) -> pa.RecordBatch:
        self._buffered -= self._sizes.pop(target)
        return pa.concat_batches(self._parts.pop(target))


def split_by_size(messages: pa.RecordBatch, batch_bytes: int) -> list[pa.RecordBatch]:
    """The messages in order, in parts of at most `batch_bytes`; a larger message is a part of its own."""
    return [part for part, _ in split_columns(messages, batch_bytes, batch_bytes)]


def _copied(messages: pa.RecordBatch) -> pa.RecordBatch:
    """A copy: a slice would keep the memory of the whole batch."""
    return take_rows(messages, pa.array(range(messages.num_rows), pa.int32()))
