"""Values as bytes and back: JSON, Arrow tables and pydantic models.

A serializer is any callable from a value to bytes or str, a deserializer any callable from bytes to a value. Those
here raise SerializationError, which names what could not be converted.
"""

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any, TypeVar

import pyarrow as pa

from myqueue.message import Message
from myqueue.protocol.errors import MyQueueError, TooLarge
from myqueue.protocol.limits import MAX_MESSAGE_BYTES

Serializer = Callable[[Any], bytes | str]
Deserializer = Callable[[bytes], Any]
# `pyarrow.Table`, `pyarrow.RecordBatch` or a `pandas.DataFrame`; pyarrow has no types of its own.
Tabular = Any
T = TypeVar("T")

_SHOWN = 60  # bytes of a value in the text of an error


class SerializationError(MyQueueError):
    """A value cannot be turned into bytes, or bytes not into a value; a value that cannot is not sent."""

    error_code, http_status, default_message = 40001, 400, "the value cannot be converted"


def json_serializer(value: Any) -> bytes:
    """Compact JSON in UTF-8. Refuses NaN and infinity, which JSON does not have."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise SerializationError(
            f"a value of type {_type_name(value)} cannot be written as JSON: {error}", outcome="not_written"
        ) from error


def json_deserializer(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise SerializationError(f"{_shown(data)} is not JSON: {error}") from error


def pydantic_serializer(value: Any) -> bytes:
    """A pydantic model as JSON."""
    if not isinstance(value, _pydantic().BaseModel):
        raise SerializationError(f"a value of type {_type_name(value)} is not a pydantic model", outcome="not_written")
    try:
        text: str = value.model_dump_json()
    except ValueError as error:
        raise SerializationError(
            f"a {_type_name(value)} cannot be written as JSON: {error}", outcome="not_written"
        ) from error
    return text.encode()


def pydantic_deserializer(model: type[T]) -> Callable[[bytes], T]:
    """Validates JSON as `model`: a pydantic model, or any other type that pydantic knows (`list[Order]`, a union)."""
    adapter = _pydantic().TypeAdapter(model)
    name = getattr(model, "__name__", str(model))

    def deserialize(data: bytes) -> T:
        try:
            value: T = adapter.validate_json(data)
        except ValueError as error:
            raise SerializationError(f"{_shown(data)} is not a valid {name}: {error}") from error
        return value

    return deserialize


def arrow_serializer(table: Tabular) -> bytes:
    """A whole table as one value: an Arrow IPC stream. `table_values` splits a table that is too large for one."""
    return _stream(as_table(table))


def arrow_deserializer(data: bytes) -> pa.Table:
    """The table of one value. Its columns are views of `data`, without a copy."""
    try:
        with pa.ipc.open_stream(pa.py_buffer(data)) as stream:
            return stream.read_all()
    except (pa.ArrowException, OSError) as error:
        raise SerializationError(f"{_shown(data)} is not a stream of Arrow: {error}") from error


def table_values(table: Tabular, max_bytes: int = MAX_MESSAGE_BYTES) -> Iterator[bytes]:
    """A table as values of at most `max_bytes`, its rows in order. A table without rows is one value: its schema."""
    rest = as_table(table)
    if rest.num_rows == 0:
        yield _stream(rest)
        return
    rows = max(1, rest.num_rows * max_bytes // max(1, rest.nbytes))
    start = 0
    while start < rest.num_rows:
        data = _stream(_with_used_categories(rest.slice(start, rows)))
        if len(data) <= max_bytes:
            yield data
            start += rows
        elif rows == 1:
            raise TooLarge(f"row {start} of the table has {len(data)} bytes as a message, the limit is {max_bytes}")
        else:
            # Aims a little below the limit: the rows of the next slices differ in size.
            rows = max(1, min(rows - 1, rows * max_bytes // len(data) * 9 // 10))


def table_of(values: Iterable[Message | bytes] | pa.Table) -> pa.Table:
    """The inverse of `table_values`: one table of the messages' rows, in the order of the messages.

    Takes messages (also those whose values are tables already), values, or what `Consumer.fetch_arrow` returns. Columns
    that only some messages have are null in the rows of the others.
    """
    if isinstance(values, pa.Table):
        values = (value.as_buffer() for value in values["value"])
    tables = [_table(value.value if isinstance(value, Message) else value) for value in values]
    if not tables:
        return pa.table({})
    try:
        return pa.concat_tables(tables, promote_options="default")
    except pa.ArrowException as error:
        raise SerializationError(f"the messages hold tables of different schemas: {error}") from error


def is_tabular(value: object) -> bool:
    return isinstance(value, pa.Table | pa.RecordBatch) or _is_data_frame(value)


def as_table(table: Tabular, *, preserve_index: bool | None = None) -> pa.Table:
    """`preserve_index`: of a DataFrame, as `pyarrow.Table.from_pandas` takes it."""
    if isinstance(table, pa.Table):
        return table
    if isinstance(table, pa.RecordBatch):
        return pa.Table.from_batches([table])
    if _is_data_frame(table):
        try:
            return pa.Table.from_pandas(table, preserve_index=preserve_index)
        except pa.ArrowException as error:
            raise SerializationError(f"the DataFrame has no form in Arrow: {error}", outcome="not_written") from error
    raise SerializationError(
        f"a value of type {_type_name(table)} is not a table: give a pyarrow.Table, a pyarrow.RecordBatch or a"
        " pandas.DataFrame",
        outcome="not_written",
    )


def _table(value: Any) -> pa.Table:
    return value if isinstance(value, pa.Table) else arrow_deserializer(value)


def _is_data_frame(table: object) -> bool:
    # Who has a DataFrame has imported pandas. Another thread may be doing so right now.
    data_frame = getattr(sys.modules.get("pandas"), "DataFrame", None)
    return data_frame is not None and isinstance(table, data_frame)


def _stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table.combine_chunks())
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _with_used_categories(table: pa.Table) -> pa.Table:
    """A slice with the dictionaries of its own rows: each value would carry those of the whole table otherwise.

    An ordered dictionary stays whole: its order means something.
    """
    for index, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type) and not field.type.ordered:
            dense = table.column(index).cast(field.type.value_type)
            table = table.set_column(index, field, dense.dictionary_encode().cast(field.type))
    return table


@cache
def _pydantic() -> Any:
    try:
        import pydantic
    except ImportError as error:
        raise ImportError("pydantic is not installed: pip install pydantic") from error
    return pydantic


def _type_name(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _shown(data: bytes) -> str:
    start = bytes(data[:_SHOWN])
    return f"{start!r}{'…' if len(data) > _SHOWN else ''} ({len(data)} bytes)"
