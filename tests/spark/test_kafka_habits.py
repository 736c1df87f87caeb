"""What users of Spark's Kafka source try first, in the session that all tests share."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import requests
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress

from myqueue import Admin, Producer
from myqueue.spark import OffsetsBehindLatest, OffsetsBehindListener, offsets_behind_latest, to_topic
from tests.cluster import Cluster
from tests.spark.stored import stored
from tests.waiting import until

pytestmark = pytest.mark.timeout(300)  # the first test waits for the stack and for Spark

WITHIN_S = 60


@pytest.fixture
def topic(stack: Cluster, topic_name: str) -> str:
    with Admin(stack.url) as admin:
        admin.create_topic(topic_name, 2)
    return topic_name


def produce(stack: Cluster, topic: str, values: list[str], partition: int = 0) -> None:
    with Producer(stack.url, topic) as producer:
        producer.send_many(values, partition=partition).result(20)


def stream(session: SparkSession, stack: Cluster, topic: str, **options: object) -> DataFrame:
    reader = session.readStream.format("myqueue").option("url", stack.url).option("subscribe", topic)
    return reader.option("startingOffsets", "earliest").options(**options).load()  # type: ignore[arg-type]


def words(frame: DataFrame) -> DataFrame:
    counts = frame.selectExpr("CAST(value AS STRING) AS word").groupBy("word").count()
    return counts.selectExpr("word AS key", "concat(word, ' ', count) AS value")


def values_in(stack: Cluster, topic: str) -> Counter[str]:
    return Counter(one.value.decode() for one in stored(stack.url, topic))


def test_update_mode_writes_the_rows_that_have_changed_exactly_once(
    session: SparkSession, stack: Cluster, topic: str, tmp_path: Path
) -> None:
    target = f"{topic}-counts"
    write = to_topic(target, url=stack.url, partitions=2)
    repeated: list[int] = []

    def write_twice(frame: DataFrame, number: int) -> None:
        """As after a driver that died when it had written, and before Spark knew."""
        write(frame, number)
        write(frame, number)
        repeated.append(number)

    def run() -> None:
        query = words(stream(session, stack, topic)).writeStream.outputMode("update").foreachBatch(write_twice)
        started = query.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        assert started.awaitTermination(WITHIN_S)

    produce(stack, topic, ["a", "b", "a"])
    run()
    assert values_in(stack, target) == Counter(["a 2", "b 1"])
    produce(stack, topic, ["a", "c"])
    run()
    assert values_in(stack, target) == Counter(["a 2", "b 1", "a 3", "c 1"])
    assert repeated == [0, 1]


def test_a_mode_that_a_topic_cannot_have_says_what_to_use(
    session: SparkSession, stack: Cluster, topic: str, tmp_path: Path
) -> None:
    rows = words(stream(session, stack, topic)).writeStream.format("myqueue").option("url", stack.url)
    rows = rows.option("topic", f"{topic}-never").option("checkpointLocation", str(tmp_path)).outputMode("complete")
    produce(stack, topic, ["a"])
    with pytest.raises(PySparkException, match=r"mode update with foreachBatch\(myqueue.spark.to_topic"):
        rows.trigger(availableNow=True).start().awaitTermination(WITHIN_S)
    # These two are refused by Spark itself, as docs/spark.md says.
    with pytest.raises(PySparkException, match="does not support Update mode"):
        rows.outputMode("update").trigger(availableNow=True).start().awaitTermination(WITHIN_S)
    with pytest.raises(PySparkException, match=r"(?i)continuous"):
        stream(session, stack, topic).writeStream.format("noop").trigger(continuous="1 second").start()
    with pytest.raises(PySparkException, match=r"option kafka\.bootstrap\.servers is Kafka's; write option url"):
        session.read.format("myqueue").option("kafka.bootstrap.servers", "h:9092").option("subscribe", topic).load()


def test_progress_is_what_starting_offsets_take(
    session: SparkSession, stack: Cluster, topic: str, tmp_path: Path
) -> None:
    produce(stack, topic, [f"{number}" for number in range(30)])
    produce(stack, topic, ["x"] * 10, partition=1)
    reported: list[tuple[StreamingQueryProgress, OffsetsBehindLatest]] = []
    listener = OffsetsBehindListener(lambda progress, found: reported.append((progress, found)))
    session.streams.addListener(listener)
    try:
        rows = stream(session, stack, topic, maxOffsetsPerTrigger=20)
        query = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
        started = query.trigger(availableNow=True).start()
        assert started.awaitTermination(WITHIN_S)
        batches = [progress for progress in started.recentProgress if progress.numInputRows]
        until(lambda: len(reported) >= len(batches), within_s=WITHIN_S, what="the listener has heard of both")
    finally:
        session.streams.removeListener(listener)
    first = batches[0]
    assert [progress.numInputRows for progress in batches] == [20, 20]
    shown = json.loads(first.sources[0].endOffset)
    assert shown == {topic: {"0": 15, "1": 5, "id": str(stack.topic_id(topic))}}
    assert offsets_behind_latest(first) == OffsetsBehindLatest(min=5, avg=10.0, max=15, total=20)
    assert [found.total for _, found in reported[:2]] == [20, 0]

    reader = session.read.format("myqueue").option("url", stack.url).option("subscribe", topic)
    rest = reader.option("startingOffsets", first.sources[0].endOffset).load()
    assert rest.count() == 20
    assert {row.offset for row in rest.where("partition = 0").collect()} == set(range(15, 30))


def test_a_read_by_the_times_of_its_partitions(session: SparkSession, stack: Cluster, topic: str) -> None:
    produce(stack, topic, ["early"])
    produce(stack, topic, ["early"], partition=1)
    (append_ms,) = {
        row.ms
        for row in session.read.format("myqueue")
        .options(url=stack.url, subscribe=topic)
        .schema("append_time TIMESTAMP, partition INT")
        .load()
        .where("partition = 1")
        .selectExpr("unix_millis(append_time) AS ms")
        .collect()
    }

    def count(**options: dict[str, Any]) -> int:
        texts = {name: json.dumps(value) for name, value in options.items()}
        reader = session.read.format("myqueue").options(url=stack.url, subscribe=topic)
        return reader.options(**texts).load().count()

    assert count(startingOffsetsByTimestamp={topic: {"0": 0, "1": append_ms}}) == 2
    assert count(startingOffsetsByTimestamp={topic: {"0": 0, "1": append_ms + 1}}) == 1
    assert count(endingOffsetsByTimestamp={topic: {"0": 0, "1": append_ms + 1}}) == 1


def test_the_sink_makes_a_topic_once_and_with_the_partitions_that_are_wanted(
    session: SparkSession, stack: Cluster, topic: str, tmp_path: Path
) -> None:
    target = f"{topic}-copy"

    def copy() -> None:
        rows = stream(session, stack, topic).select("value").writeStream.format("myqueue").option("url", stack.url)
        rows = rows.options(topic=target, partitions=7, checkpointLocation=str(tmp_path))
        assert rows.trigger(availableNow=True).start().awaitTermination(WITHIN_S)

    produce(stack, topic, ["a"])
    copy()
    described = requests.get(f"{stack.url}/v1/topics/{target}", timeout=10).json()
    assert described["partitions"] == 7
    with Admin(stack.url) as admin:
        admin.delete_topic(target)
        until(lambda: target not in admin.list_topics(), within_s=20, what="the topic is gone")
        produce(stack, topic, ["b"])
        with pytest.raises(PySparkException, match=f"topic '{target}' was deleted since the query began"):
            copy()
        assert target not in admin.list_topics()
        admin.create_topic(target, 3)
        copy()
    assert values_in(stack, target) == Counter(["b"])

    missing = session.createDataFrame([("a",)], "value STRING").write.format("myqueue").mode("append")
    with pytest.raises(PySparkException, match=r"there is no topic .* and option createTopics is false"):
        missing.options(url=stack.url, topic=f"{topic}-none", createTopics="false").save()
