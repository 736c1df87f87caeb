"""Batches as the columns of Spark."""

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType, TimestampType

from myqueue.protocol.batch import Message, decode_body, encode_body
from myqueue.protocol.errors import InvalidRequest
from myqueue.spark.columns import Columns, Rows, arrow_schema, schema

EVERYTHING = StructType([*schema(include_headers=True).fields, StructField("append_time", TimestampType())])
LAST_MS = (1 << 63) - 1


def rows_of(*messages: Message, base_offset: int = 0, skip: int = 0) -> Rows:
    return Rows(base_offset + skip, 1234, decode_body(encode_body(messages)).slice(skip))


def record_batch(rows: Rows, wanted: pa.Schema) -> pa.RecordBatch:
    return Columns(wanted, "orders", 3).record_batch([rows])


def test_the_columns_are_those_that_spark_expects() -> None:
    assert arrow_schema(EVERYTHING).equals(to_arrow_schema(EVERYTHING, timezone="UTC"))
    made = record_batch(rows_of(Message(b"v", b"k", 5, (("h", None),))), arrow_schema(EVERYTHING))
    assert made.schema.equals(to_arrow_schema(EVERYTHING, timezone="UTC"))


def test_all_columns() -> None:
    rows = rows_of(
        Message(b"left out"), Message(b"v", b"k", 5, (("h", b"1"), ("h", None))), Message(b""), base_offset=40, skip=1
    )
    first, second = record_batch(rows, arrow_schema(EVERYTHING)).to_pylist()
    times = {name: round(first.pop(name).timestamp() * 1000) for name in ("timestamp", "append_time")}
    assert times == {"timestamp": 5, "append_time": 1234}
    assert first == {
        "key": b"k",
        "value": b"v",
        "topic": "orders",
        "partition": 3,
        "offset": 41,
        "timestampType": 0,
        "headers": [{"key": "h", "value": b"1"}, {"key": "h", "value": None}],
    }
    assert (second["key"], second["value"], second["offset"], second["headers"]) == (None, b"", 42, None)


def test_batches_are_put_together() -> None:
    columns = Columns(arrow_schema(EVERYTHING), "orders", 3)
    first = rows_of(Message(b"a", b"k"), Message(b"b"), base_offset=4)
    second = Rows(6, 1300, rows_of(Message(b"left out"), Message(b"c", headers=(("h", b"1"),)), skip=1).messages)
    made = columns.record_batch([first, second])
    assert made.column("value").to_pylist() == [b"a", b"b", b"c"]
    assert made.column("offset").to_pylist() == [4, 5, 6]
    assert made.column("topic").to_pylist() == ["orders"] * 3
    assert made.column("append_time").cast(pa.int64()).to_pylist() == [1_234_000, 1_234_000, 1_300_000]
    assert columns.record_batch([second]).to_pylist() == made.slice(2).to_pylist()


def test_values_are_not_copied() -> None:
    rows = rows_of(Message(b"v" * 1000), Message(b"w" * 1000))
    made = record_batch(rows, arrow_schema(StructType([StructField("value", BinaryType())])))
    assert made.column(0).buffers()[2].address == rows.messages.column("value").buffers()[2].address


def test_a_choice_of_columns_in_any_order() -> None:
    wanted = arrow_schema(StructType([StructField("offset", LongType()), StructField("value", BinaryType())]))
    assert record_batch(rows_of(Message(b"v"), base_offset=9), wanted).to_pylist() == [{"offset": 9, "value": b"v"}]


def test_times_that_spark_has_no_room_for() -> None:
    wanted = arrow_schema(StructType([StructField("timestamp", TimestampType())]))
    rows = rows_of(Message(b"", timestamp=LAST_MS), Message(b"", timestamp=-LAST_MS), Message(b"", timestamp=7))
    times = record_batch(rows, wanted).column(0).cast(pa.int64()).to_pylist()
    assert times == [LAST_MS // 1000 * 1000, -(LAST_MS // 1000 * 1000), 7000]


@pytest.mark.parametrize(
    ("field", "says"),
    [
        (StructField("colour", StringType()), "schema: there is no column 'colour'; there are key, value, topic"),
        (StructField("value", StringType()), "schema: column 'value' is binary, not string"),
    ],
)
def test_a_wrong_column_is_named(field: StructField, says: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        arrow_schema(StructType([field]))
    assert says in refused.value.message
