"""Many messages as Arrow columns: checked, divided by the partitions of their keys, cut to the size of batches. Pure.

Works with whole columns: Python code runs for distinct keys only.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from myqueue.argument_checks import WrongType, WrongValue
from myqueue.message import Value, as_bytes
from myqueue.partition_queue import Headers
from myqueue.protocol.batch import SCHEMA, check_headers, no_headers
from myqueue.protocol.errors import TooLarge
from myqueue.protocol.limits import MAX_KEY_BYTES, MAX_MESSAGE_BYTES
from myqueue.protocol.partitioner import partitions_for
from myqueue.send_arguments import MessageHeaders, checked_headers, checked_values
from myqueue.serialization import Tabular, as_table, is_tabular
from myqueue.start_position import timestamp_ms

# Bytes of a message in a batch besides its content: value, key and header offsets, the timestamp.
MESSAGE_OVERHEAD = 21
HEADER_OVERHEAD = 16
FEW_ROWS = 256
FEW_BYTES = 1 << 17
WINDOW_BYTES = 8 << 20  # of messages that are divided at a time: other tasks of an event loop wait meanwhile
WINDOW_ROWS = 1 << 16

_KEY, _VALUE, _TIMESTAMP, _HEADERS = (SCHEMA.field(name).type for name in ("key", "value", "timestamp", "headers"))
_SHORT_NAMES = 1 << 28  # characters of all together: four bytes each are less than Arrow's offsets can count
_NAMES = ("value", "key", "timestamp", "headers")


# `pyarrow.ChunkedArray` or list; pyarrow has no types of its own.
Column = Any


@dataclass(frozen=True, slots=True)
class CheckedValues:
    """Of messages that have nothing else."""

    values: list[bytes]
    sizes: list[int]

    def __len__(self) -> int:
        return len(self.values)


class MessageRow(NamedTuple):
    value: bytes
    key: bytes | None
    headers: Headers | None
    timestamp: int | None
    size: int


@dataclass(frozen=True, slots=True)
class FewMessages:
    """Of lists so short that Arrow would cost more than it saves."""

    rows: list[MessageRow]
    size: int

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, slots=True)
class MessageColumns:
    """Columns of the same length, checked; None where no message has one."""

    values: pa.ChunkedArray
    keys: pa.ChunkedArray | None
    headers: pa.ChunkedArray | None
    timestamps: pa.ChunkedArray | None

    def __len__(self) -> int:
        return len(self.values)

    def windows(self, now_ms: int) -> Iterator[pa.RecordBatch]:
        """The messages in order, in the schema of a batch. One without a timestamp gets `now_ms`."""
        total = sum(column.nbytes for column in (self.values, self.keys, self.headers) if column is not None)
        rows = max(1, min(WINDOW_ROWS, WINDOW_BYTES * len(self) // max(1, total)))
        for start in range(0, len(self), rows):
            count = min(rows, len(self) - start)
            columns = [
                pa.nulls(count, _KEY) if self.keys is None else self.keys.slice(start, count).cast(_KEY),
                self.values.slice(start, count).cast(_VALUE),
                pa.repeat(pa.scalar(now_ms, _TIMESTAMP), count)
                if self.timestamps is None
                else self.timestamps.slice(start, count).fill_null(now_ms),
                no_headers(count) if self.headers is None else self.headers.slice(start, count),
            ]
            # More than one batch only where a column is longer than Arrow's offsets can count.
            yield from pa.Table.from_arrays(columns, schema=SCHEMA).combine_chunks().to_batches()


ManyMessages = CheckedValues | FewMessages | MessageColumns


def checked_many(
    values: Iterable[Any] | Tabular,
    keys: Iterable[Value | None] | None,
    headers: Iterable[MessageHeaders | None] | None,
    timestamps: Iterable[int | datetime | None] | None,
    serializer: Callable[[Any], Value] | None = None,
) -> ManyMessages:
    """What a caller gives to `send_many`; raises an error if something of it is no valid part of a message."""
    if is_tabular(values):
        if not (keys is None and headers is None and timestamps is None):
            raise WrongType("a table has its keys, headers and timestamps in columns of its own")
        values, keys, headers, timestamps = _columns_of(values)
    elif keys is None and headers is None and timestamps is None and not isinstance(values, pa.Array | pa.ChunkedArray):
        return CheckedValues(*checked_values(values, serializer))
    if serializer is not None:
        values = list(map(serializer, values.to_pylist() if hasattr(values, "to_pylist") else values))
    given = {"values": values, "keys": keys, "headers": headers, "timestamps": timestamps}
    columns = {name: _column(column, name) for name, column in given.items() if column is not None}
    count = len(columns["values"])
    for name, column in columns.items():
        if len(column) != count:
            raise WrongValue(f"send_many got {count} values, but {len(column)} {name}")
    if count <= FEW_ROWS and all(isinstance(column, list) for column in columns.values()):
        few = _few_messages(count, columns)
        if few.size <= FEW_BYTES:
            return few
    return MessageColumns(
        _checked_values(columns["values"]),
        _checked_strings(columns["keys"], "key", MAX_KEY_BYTES) if "keys" in columns else None,
        _checked_headers(columns["headers"]) if "headers" in columns else None,
        _checked_timestamps(columns["timestamps"]) if "timestamps" in columns else None,
    )


def by_partition(messages: pa.RecordBatch, partitions: int) -> Iterator[tuple[int | None, pa.RecordBatch]]:
    """The messages of each partition, in order; under None those without a key."""
    keys = messages.column("key")
    if keys.null_count == len(keys):
        yield None, messages
        return
    numbers = partitions_for(keys, partitions)
    counts = [(one["values"].as_py(), one["counts"].as_py()) for one in pc.value_counts(numbers)]
    if len(counts) == 1:
        yield counts[0][0], messages
        return
    order = pc.array_sort_indices(numbers)  # is stable, and has nulls at the end
    start = 0
    for number, count in sorted(counts, key=lambda one: (one[0] is None, one[0])):
        yield number, take_rows(messages, order.slice(start, count))
        start += count


def split_columns(messages: pa.RecordBatch, batch_bytes: int, free_bytes: int) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Parts that fit into a batch, in order, with their sizes; a message larger than that is a part of its own.

    The first part fits into `free_bytes`, if that is enough for some.
    """
    size_of = size_counter(messages)
    rows = range(messages.num_rows + 1)
    start, limit = 0, free_bytes
    while start < messages.num_rows:
        end = bisect_right(rows, limit, lo=start + 1, key=lambda end: size_of(start, end)) - 1
        if end > start or limit == batch_bytes:
            end = max(end, start + 1)
            yield messages.slice(start, end - start), size_of(start, end)
            start = end
        limit = batch_bytes


def _columns_of(table: Tabular) -> tuple[pa.ChunkedArray, ...]:
    """Of values, keys, headers and timestamps; None for those that it does not have."""
    columns = as_table(table, preserve_index=False)
    if unknown := [name for name in columns.column_names if name not in _NAMES]:
        raise WrongValue(
            f"send_many takes the columns {', '.join(_NAMES)} of a table, not {', '.join(map(repr, unknown))}: select"
            " those, or send rows of any columns with send_table"
        )
    if "value" not in columns.column_names:
        raise WrongValue("the table has no column 'value', which send_many sends")
    return tuple(
        columns[name] if name in columns.column_names else None for name in ("value", "key", "headers", "timestamp")
    )


def _few_messages(count: int, columns: dict[str, list[Any]]) -> FewMessages:
    nothing = [None] * count
    rows = []
    for value, key, headers, timestamp in zip(
        columns["values"],
        columns.get("keys", nothing),
        columns.get("headers", nothing),
        columns.get("timestamps", nothing),
        strict=True,
    ):
        data = as_bytes(value, "value")
        key_data = None if key is None else as_bytes(key, "key")
        _check_size("value", len(data), MAX_MESSAGE_BYTES)
        _check_size("key", len(key_data or b""), MAX_KEY_BYTES)
        pairs, header_bytes = (None, 0) if headers is None else checked_headers(headers)
        if timestamp is not None:
            timestamp = timestamp_ms(timestamp, "timestamps")
        size = MESSAGE_OVERHEAD + len(data) + len(key_data or b"") + header_bytes
        rows.append(MessageRow(data, key_data, pairs, timestamp, size))
    return FewMessages(rows, sum(row.size for row in rows))


def _checked_values(values: Column) -> pa.ChunkedArray:
    column = _checked_strings(values, "value", MAX_MESSAGE_BYTES)
    if column.null_count:
        raise WrongType(f"value must be bytes or str, not NoneType, as {column.null_count} of {len(column)} are")
    return column


def _checked_strings(given: Column, what: str, limit: int) -> pa.ChunkedArray:
    column = _byte_strings(given, what) if isinstance(given, list) else _as_binary(given, what)
    longest = pc.max(pc.binary_length(column)).as_py()
    _check_size(what, longest or 0, limit)
    return column


def _check_size(what: str, size: int, limit: int) -> None:
    if size > limit:
        raise TooLarge(f"{'message' if what == 'value' else what} has {size} bytes, the limit is {limit}")


def _byte_strings(values: list[Any], what: str) -> pa.ChunkedArray:
    try:
        return _chunked(pa.array(values, pa.binary()))
    except pa.ArrowException:
        return _chunked(pa.array([None if one is None else as_bytes(one, what) for one in values], pa.binary()))


def _as_binary(column: pa.ChunkedArray, what: str) -> pa.ChunkedArray:
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if pa.types.is_large_binary(kind) or pa.types.is_large_string(kind):
        return column.cast(kind)  # as a whole it may be too long for the other kind; its windows are not
    if not (pa.types.is_fixed_size_binary(kind) or str(kind).startswith(("binary", "string", "null"))):
        raise WrongType(f"{what} must be bytes or str, not of a column of {column.type}")
    return column.cast(pa.binary())


def _checked_timestamps(column: Column) -> pa.ChunkedArray:
    if isinstance(column, list):
        if not set(map(type, column)) <= {int, type(None)}:
            column = [None if moment is None else timestamp_ms(moment, "timestamps") for moment in column]
        try:
            column = _chunked(pa.array(column, _TIMESTAMP))
        except OverflowError as error:
            raise WrongValue("timestamps must be in ms since 1970; some of them lie after the year 9999") from error
    kind = column.type
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp("ms", tz=kind.tz), safe=False)
    elif not pa.types.is_integer(kind) and not pa.types.is_null(kind):
        raise WrongValue(f"timestamps must be integers or timestamps, not a column of {kind}")
    column = column.cast(_TIMESTAMP)
    for extreme in pc.min_max(column).as_py().values():
        if extreme is not None:
            timestamp_ms(extreme, "timestamps")
    return column


def _checked_headers(column: Column) -> pa.ChunkedArray:
    if isinstance(column, list):
        column = _chunked(_header_lists(column))
    elif column.type != _HEADERS:
        try:
            column = column.cast(_HEADERS)
        except pa.ArrowException as error:
            raise WrongValue(
                f"headers must be lists of key and value, as {_HEADERS}, not a column of {column.type}"
            ) from error
    for chunk in column.chunks:
        # A slice still has the pairs of the rows around it.
        check_headers(chunk.take(pa.array(range(len(chunk)), pa.int32())) if chunk.offset else chunk)
    return column


def _header_lists(headers: list[MessageHeaders | None]) -> pa.Array:
    """No Python code runs for each message as long as all of them are dicts."""
    kinds = set(map(type, headers))
    rows: list[Any] = [{} if one is None else one for one in headers] if type(None) in kinds else headers
    if kinds <= {dict, type(None)}:
        names, contents = _pairs_of_dicts(rows)
    else:
        rows = [tuple(one.items() if isinstance(one, Mapping) else one) for one in rows]
        pairs = list(chain.from_iterable(rows))
        if not (set(map(type, pairs)) <= {tuple, list} and set(map(len, pairs)) <= {2}):
            raise WrongValue("headers must be a dict for each message, or pairs of key and value, or None")
        names, contents = _names([name for name, _ in pairs]), [content for _, content in pairs]
    each = pa.StructArray.from_arrays(
        [names, _byte_strings(contents, "header value").combine_chunks()], fields=list(_HEADERS.value_type)
    )
    lengths = pa.array(list(map(len, rows)), pa.int32())
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths)])
    return pa.ListArray.from_arrays(offsets, each, type=_HEADERS, mask=pc.equal(lengths, 0))


def _pairs_of_dicts(rows: list[dict[str, Value | None]]) -> tuple[pa.Array, list[Any]]:
    """Names and contents of all headers. Where each message has one, of the same name, that is found out first: it is
    the usual case, and takes two thirds of the time."""
    name = next(iter(rows[0])) if set(map(len, rows)) == {1} else None
    if isinstance(name, str) and len(name) * len(rows) < _SHORT_NAMES:
        with suppress(KeyError):  # of a message whose header has another name
            contents = list(map(itemgetter(name), rows))
            return pa.repeat(_names([name])[0], len(rows)), contents
    return _names(list(chain.from_iterable(rows))), list(chain.from_iterable(map(dict.values, rows)))


def _names(names: list[Any]) -> pa.Array:
    if not set(map(type, names)) <= {str}:
        raise WrongType("a header's key must be a str")
    return pa.array(names, pa.string())


def _column(given: Any, what: str) -> Column:
    """As it is, if it is a column of Arrow, pandas or numpy, else as a list."""
    if isinstance(given, pa.Array | pa.ChunkedArray):
        return _chunked(given)
    if isinstance(given, str | bytes | bytearray | memoryview | Mapping):
        raise WrongType(f"{what} takes one for each message, such as a list, not one {type(given).__name__}")
    if not hasattr(given, "__array__"):
        return given if isinstance(given, list) else list(given)
    try:
        return _chunked(pa.array(given, from_pandas=True))
    except pa.ArrowException as error:
        raise WrongType(f"{what} cannot be read as a column: {error}") from error


def _chunked(column: pa.Array | pa.ChunkedArray) -> pa.ChunkedArray:
    return column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])


def take_rows(messages: pa.RecordBatch, rows: pa.Array) -> pa.RecordBatch:
    """A copy of these rows. Taking lists that are all null would cost as much as the values."""
    key, value, timestamp, headers = messages.columns
    without_headers = headers.null_count == len(headers)
    columns = [
        key.take(rows),
        value.take(rows),
        timestamp.take(rows),
        no_headers(len(rows)) if without_headers else headers.take(rows),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def size_counter(messages: pa.RecordBatch) -> Callable[[int, int], int]:
    """Bytes of the messages between two rows, read off Arrow's offsets."""
    key, value, _, headers = messages.columns
    strings = [_offsets(column) for column in (key, value) if column.null_count < len(column)]

    def size_of(start: int, end: int) -> int:
        return (end - start) * MESSAGE_OVERHEAD + sum(at[end] - at[start] for at in strings)

    if headers.null_count == len(headers):
        return size_of
    lists = _offsets(headers)
    pairs = [_offsets(headers.values.field(number)) for number in range(2)]

    def size_with_headers(start: int, end: int) -> int:
        first, last = lists[start], lists[end]
        return size_of(start, end) + (last - first) * HEADER_OVERHEAD + sum(at[last] - at[first] for at in pairs)

    return size_with_headers


def _offsets(column: pa.Array) -> memoryview:
    offsets = column.buffers()[1]
    if offsets is None:  # Arrow leaves them out of a column without rows
        return memoryview(bytes(4)).cast("i")
    return memoryview(offsets).cast("i")[column.offset :]
