"""Rows as messages: every row goes once to the partition it belongs to, in order, in batches that fit."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from myqueue.protocol.batch import encode_record_batch, header_for, messages_of, validate
from myqueue.protocol.errors import InvalidRequest, MyQueueError, PartitionNotFound, TooLarge
from myqueue.protocol.partitioner import partition_for
from myqueue.spark import columns, rows
from myqueue.spark.options import LARGEST_BATCH
from myqueue.spark.rows import RowAccumulator, split_by_size

PARTITIONS = 3
TOPIC_ID = UUID(int=7)
NOW_MS = 1_700_000_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

TYPES = {
    "value": pa.binary(),
    "key": pa.binary(),
    "partition": pa.int32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "headers": pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])),
}

keys = st.none() | st.sampled_from([b"", b"a", b"b", b"c", b"longer than the others"])
headers = st.none() | st.lists(
    st.fixed_dictionaries({"key": st.text(max_size=3), "value": st.none() | st.binary(max_size=3)}), max_size=3
)
row = st.fixed_dictionaries(
    {
        "value": st.binary(max_size=40),
        "key": keys,
        "partition": st.none() | st.integers(0, PARTITIONS - 1),
        "timestamp": st.none() | st.integers(0, 1 << 50).map(lambda us: EPOCH + timedelta(microseconds=us)),
        "headers": headers,
    }
)


def frame(given_rows: list[dict[str, Any]]) -> pa.RecordBatch:
    names = given_rows[0] if given_rows else ["value"]
    return pa.record_batch({name: pa.array([one[name] for one in given_rows], TYPES[name]) for name in names})


@given(st.lists(row, min_size=1, max_size=60), st.integers(0, 5), st.integers(30, 300), st.integers(30, 900))
def test_every_row_arrives_once_and_in_order(
    given_rows: list[dict[str, Any]], sliced: int, batch_bytes: int, held_bytes: int
) -> None:
    cutter = RowAccumulator[int](batch_bytes, held_bytes)
    sent: dict[int, list[Any]] = {}
    frames = [frame(given_rows), frame(given_rows).slice(sliced)]
    out = []
    for one in frames:
        messages = rows.messages_of(one, NOW_MS)
        numbers = rows.partitions_of(one, messages.column("key"), "t", PARTITIONS)
        for number, part in rows.split(messages, numbers):
            out += list(cutter.add(number, part))
    out += list(cutter.flush())
    for number, batch in out:
        body = encode_record_batch(batch)
        sent.setdefault(number, []).extend(messages_of(validate(header_for(TOPIC_ID, 0, body, batch.num_rows), body)))
        assert batch.num_rows == 1 or rows.size_of(batch) <= max(batch_bytes, held_bytes)
    expected: dict[int, list[Any]] = {}
    for one in given_rows + given_rows[sliced:]:
        at = one["partition"]
        if at is None:
            at = rows.ANYWHERE if one["key"] is None else partition_for(one["key"], PARTITIONS)
        expected.setdefault(at, []).append(one)
    assert {at: [message.value for message in there] for at, there in sent.items()} == {
        at: [one["value"] for one in there] for at, there in expected.items()
    }
    for at, there in expected.items():
        for message, one in zip(sent[at], there, strict=True):
            assert message.key == one["key"]
            ms = NOW_MS if one["timestamp"] is None else (one["timestamp"] - EPOCH) // timedelta(milliseconds=1)
            assert message.timestamp == ms
            assert message.headers == tuple((h["key"], h["value"]) for h in one["headers"] or ())


@given(st.lists(st.integers(0, 2000), min_size=1, max_size=50), st.integers(1, 3000))
def test_parts_are_as_large_as_they_may_be(lengths: list[int], batch_bytes: int) -> None:
    messages = rows.messages_of(frame([{"value": b"x" * length} for length in lengths]), NOW_MS)
    parts = split_by_size(messages, batch_bytes)
    assert sum(part.num_rows for part in parts) == len(lengths)
    sizes = [rows.size_of(part) for part in parts]
    for part, size, after in zip(parts, sizes, [*parts[1:], None], strict=True):
        assert size <= batch_bytes or part.num_rows == 1
        assert after is None or size + rows.size_of(after.slice(0, 1)) > batch_bytes


@pytest.mark.parametrize("value", [b"", b"12"])
def test_the_largest_batch_of_small_messages_fits(value: bytes) -> None:
    values = [value] * 250_000
    messages = rows.messages_of(frame([{"value": value, "key": value} for value in values]), NOW_MS)
    part = split_by_size(messages, LARGEST_BATCH)[0]
    assert LARGEST_BATCH * 0.9 < len(encode_record_batch(part)) < LARGEST_BATCH


def test_text_becomes_its_bytes() -> None:
    messages = rows.messages_of(pa.record_batch({"value": ["Grüße"], "key": pa.array(["é"], pa.large_string())}), 5)
    assert messages_of(messages)[0].value == "Grüße".encode()
    assert messages_of(messages)[0].key == "é".encode()
    assert messages_of(messages)[0].timestamp == 5


@pytest.mark.parametrize(
    ("bad", "error", "words"),
    [
        ({"value": None}, InvalidRequest, "value is null in 1 of 2 rows"),
        ({"value": b"x" * ((1 << 20) + 1)}, TooLarge, "value of a row has 1048577 bytes"),
        ({"value": b"", "key": b"x" * 65_537}, TooLarge, "key of a row has 65537 bytes"),
        ({"value": b"", "timestamp": EPOCH - timedelta(seconds=1)}, InvalidRequest, "timestamp of a row"),
        ({"value": b"", "headers": [{"key": None, "value": b""}]}, InvalidRequest, "headers of a row hold a null"),
        ({"value": b"", "headers": [{"key": "a", "value": b""}] * 101}, InvalidRequest, "headers of a row are 101"),
        ({"value": b"", "headers": [{"key": "a" * 201, "value": b""}]}, InvalidRequest, "a key of 201 characters"),
        (
            {"value": b"", "headers": [{"key": "a", "value": b"x" * (1 << 20)}]},
            TooLarge,
            "headers of a row have 1048593 bytes",
        ),
        ({"value": b"", "partition": 3}, PartitionNotFound, "partition 3 of a row: topic 't' has 0 to 2"),
        ({"value": b"", "partition": -1}, PartitionNotFound, "partition -1 of a row"),
    ],
)
def test_what_no_message_can_be_is_refused(bad: dict[str, Any], error: type[MyQueueError], words: str) -> None:
    good = {"value": b"", "partition": 0}
    rows_given = frame([{name: one.get(name) for name in bad} for one in (good, bad)])
    with pytest.raises(error, match=words):
        rows.partitions_of(rows_given, rows.messages_of(rows_given, NOW_MS).column("key"), "t", PARTITIONS)


def test_rows_name_their_topics() -> None:
    batch = pa.record_batch({"value": [b"1", b"2", b"3"], "topic": ["b", "a", "b"]})
    found = {name: part.column("value").to_pylist() for name, part in rows.by_topic(batch, None)}
    assert found == {"b": [b"1", b"3"], "a": [b"2"]}
    assert [(name, part.num_rows) for name, part in rows.by_topic(batch, "option")] == [("option", 3)]


@pytest.mark.parametrize(
    ("topic", "words"), [(None, "topic is null in 1 of 2"), ("a b", "topic 'a b'"), ("_staged.a", "have staged")]
)
def test_a_row_with_a_wrong_topic_is_refused(topic: str | None, words: str) -> None:
    batch = pa.record_batch({"value": [b"1", b"2"], "topic": ["a", topic]})
    with pytest.raises(InvalidRequest, match=words):
        list(rows.by_topic(batch, None))


TEXT, BYTES, TIME = StringType(), BinaryType(), TimestampType()


def pairs(key: str, value: str) -> ArrayType:
    return ArrayType(StructType([StructField(key, TEXT), StructField(value, BYTES)]))


def schema(columns: dict[str, DataType]) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def test_what_a_source_reads_a_sink_writes() -> None:
    rows.check_columns(schema({"value": TEXT}), topic_is_given=True)
    rows.check_columns(schema({"value": BYTES, "key": TEXT, "partition": LongType()}), topic_is_given=True)
    rows.check_columns(columns.schema(include_headers=True).add("append_time", TIME), topic_is_given=False)


@pytest.mark.parametrize(
    ("given_columns", "topic_is_given", "words"),
    [
        ({"key": TEXT}, True, "column 'value' is missing"),
        ({"value": TEXT}, False, "topic is missing: set the option topic"),
        ({"value": LongType()}, True, "column 'value' is bigint, it must be binary or string"),
        ({"value": TEXT, "key": LongType()}, True, "column 'key' is bigint"),
        ({"value": TEXT, "vlaue": TEXT}, True, "column 'vlaue' is not known"),
        ({"value": TEXT, "topic": BYTES}, False, "column 'topic' is binary"),
        ({"value": TEXT, "partition": TEXT}, True, "column 'partition' is string"),
        ({"value": TEXT, "timestamp": LongType()}, True, "column 'timestamp' is bigint"),
        ({"value": TEXT, "headers": TEXT}, True, "column 'headers' is string"),
        ({"value": TEXT, "headers": pairs("k", "v")}, True, "column 'headers' is array"),
    ],
)
def test_wrong_columns_are_named(given_columns: dict[str, DataType], topic_is_given: bool, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        rows.check_columns(schema(given_columns), topic_is_given=topic_is_given)
