"""Rows of a DataFrame as messages: what the columns mean, and which partition each row goes to. Pure.

Works with whole columns; only distinct keys are looked at one by one.
"""

from collections.abc import Iterator

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

from myqueue.protocol.batch import SCHEMA, no_headers
from myqueue.protocol.errors import InvalidRequest, PartitionNotFound, TooLarge
from myqueue.protocol.limits import (
    MAX_HEADER_KEY_CHARS,
    MAX_HEADERS,
    MAX_KEY_BYTES,
    MAX_MESSAGE_BYTES,
    topic_name_problem,
)
from myqueue.protocol.partitioner import partition_for
from myqueue.spark.options import STAGED

Partitions = npt.NDArray[np.int64]

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
# Columns of the source that have no meaning for the sink, so that what was read can be written as it is.
_PASSED_BY = {"offset", "timestampType", "append_time"}
_HEADERS = SCHEMA.field("headers").type
_PAIR = _HEADERS.value_type
_MESSAGE_BYTES = 21  # what a message costs besides its bytes: value, key and header offsets, the timestamp
_HEADER_BYTES = 16


def check_columns(schema: StructType, *, topic_is_given: bool) -> None:
    """Raises InvalidRequest for columns that the sink does not know, that are missing, or of another type."""
    for field in schema.fields:
        if field.name in _PASSED_BY:
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
    """The messages, as the body of a batch has them; raises InvalidRequest or TooLarge for what none can hold."""
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


def by_topic(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each topic, in order; the option's topic is that of all rows."""
    if topic is not None:
        yield topic, batch
        return
    column = batch.column("topic")
    if column.null_count:
        raise InvalidRequest(f"topic is null in {column.null_count} of {batch.num_rows} rows")
    encoded = column.dictionary_encode()
    names = encoded.dictionary.to_pylist()
    for number, rows in split(batch, encoded.indices.cast(pa.int64()).to_numpy()):
        if problem := target_problem(names[number]):
            raise InvalidRequest(f"topic {names[number]!r}: {problem}")
        yield names[number], rows


def target_problem(topic: str) -> str | None:
    """Why nothing can be written to a topic of this name."""
    if topic.startswith(STAGED):
        return f"topics starting with {STAGED!r} hold what streams have staged"
    return topic_name_problem(topic)


def partitions_of(batch: pa.RecordBatch, key: pa.Array, topic: str, partitions: int) -> Partitions:
    """Of each row: its own, else that of its key, else ANYWHERE."""
    chosen = np.full(len(key), ANYWHERE, dtype=np.int64)
    if key.null_count < len(key):
        encoded = key.dictionary_encode()
        of_key = np.array([partition_for(one, partitions) for one in encoded.dictionary.to_pylist()], dtype=np.int64)
        has_key = key.is_valid().to_numpy(zero_copy_only=False)
        chosen[has_key] = of_key[encoded.indices.drop_null().to_numpy()]
    if "partition" in batch.schema.names:
        given = batch.column("partition").cast(pa.int64())
        bounds = pc.min_max(given)
        lowest, highest = bounds["min"].as_py(), bounds["max"].as_py()
        if lowest is not None and (lowest < 0 or highest >= partitions):
            wrong = lowest if lowest < 0 else highest
            raise PartitionNotFound(f"partition {wrong} of a row: topic {topic!r} has 0 to {partitions - 1}")
        is_given = given.is_valid().to_numpy(zero_copy_only=False)
        chosen[is_given] = given.drop_null().to_numpy()
    return chosen


def split(rows: pa.RecordBatch, numbers: Partitions) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each number, in order. Each part has memory of its own: one that waits does not keep the others."""
    if not len(numbers):
        return
    if (numbers == numbers[0]).all():
        yield int(numbers[0]), rows
        return
    order = np.argsort(numbers, kind="stable")
    starts = np.flatnonzero(np.diff(numbers[order], prepend=numbers[order[0]] - 1))
    for start, end in zip(starts, [*starts[1:], len(order)], strict=True):
        yield int(numbers[order[start]]), rows.take(pa.array(order[start:end]))


def sizes_of(messages: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Bytes that each message takes in a batch, about."""
    key, value, _, headers = messages.columns
    sizes = np.full(messages.num_rows, _MESSAGE_BYTES, dtype=np.int64)
    for column in (key, value):
        if column.null_count < len(column):
            sizes += pc.binary_length(column).fill_null(0).to_numpy()
    if headers.null_count < len(headers):
        sizes += _header_bytes(headers)
    return sizes


def _header_bytes(column: pa.ListArray) -> npt.NDArray[np.int64]:
    """Of each row."""
    keys, values = (column.values.field(number) for number in range(2))
    each = pc.add(pc.binary_length(keys.cast(pa.binary())), pc.binary_length(values).fill_null(0))
    until = np.concatenate(([0], np.cumsum(each.to_numpy() + _HEADER_BYTES, dtype=np.int64)))
    at = until[column.offsets.to_numpy()]
    sizes: npt.NDArray[np.int64] = at[1:] - at[:-1]
    return sizes
