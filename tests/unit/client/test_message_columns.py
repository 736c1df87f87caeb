"""Keyed messages by `send_many`: the same messages in the same partitions as by `send`, checked before any is sent."""

import asyncio
import datetime
from collections import defaultdict
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from myqueue import InvalidRequest, PartitionNotFound, Producer, TooLarge, WrongType, WrongValue, json_serializer
from myqueue.aio import AsyncProducer
from myqueue.message_columns import MESSAGE_OVERHEAD, MessageColumns, by_partition, checked_many, split_columns
from myqueue.protocol.batch import SCHEMA, Message, messages_of
from myqueue.protocol.partitioner import partition_for, partitions_for
from tests.unit.client.memory_cluster import MemoryCluster
from tests.unit.client.scripted_server import ScriptedServer

NOW = 1_700_000_000_000
KEYS = st.one_of(st.none(), st.binary(max_size=3), st.text(max_size=3))
HEADERS = st.one_of(
    st.none(),
    st.dictionaries(st.text(max_size=3), st.one_of(st.none(), st.binary(max_size=3), st.text(max_size=3)), max_size=3),
    st.lists(st.tuples(st.text(max_size=3), st.binary(max_size=3)), max_size=2),
)
TIMES = st.one_of(st.none(), st.integers(0, 900_000_000), st.integers(5_000_000_000, 253_402_300_799_999))
ROWS = st.lists(st.tuples(st.one_of(st.binary(max_size=40), st.text(max_size=20)), KEYS, HEADERS, TIMES), max_size=60)


def as_bytes(value: bytes | str | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def expected(row: tuple[Any, Any, Any, Any]) -> Message:
    value, key, headers, timestamp = row
    pairs = headers.items() if isinstance(headers, dict) else headers or ()
    sent = as_bytes(value)
    assert sent is not None
    return Message(
        sent,
        as_bytes(key),
        NOW if timestamp is None else timestamp,
        tuple((name, as_bytes(content)) for name, content in pairs),
    )


def columns_of(rows: list[tuple[Any, Any, Any, Any]]) -> MessageColumns:
    values, keys, headers, timestamps = ([row[place] for row in rows] for place in range(4))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("myqueue.message_columns.FEW_ROWS", -1)
        checked = checked_many(values, keys, headers, timestamps)
    assert isinstance(checked, MessageColumns)
    return checked


def messages_in(batches: Any) -> list[Message]:
    return [message for batch in batches for message in messages_of(batch)]


@given(ROWS)
def test_lists_become_the_messages_of_send(rows: list[tuple[Any, Any, Any, Any]]) -> None:
    assert messages_in(columns_of(rows).windows(NOW)) == list(map(expected, rows))


@given(
    st.sampled_from(["a", "ab"]).flatmap(lambda names: st.lists(st.tuples(st.sampled_from(names), KEYS), max_size=9))
)
def test_one_header_each_of_the_same_name_or_not(headers: list[tuple[str, Any]]) -> None:
    rows = [("value", None, {name: content}, None) for name, content in headers]
    assert messages_in(columns_of(rows).windows(NOW)) == list(map(expected, rows))


@given(ROWS, st.integers(1, 5), st.integers(1, 200), st.integers(0, 200))
def test_messages_are_divided_by_key_in_order_and_fit_into_batches(
    rows: list[tuple[Any, Any, Any, Any]], partitions: int, batch_bytes: int, free_bytes: int
) -> None:
    wanted: dict[int | None, list[Message]] = defaultdict(list)
    for message in map(expected, rows):
        wanted[None if message.key is None else partition_for(message.key, partitions)].append(message)
    found: dict[int | None, list[Message]] = {}
    for window in columns_of(rows).windows(NOW):
        for number, messages in by_partition(window, partitions):
            pieces = list(split_columns(messages, batch_bytes, min(free_bytes, batch_bytes)))
            for piece, size in pieces:
                assert piece.schema == SCHEMA
                assert size == sum(map(size_of, messages_of(piece)))
                assert size <= batch_bytes or piece.num_rows == 1
            found[number] = messages_in(piece for piece, _ in pieces)
    assert found == wanted


def size_of(message: Message) -> int:
    headers = sum(16 + len(name.encode()) + len(content or b"") for name, content in message.headers)
    return MESSAGE_OVERHEAD + len(message.value) + len(message.key or b"") + headers


@given(st.lists(st.one_of(st.none(), st.binary(max_size=6))), st.integers(1, 256))
def test_the_partitions_of_a_column_are_those_of_its_keys(keys: list[bytes | None], partitions: int) -> None:
    found = partitions_for(pa.array(keys, pa.binary()), partitions).to_pylist()
    assert found == [None if key is None else partition_for(key, partitions) for key in keys]


def test_long_lists_are_divided_in_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("myqueue.message_columns.WINDOW_BYTES", 1000)
    monkeypatch.setattr("myqueue.message_columns.FEW_ROWS", -1)
    values = [f"{number:079d}" for number in range(100)]
    windows = list(checked_many(values, ["a"] * 100, None, None).windows(NOW))  # type: ignore[union-attr]
    assert [window.num_rows for window in windows] == [11] * 9 + [1]
    assert [message.value.decode() for message in messages_in(windows)] == values


@pytest.fixture
def four(server: ScriptedServer) -> MemoryCluster:
    server.answer = cluster = MemoryCluster(partitions=4)
    return cluster


@pytest.mark.parametrize("count", [100, 600], ids=["few", "many"])
def test_keyed_messages_go_where_send_sends_them(server: ScriptedServer, four: MemoryCluster, count: int) -> None:
    keys = [f"customer-{number % 17}" if number % 5 else None for number in range(count)]
    values = [f"{number}" for number in range(count)]
    with Producer(server.url, topic="orders", batch_bytes=2000) as producer:
        producer.send("before", key="customer-1")
        spans = producer.send_many(values, keys=keys, headers=[{"n": value} for value in values]).result(20)
        producer.send("behind", key="customer-1")
    assert sum(span.count for span in spans) == count
    stored = [four.stored(partition) for partition in range(4)]
    assert sorted(message.value.decode() for log in stored for message in log) == sorted([*values, "before", "behind"])
    for key in {key for key in keys if key is not None}:
        partition = partition_for(key.encode(), 4)
        found = [message for message in stored[partition] if message.key == key.encode()]
        added = ["before"] if key == "customer-1" else []
        last = ["behind"] if key == "customer-1" else []
        wanted = [value for value, its_key in zip(values, keys, strict=True) if its_key == key]
        assert [message.value.decode() for message in found] == [*added, *wanted, *last]
        assert all(message.headers == (("n", message.value),) for message in found if message.headers)
    inside = [message.value for span in spans for message in stored[span.partition][span.base_offset :][: span.count]]
    assert sorted(inside) == sorted(value.encode() for value in values)


def test_a_given_partition_takes_all_of_them_with_their_keys(server: ScriptedServer, four: MemoryCluster) -> None:
    with Producer(server.url, topic="orders") as producer:
        producer.send_many(["a", "b"], partition=2, keys=["x", "y"], timestamps=[5, None]).result(5)
        with pytest.raises(PartitionNotFound, match="0 to 3"):
            producer.send_many(["a"], partition=4, keys=["x"])
    one, two = four.stored(2)
    assert (one.key, one.timestamp, two.key) == (b"x", 5, b"y")
    assert two.timestamp > NOW


def test_an_async_producer_takes_the_same(server: ScriptedServer, four: MemoryCluster) -> None:
    async def send() -> None:
        async with AsyncProducer(server.url, topic="orders", buffer_bytes=500, batch_bytes=200) as producer:
            many = await producer.send_many([f"{number}" for number in range(100)], keys=["a", "b"] * 50)
            assert sum(span.count for span in await many) == 100

    asyncio.run(send())
    for key in ("a", "b"):
        stored = [message for message in four.stored(partition_for(key.encode(), 4)) if message.key == key.encode()]
        assert [int(message.value) % 2 for message in stored] == [int(key == "b")] * 50


@pytest.mark.parametrize("kind", ["table", "batches", "record batch", "frame", "columns"])
def test_tables_are_sent_as_they_are(server: ScriptedServer, four: MemoryCluster, kind: str) -> None:
    when = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
    rows = [
        {"value": f"v{number}", "key": f"k{number % 3}", "timestamp": when, "headers": [{"key": "a", "value": b"b"}]}
        for number in range(30)
    ]
    types = pa.schema(
        [
            ("value", pa.large_string()),
            ("key", pa.dictionary(pa.int8(), pa.string())),
            ("timestamp", pa.timestamp("us", tz="UTC")),
            ("headers", SCHEMA.field("headers").type),
        ]
    )
    table = pa.Table.from_pylist(rows, types)
    many: Any = {
        "table": table,
        "batches": pa.concat_tables([table.slice(start, 7) for start in range(0, 30, 7)]),
        "record batch": table.to_batches()[0],
        "frame": table.select(["value", "key", "timestamp"]).to_pandas().set_index(pd.Index(range(5, 35))),
        "columns": table["value"],
    }[kind]
    with Producer(server.url, topic="orders") as producer:
        if kind == "columns":
            headers, timestamps = table["headers"], table["timestamp"]
            producer.send_many(many, keys=table["key"], headers=headers, timestamps=timestamps).result(5)
        else:
            producer.send_many(many).result(5)
    for key in range(3):
        stored = [one for one in four.stored(partition_for(f"k{key}".encode(), 4)) if one.key == f"k{key}".encode()]
        assert [one.value.decode() for one in stored] == [f"v{number}" for number in range(key, 30, 3)]
        assert {one.timestamp for one in stored} == {int(when.timestamp() * 1000)}
        assert {one.headers for one in stored} == {() if kind == "frame" else (("a", b"b"),)}


def test_a_serializer_makes_the_values(server: ScriptedServer, four: MemoryCluster) -> None:
    with Producer(server.url, topic="orders", value_serializer=json_serializer) as producer:
        producer.send_many([{"a": 1}, [2]], keys=["x", None], partition=0).result(5)
        producer.send_many(pa.table({"value": [3, 4], "key": ["x", "y"]}), partition=0).result(5)
    assert four.values(0) == ['{"a":1}', "[2]", "3", "4"]


def repeated(column: Any, times: int) -> Any:
    if isinstance(column, pa.Array):
        return pa.concat_arrays([column] * times)
    return column * times if isinstance(column, list) else column


@pytest.mark.parametrize("times", [1, 200], ids=["few", "many"])
@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"keys": ["a"]}, WrongValue, r"got \d+ values, but \d+ keys"),
        ({"keys": "ab"}, TypeError, "one for each message, such as a list, not one str"),
        ({"keys": [1, 2]}, TypeError, "key must be bytes or str, not int"),
        ({"keys": ["a", "b" * 70_000]}, TooLarge, "key has 70000 bytes, the limit is 65536"),
        ({"keys": pa.array([1, 2])}, TypeError, "key must be bytes or str, not of a column of int64"),
        ({"timestamps": [1, "2"]}, WrongType, "timestamps must be an int, in ms since 1970, or a datetime, not '2'"),
        ({"timestamps": [1_700_000_000, None]}, WrongValue, "is in seconds"),
        ({"timestamps": pa.array([None, 1_700_000_000])}, WrongValue, "is in seconds"),
        ({"timestamps": [1, 1 << 62]}, WrongValue, "after the year 9999"),
        ({"timestamps": [1, 1 << 64]}, WrongValue, "after the year 9999"),
        ({"timestamps": [1, -2]}, WrongValue, "lies before 1970"),
        ({"timestamps": pa.array([1, -2])}, WrongValue, "lies before 1970"),
        ({"timestamps": pa.array([1.5, 2.5])}, WrongValue, "not a column of double"),
        ({"headers": [{"a": 1}, None]}, TypeError, "header.* must be bytes or str, not int"),
        ({"headers": [{1: "a"}, None]}, WrongType, "key must be a str"),
        ({"headers": [{"k" * 201: "a"}, None]}, InvalidRequest, "at most 200 characters"),
        ({"headers": [{f"{number}": "a" for number in range(101)}, None]}, InvalidRequest, "at most 100"),
        ({"headers": pa.array(["a", "b"])}, WrongValue, "lists of key and value"),
        ({"values": ["a", None], "keys": ["a", "b"]}, TypeError, "value must be bytes or str, not NoneType"),
        ({"values": pa.array(["a", None])}, TypeError, "value must be bytes or str, not NoneType"),
        ({"values": pa.array([1, 2])}, TypeError, "not of a column of int64"),
        ({"values": pa.array([b"a", b"b" * (1 << 20 | 1)])}, TooLarge, "message has 1048577 bytes"),
        ({"values": pa.table({"value": ["a"], "offset": [1]})}, WrongValue, "not 'offset': select those"),
        ({"values": pa.table({"key": ["a"]})}, WrongValue, "no column 'value'"),
        ({"values": pa.table({"value": ["a"]}), "keys": ["a"]}, TypeError, "columns of its own"),
    ],
)
def test_nothing_is_sent_if_something_is_wrong(
    server: ScriptedServer,
    four: MemoryCluster,
    arguments: dict[str, Any],
    error: type[Exception],
    text: str,
    times: int,
) -> None:
    given = {name: repeated(column, times) for name, column in {"values": ["one", "two"], **arguments}.items()}
    with Producer(server.url, topic="orders") as producer:
        with pytest.raises(error, match=text):
            producer.send_many(**given)
        producer.flush(5)
    assert not any(log.entries for log in four.logs)
