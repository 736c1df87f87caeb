"""The readers against the real stack, called as Spark calls them: losses, leaders that move, cursors that follow."""

import pickle
import time
from collections.abc import Callable, Iterable
from contextlib import closing

import pyarrow as pa
import pytest
import requests
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructField, StructType

from myqueue import Admin, Consumer, InvalidRequest, OffsetOutOfRange, PartitionNotFound, Producer, TopicNotFound
from myqueue.spark.columns import arrow_schema
from myqueue.spark.offsets import OffsetJson
from myqueue.spark.options import batch_read_options, stream_read_options
from myqueue.spark.planner import OffsetRange
from myqueue.spark.reader import MyQueueReader
from myqueue.spark.stream_reader import MyQueueStreamReader
from tests.cluster import Cluster
from tests.waiting import until

pytestmark = pytest.mark.timeout(300)  # the first test waits for the stack and for Spark

WANTED = arrow_schema(
    StructType(
        [StructField("partition", IntegerType()), StructField("offset", LongType()), StructField("value", BinaryType())]
    )
)
ALL = ReadAllAvailable()
LONG = 12_000  # messages of 1 kB: more than one batch for Spark


def batch_reader(stack: Cluster, **options: str) -> MyQueueReader:
    return MyQueueReader(batch_read_options({"url": stack.url, "timeoutMs": "20000", **options}), WANTED)


def stream_reader(stack: Cluster, **options: str) -> MyQueueStreamReader:
    given = {"url": stack.url, "startingOffsets": "earliest", "timeoutMs": "20000", **options}
    return MyQueueStreamReader(stream_read_options(given), WANTED)


def offsets_in(batches: Iterable[pa.RecordBatch]) -> list[int]:
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def read(reader: MyQueueStreamReader, start: OffsetJson, end: OffsetJson) -> list[int]:
    return [offset for range_ in reader.partitions(start, end) for offset in offsets_in(reader.read(range_))]


def fill(stack: Cluster, topic: str, count: int, size: int = 10) -> None:
    with Producer(stack.url, topic, batch_bytes=64 << 10) as producer:
        producer.send_many([b"%d " % number + b"x" * size for number in range(count)], partition=0)


def create(stack: Cluster, topic: str, **settings: int) -> None:
    with Admin(stack.url) as admin:
        admin.create_topic(topic, **{"partitions": 1, **settings})


def make_again(stack: Cluster, topic: str, **settings: int) -> None:
    before = stack.topic_id(topic)
    with Admin(stack.url) as admin:
        admin.delete_topic(topic)
    create(stack, topic, **settings)
    assert stack.topic_id(topic) != before


def await_error(call: Callable[[], object], says: str) -> None:
    """Other clients than the one that deleted a topic see that a little later."""

    def look() -> str | None:
        try:
            call()
        except TopicNotFound as error:
            return error.message
        return None

    assert says in until(look, within_s=20, what=says)


def other_than(before: OffsetJson, now: OffsetJson) -> OffsetJson | None:
    return None if now == before else now


def cut_log(stack: Cluster, topic: str) -> int:
    """Retention has removed something; where the log begins now."""
    url = f"{stack.url}/topics/{topic}/partitions"
    return until(
        lambda: int(requests.get(url, timeout=10).json()["partitions"][0]["beginning_offset"]),
        within_s=20,
        what="retention cuts the log",
    )


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def a_ms_later(before: int) -> int:
    return until(lambda: now if (now := now_ms()) > before else None, within_s=5, what="the clock goes on")


def test_a_leader_that_goes_while_a_range_is_read(stack: Cluster, topic_name: str) -> None:
    create(stack, topic_name, replication=3)
    fill(stack, topic_name, LONG, size=1000)
    reader = batch_reader(stack, subscribe=topic_name, fetchBytes="100000")
    (range_,) = reader.partitions()
    batches = pickle.loads(pickle.dumps(reader)).read(pickle.loads(pickle.dumps(range_)))
    seen = offsets_in([next(batches)])
    assert len(seen) < LONG
    stack.kill(stack.await_leader(topic_name, within_s=10))
    seen += offsets_in(batches)
    assert seen == list(range(LONG))
    stack.heal()


def test_a_read_from_a_time_or_an_offset_to_another(stack: Cluster, topic_name: str) -> None:
    create(stack, topic_name, partitions=2)
    with Producer(stack.url, topic_name) as producer:
        producer.send_many([b"early"] * 10, partition=0).result(20)
        between = a_ms_later(now_ms())
        a_ms_later(between)
        producer.send_many([b"late"] * 5, partition=0).result(20)

    def ranges(**options: str) -> list[tuple[int, int, int]]:
        found = batch_reader(stack, subscribe=topic_name, **options).partitions()
        return [(range_.partition, range_.start, range_.end) for range_ in found if isinstance(range_, OffsetRange)]

    assert ranges() == [(0, 0, 15)]
    assert ranges(startingTimestamp=str(between)) == [(0, 10, 15)]
    assert ranges(endingTimestamp=str(between)) == [(0, 0, 10)]
    assert ranges(startingTimestamp=str(between + 3_600_000)) == []
    listed = f'{{"{topic_name}":{{"0":12,"1":-2}}}}'
    assert ranges(startingOffsets=listed) == [(0, 12, 15)]
    assert ranges(endingOffsets=listed, minPartitions="3") == [(0, 0, 4), (0, 4, 8), (0, 8, 12)]
    with pytest.raises(InvalidRequest, match=f"option startingOffsets: {topic_name}/0: 12 is past where the read ends"):
        ranges(startingOffsets=listed, endingTimestamp=str(between))


def test_a_reader_may_stop_in_the_middle(stack: Cluster, topic_name: str) -> None:
    create(stack, topic_name)
    fill(stack, topic_name, LONG, size=1000)
    reader = batch_reader(stack, assign=f'{{"{topic_name}":[0]}}', fetchBytes="100000")
    (range_,) = reader.partitions()
    with closing(reader.read(range_)) as batches:  # type: ignore[type-var]
        assert 0 < next(batches).num_rows < LONG
    with pytest.raises(PartitionNotFound, match=f"option assign: topic '{topic_name}' has no partition 4; it has 1"):
        batch_reader(stack, assign=f'{{"{topic_name}":[0,4]}}').partitions()


def test_messages_that_retention_took(stack: Cluster, topic_name: str) -> None:
    create(stack, topic_name, retention_bytes=300_000)
    reader = stream_reader(stack, subscribe=topic_name)
    start = reader.initialOffset()
    fill(stack, topic_name, 800, size=1000)
    beginning = cut_log(stack, topic_name)

    end = reader.latestOffset(start, ALL)
    with pytest.raises(OffsetOutOfRange) as lost:
        reader.partitions(start, end)
    assert f"{topic_name}/0: messages 0 to " in lost.value.message
    assert "failOnDataLoss" in lost.value.message
    range_ = OffsetRange(topic_name, str(stack.topic_id(topic_name)), 0, 0, 800)
    with pytest.raises(OffsetOutOfRange, match=f"{topic_name}/0: messages 0 to "):  # gone after it was planned
        list(reader.read(range_))

    careless = stream_reader(stack, subscribe=topic_name, failOnDataLoss="false")
    end = careless.latestOffset(start, ALL)
    seen = read(careless, start, end)
    assert seen == list(range(seen[0], 800))
    assert seen[0] >= beginning
    assert offsets_in(careless.read(range_))[-1] == 799
    with pytest.raises(OffsetOutOfRange, match="messages 0 to "):
        batch_reader(stack, subscribe=topic_name, startingOffsets=f'{{"{topic_name}":{{"0":0}}}}').partitions()


def test_a_topic_that_was_deleted_and_made_again(stack: Cluster, topic_name: str) -> None:
    create(stack, topic_name)
    fill(stack, topic_name, 50)
    reader, careless = (stream_reader(stack, subscribe=topic_name, failOnDataLoss=fail) for fail in ("true", "false"))
    start = reader.latestOffset(reader.initialOffset(), ALL)
    assert careless.latestOffset(careless.initialOffset(), ALL) == start
    (planned,) = reader.partitions(careless.initialOffset(), start)
    make_again(stack, topic_name)
    fill(stack, topic_name, 20)
    await_error(lambda: reader.latestOffset(start, ALL), f"topic '{topic_name}' was deleted and made again")
    await_error(lambda: list(reader.read(planned)), f"topic '{topic_name}' was deleted and made again")
    until(lambda: offsets_in(careless.read(planned)) == [], within_s=20, what="nothing comes of what is gone")
    end = until(lambda: other_than(start, careless.latestOffset(start, ALL)), within_s=20, what="the new topic is seen")
    assert read(careless, start, end) == list(range(20))

    with Admin(stack.url) as admin:
        admin.delete_topic(topic_name)
    await_error(lambda: reader.latestOffset(end, ALL), f"topic '{topic_name}' was deleted")
    until(lambda: careless.latestOffset(end, ALL) == {}, within_s=20, what="the stream goes on without the topic")


def test_a_topic_that_goes_while_it_is_read(stack: Cluster, topic_name: str) -> None:
    create(stack, topic_name)
    fill(stack, topic_name, LONG, size=1000)
    range_ = OffsetRange(topic_name, str(stack.topic_id(topic_name)), 0, 0, LONG + 1)
    reader, careless = (batch_reader(stack, subscribe=topic_name, failOnDataLoss=fail) for fail in ("true", "false"))
    batches, others = reader.read(range_), careless.read(range_)
    seen = offsets_in([next(others)])
    assert offsets_in([next(batches)]) == seen
    make_again(stack, topic_name)
    with pytest.raises(TopicNotFound, match=f"topic '{topic_name}' was deleted and made again"):
        list(batches)
    seen += offsets_in(others)
    assert seen == list(range(len(seen)))


def test_available_now_stops_at_what_was_there(stack: Cluster, topic_name: str) -> None:
    create(stack, topic_name)
    fill(stack, topic_name, 30)
    reader = stream_reader(stack, subscribe=topic_name, maxOffsetsPerTrigger="20")
    latest = stream_reader(stack, subscribe=topic_name, startingOffsets="latest")
    assert reader.getDefaultReadLimit() == ReadMaxRows(20)
    for each in (reader, latest):  # in the order in which Spark asks
        each.prepareForTriggerAvailableNow()
    fill(stack, topic_name, 5)
    start = latest.initialOffset()
    assert latest.latestOffset(start, ALL) == start
    start = reader.initialOffset()
    assert reader.initialOffset() == start
    seen: list[int] = []
    while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
        seen += read(reader, start, end)
        start = end
    assert seen == list(range(30))
    fresh = stream_reader(stack, subscribe=topic_name)
    assert read(fresh, fresh.initialOffset(), start) == list(range(30))
    restarted = stream_reader(stack, subscribe=topic_name)  # repeats a micro-batch before it asks for more
    assert read(restarted, start, fresh.latestOffset(start, ALL)) == list(range(30, 35))
    assert fresh.reportLatestOffset() == fresh.latestOffset(start, ALL)
    with pytest.raises(TopicNotFound, match="option subscribe: there is no topic 'mistyped'"):
        stream_reader(stack, subscribe=f"{topic_name},mistyped").latestOffset(start, ALL)


def test_cursors_follow_beside_a_member_that_has_leases(stack: Cluster, topic_name: str) -> None:
    """A partition on lease is its holder's to commit; repeating a commit, or coming late with one, does no harm."""
    create(stack, topic_name, partitions=2)
    with Producer(stack.url, topic_name) as producer:
        for partition in (0, 1):
            producer.send_many([b"m"] * 10, partition=partition)
    reader = stream_reader(stack, subscribe=topic_name, consumer="record_batch")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    half: OffsetJson = {topic_name: {**end[topic_name], "0": 5}}
    consumer = Consumer(stack.url, topic_name, "record_batch")
    assert consumer.size() == 20  # its lag is there to be seen before the first micro-batch is read
    reader.commit(half)
    assert consumer.size() == 5
    with Consumer(stack.url, topic_name, "record_batch", commit="manual") as member:
        assert member.poll(20) is not None
        reader.commit(end)  # the partition that is left is on lease
        assert consumer.size() == 5
    reader.commit(half)
    stream_reader(stack, subscribe=topic_name, consumer="record_batch").latestOffset(end, ALL)
    assert consumer.size() == 0
    consumer.close()

    make_again(stack, topic_name, partitions=2)
    reader.commit(half)
    reader.commit(half)
    with Admin(stack.url) as admin:
        admin.register_producer(topic_name)  # a later write: the list that carries its token shows all earlier ones
        assert admin.consumers(topic_name) == []
    reader.stop()
