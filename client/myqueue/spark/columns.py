"""Fetched batches as the columns of a query. Converts whole columns: no Python code runs per message."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from myqueue.protocol.errors import InvalidRequest

CREATE_TIME = 0  # timestampType: the producer's clock, as Kafka counts them

_HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
_TIME = pa.timestamp("us", tz="UTC")
_MAX_MS = ((1 << 63) - 1) // 1000

_SPARK_TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": _HEADERS,
    "append_time": TimestampType(),
}
_ARROW_TYPES: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": _TIME,
    "timestampType": pa.int32(),
    "headers": pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])),
    "append_time": _TIME,
}
_USUAL = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")


def schema(*, include_headers: bool) -> StructType:
    names = (*_USUAL, "headers") if include_headers else _USUAL
    return StructType([StructField(name, _SPARK_TYPES[name]) for name in names])


def arrow_schema(wanted: StructType) -> pa.Schema:
    """The wanted columns as Arrow has them; raises InvalidRequest for an unknown one."""
    check_columns(wanted, _SPARK_TYPES)
    return pa.schema([pa.field(each.name, _ARROW_TYPES[each.name], nullable=each.nullable) for each in wanted.fields])


def check_columns(wanted: StructType, known: Mapping[str, DataType]) -> None:
    """Raises InvalidRequest for a column that is not known, or that is of another type."""
    for field in wanted.fields:
        kind = known.get(field.name)
        if kind is None:
            raise InvalidRequest(f"schema: there is no column {field.name!r}; there are {', '.join(known)}")
        if field.dataType != kind and field.dataType.simpleString() != kind.simpleString():
            raise InvalidRequest(
                f"schema: column {field.name!r} is {kind.simpleString()}, not {field.dataType.simpleString()}; "
                "read it as it is and cast it in the query"
            )


@dataclass(frozen=True, slots=True)
class Rows:
    """Consecutive messages of one batch."""

    first: int  # offset
    append_time: int  # ms since 1970, of all of them
    messages: pa.RecordBatch

    @property
    def count(self) -> int:
        count: int = self.messages.num_rows
        return count


class Columns:
    """Makes the wanted columns of one partition's messages."""

    def __init__(self, wanted: pa.Schema, topic: str, partition: int) -> None:
        self._wanted = wanted
        self._makers: dict[str, Callable[[Sequence[Rows]], pa.Array]] = {
            "key": lambda rows: _joined(rows, "key"),
            "value": lambda rows: _joined(rows, "value"),
            "topic": _ConstantColumn(topic, pa.string()),
            "partition": _ConstantColumn(partition, pa.int32()),
            "offset": _OffsetColumn(),
            "timestamp": lambda rows: as_time(_joined(rows, "timestamp")),
            "timestampType": _ConstantColumn(CREATE_TIME, pa.int32()),
            "headers": lambda rows: _joined(rows, "headers").cast(_ARROW_TYPES["headers"]),
            "append_time": lambda rows: as_time(_append_times(rows)),
        }

    def record_batch(self, rows: Sequence[Rows]) -> pa.RecordBatch:
        """Consecutive rows as one batch; a single part is not copied."""
        return pa.RecordBatch.from_arrays(
            [self._makers[name](rows) for name in self._wanted.names], schema=self._wanted
        )


def _joined(rows: Sequence[Rows], name: str) -> pa.Array:
    if len(rows) == 1:
        return rows[0].messages.column(name)
    return pa.concat_arrays([part.messages.column(name) for part in rows])


def _append_times(rows: Sequence[Rows]) -> pa.Array:
    return pa.concat_arrays([pa.repeat(pa.scalar(part.append_time, pa.int64()), part.count) for part in rows])


def as_time(milliseconds: pa.Array) -> pa.Array:
    """Clamps times that Spark cannot represent: producers may send any."""
    try:
        return milliseconds.view(pa.timestamp("ms", tz="UTC")).cast(_TIME)
    except pa.ArrowInvalid:
        clamped = pc.max_element_wise(pc.min_element_wise(milliseconds, _MAX_MS), -_MAX_MS)
        return clamped.view(pa.timestamp("ms", tz="UTC")).cast(_TIME)


def _count(rows: Sequence[Rows]) -> int:
    return sum(part.count for part in rows)


class _ConstantColumn:
    """The same value in every row. Built once for the longest batch so far."""

    def __init__(self, value: object, kind: pa.DataType) -> None:
        self._value = pa.scalar(value, kind)
        self._made = pa.repeat(self._value, 0)

    def __call__(self, rows: Sequence[Rows]) -> pa.Array:
        count = _count(rows)
        if len(self._made) < count:
            self._made = pa.repeat(self._value, count)
        return self._made.slice(0, count)


class _OffsetColumn:
    def __init__(self) -> None:
        self._counted = pa.array((), pa.int64())  # 0, 1, 2, …

    def __call__(self, rows: Sequence[Rows]) -> pa.Array:
        count = _count(rows)
        if len(self._counted) < count:
            self._counted = pa.array(range(count), pa.int64())
        return pc.add(self._counted.slice(0, count), pa.scalar(rows[0].first, pa.int64()))
