"""Topics as Spark sees them: what was produced comes back, once or as a stream, also after a restart."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession
from pyspark.sql.functions import spark_partition_id
from pyspark.sql.streaming.readwriter import DataStreamReader

from myqueue import Admin, Consumer, Producer
from tests.cluster import Cluster
from tests.spark.listing import await_listed

pytestmark = pytest.mark.timeout(300)  # the first test waits for the stack and for Spark

EVERYTHING = """offset BIGINT, partition INT, topic STRING, key BINARY, value BINARY, timestamp TIMESTAMP,
    timestampType INT, headers ARRAY<STRUCT<key: STRING, value: BINARY>>, append_time TIMESTAMP"""
PARTITIONS = 3


@pytest.fixture
def topic(stack: Cluster, topic_name: str) -> str:
    with Admin(stack.url) as admin:
        admin.create_topic(topic_name, PARTITIONS)
    return topic_name


def produce(url: str, topic: str, numbers: range) -> None:
    """Some as they are, some compressed, in many batches."""
    with Producer(url, topic, linger_ms=0) as plain, Producer(url, topic, compression="lz4") as small:
        for number in numbers:
            producer = small if number % 5 == 0 else plain
            producer.send(
                b"\xff value %d" % number if number else b"",
                key=None if number % 7 == 0 else f"key {number % 11}",
                partition=number % PARTITIONS,
                timestamp=1_700_000_000_000 + number,
                headers=None if number % 2 else [("number", str(number)), ("none", None)],
            )


def produced(url: str, topic: str, count: int) -> list[tuple[object, ...]]:
    """As another client reads them."""
    with Consumer(url, topic, start="earliest") as consumer:
        messages = list(itertools.islice(iter(lambda: consumer.poll(20), None), count))
    return sorted(
        (m.topic, m.partition, m.offset, m.key, m.value, m.timestamp, list(m.headers) or None) for m in messages
    )


def taken(rows: list[Row]) -> list[tuple[object, ...]]:
    return sorted(
        (
            row.topic,
            row.partition,
            row.offset,
            None if row.key is None else bytes(row.key),
            bytes(row.value),
            round(row.timestamp.timestamp() * 1000),
            None
            if row.headers is None
            else [(h.key, None if h.value is None else bytes(h.value)) for h in row.headers],
        )
        for row in rows
    )


def test_a_batch_read_is_what_was_produced(session: SparkSession, stack: Cluster, topic: str) -> None:
    produce(stack.url, topic, range(1000))
    reader = session.read.format("myqueue").option("url", stack.url).option("subscribe", topic)
    rows = reader.option("minPartitions", 6).schema(EVERYTHING).load()
    collected = rows.withColumn("task", spark_partition_id()).collect()
    assert {row.task for row in collected} == set(range(6))
    assert taken(collected) == produced(stack.url, topic, 1000)
    assert {row.timestampType for row in collected} == {0}
    for partition in range(PARTITIONS):
        times = [row.append_time for row in collected if row.partition == partition]
        assert times == sorted(times)

    usual = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    plain = session.read.format("myqueue").option("url", stack.url).option("subscribe", topic)
    assert plain.load().columns == usual
    assert plain.option("includeHeaders", True).load().columns == [*usual, "headers"]


@pytest.mark.parametrize(
    ("options", "schema", "says"),
    [
        ({"subscribe": "a", "colour": "red"}, None, "InvalidRequest: option colour is not known; a read takes url,"),
        ({"subscribe": "a"}, "value BINARY, price INT", "InvalidRequest: schema: there is no column 'price'"),
        ({"subscribe": "nobody-made-it"}, None, "option subscribe: there is no topic 'nobody-made-it'"),
        ({"subscribe": "a", "url": "http://127.0.0.1:9", "timeoutMs": "300"}, None, "connect to http://127.0.0.1:9"),
    ],
)
def test_a_read_that_cannot_be_says_why(
    session: SparkSession, stack: Cluster, options: dict[str, str], schema: str | None, says: str
) -> None:
    reader = session.read.format("myqueue").options(**{"url": stack.url, **options})
    if schema is not None:
        reader = reader.schema(schema)
    with pytest.raises(PySparkException) as failed:
        reader.load().collect()
    assert says in str(failed.value)


class Stream:
    """A query that reads what there is and ends; started again, it goes on from its checkpoint."""

    def __init__(self, reader: DataStreamReader, checkpoint: Path) -> None:
        self._reader = reader
        self._checkpoint = str(checkpoint)

    def run(self) -> Iterator[list[Row]]:
        batches: dict[int, list[Row]] = {}
        query = (
            self._reader.load()
            .writeStream.foreachBatch(lambda frame, number: batches.__setitem__(number, frame.collect()))
            .option("checkpointLocation", self._checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        yield from batches.values()


def test_a_stream_is_what_was_produced_also_after_a_restart(
    session: SparkSession, stack: Cluster, topic: str, tmp_path: Path
) -> None:
    produce(stack.url, topic, range(900))
    reader = session.readStream.format("myqueue").schema(EVERYTHING).option("url", stack.url)
    reader = reader.option("subscribePattern", f"{topic}.*").option("startingOffsets", "earliest")
    stream = Stream(reader.option("maxOffsetsPerTrigger", 600).option("consumer", "sparks"), tmp_path)
    await_listed(stack.url, topic)
    first = list(stream.run())
    assert [len(rows) for rows in first] == [600, 300]
    assert all(len({row.partition for row in rows}) == PARTITIONS for rows in first)
    with Consumer(stack.url, topic, "sparks") as consumer:
        assert consumer.size() == 0

    produce(stack.url, topic, range(900, 1000))
    with Producer(stack.url, f"{topic}-new") as producer:
        producer.send("in a topic that is new").result(20)
    await_listed(stack.url, topic, f"{topic}-new")
    second = list(stream.run())
    assert sorted(row.topic for rows in second for row in rows) == [*[topic] * 100, f"{topic}-new"]
    rows = [row for batch in (*first, *second) for row in batch if row.topic == topic]
    assert taken(rows) == produced(stack.url, topic, 1000)
    assert list(stream.run()) == []
