"""Statistics as Spark tables: what the API answers, with types, also when it is more than one answer holds."""

import uuid
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from typing import Any

import psycopg2
import pytest
import requests
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from myqueue.protocol.limits import MAX_STATS_ROWS
from tests.calls import Calls
from tests.cluster import Cluster
from tests.jobs import MINUTE_MS, Inside, Run, this_minute
from tests.waiting import until

pytestmark = pytest.mark.timeout(300)  # the first test waits for the stack and for Spark


@pytest.fixture
def calls(stack: Cluster) -> Iterator[Calls]:
    with requests.Session() as http:
        yield Calls(stack.url, http)


@pytest.fixture
def run(stack: Cluster, calls: Calls) -> Run:
    return Run(calls, Inside(stack), f"job_{uuid.uuid4().hex[:12]}")


class Statistics:
    def __init__(self, session: SparkSession, url: str) -> None:
        self._session = session
        self._url = url

    def load(self, table: str, **options: str | int) -> DataFrame:
        reader = self._session.read.format("myqueue.stats").option("url", self._url).option("table", table)
        return reader.options(**{name.rstrip("_"): value for name, value in options.items()}).load()

    def rows(self, table: str, **options: str | int) -> list[Row]:
        return self.load(table, **options).collect()

    def seen(self, count: int, table: str, **options: str | int) -> list[Row]:
        """As soon as the standbys have so many rows."""
        found: list[Row] = []

        def is_there() -> bool:
            found[:] = self.rows(table, **options)
            return len(found) == count

        until(is_there, within_s=20, what=f"{count} rows of {table} are there")
        return found


@pytest.fixture
def statistics(session: SparkSession, stack: Cluster) -> Statistics:
    return Statistics(session, stack.url)


def in_ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def as_listed(rows: list[Row], *names: str) -> list[tuple[Any, ...]]:
    """As the API has them: times in ms."""
    listed = [tuple(in_ms(row[n]) if isinstance(row[n], datetime) else row[n] for n in names) for row in rows]
    return sorted(listed, key=repr)


def test_every_table_is_what_the_api_answers(
    statistics: Statistics, stack: Cluster, calls: Calls, run: Run, topic_name: str
) -> None:
    calls.topic(topic_name, partitions=2)
    topic = {"topic": topic_name, "topic_id": calls.get(f"/v1/topics/{topic_name}").json()["topic_id"]}
    consumer = calls.consumer(topic_name, name="billing")
    lags = [
        {"consumer_id": consumer, "topic": topic_name, "partition_id": n, "cursor": 1, "end_offset": 9}
        | {"messages": 8, "stored_bytes": 80, "seconds": 1.5}
        for n in range(2)
    ]
    this = this_minute()
    for number in range(3):
        read = {"from_offset": 5 * number, "to_offset": 5 * number + 5, "messages": 5, "payload_bytes": 50}
        measured = [
            {**topic, "partition_id": n, "beginning_offset": 0, "end_offset": 5 * number + 5, **read} for n in range(2)
        ]
        minute = {**topic, "minute": this - number * MINUTE_MS, "messages": 10, "payload_bytes": 100}
        run.taken(query_id="q", batch_id=number, partitions=measured, topics=[minute])
        run.taken(consumers=lags)
    assert run.end(rows=30).status_code == 200

    points = statistics.seen(6, "partitions", topic=topic_name, last="1h")
    listed = run.partitions(topic_name, last="1h")
    figures = ("messages", "payload_bytes", "end_offset", "rate_in_per_minute", "computed_at")
    assert as_listed(points, "partition_id", *figures) == sorted(
        ((each["partition_id"], *(point[name] for name in figures)) for each in listed for point in each["history"]),
        key=repr,
    )
    assert {row.stored_bytes for row in points} == {None}, "it was not measured"
    newest = statistics.rows("partitions", topic=topic_name)
    assert as_listed(newest, "partition_id", "messages", "bytes_exact", "gaps", "job") == [
        (n, 15, True, 0, run.begun["job"]) for n in range(2)
    ]
    lag = statistics.seen(6, "consumers", topic=topic_name, last="1h")
    assert {(row.consumer_id, row.name, row.cursor, row.seconds) for row in lag} == {(consumer, "billing", 1, 1.5)}
    [total] = statistics.rows("consumer_totals", topic=topic_name, last="1h", step="52w")
    assert (total.name, total.partitions, total.messages) == ("billing", 2, 16)
    minutes = statistics.seen(3, "topics", topic=topic_name, last="1h")
    assert {(row.messages, row.payload_bytes) for row in minutes} == {(10, 100)}
    [mine] = statistics.seen(1, "runs", job=run.begun["job"])
    assert (mine.run_id, mine.outcome, mine.rows, mine.message) == (run.begun["run_id"], "succeeded", 30, None)
    assert in_ms(mine.started_at) == run.begun["started_at"]
    part = statistics.load("topic_totals", topic=topic_name, last="1h").groupBy("topic").max("messages").collect()
    assert [tuple(row) for row in part] == [(topic_name, 30)]


def test_a_year_that_is_more_than_an_answer_holds(
    statistics: Statistics, stack: Cluster, calls: Calls, topic_name: str
) -> None:
    calls.topic(topic_name, partitions=1)
    topic_id = calls.get(f"/v1/topics/{topic_name}").json()["topic_id"]
    count = 2 * MAX_STATS_ROWS + 1
    end = this_minute()
    database = stack.local.database()
    with (
        closing(
            psycopg2.connect(
                host=database.hosts.split(":")[0],
                port=database.hosts.split(",")[0].split(":")[1],
                user=database.user,
                password=database.password,
                dbname=database.name,
            )
        ) as connection,
        connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(
            "INSERT INTO topic_stats_history (topic_id, computed_at, partitions, messages, payload_bytes,"
            " end_offsets) SELECT %s, to_timestamp((%s - n * 600000::bigint) / 1000.0), 1, 0, 0, %s - n"
            " FROM generate_series(1, %s) n",
            (topic_id, end, count, count),
        )
    started = end - (count + 1) * 600_000
    rows = statistics.seen(count, "topic_totals", topic=topic_name, from_=started, to=end)
    assert {in_ms(row.computed_at) for row in rows} == {end - n * 600_000 for n in range(1, count + 1)}
    rates = [row.rate_in_per_minute for row in rows]
    assert rates.count(None) == 1, "of the first one that there is"
    assert {rate for rate in rates if rate is not None} == {0.1}
    hourly = statistics.rows("topic_totals", topic=topic_name, from_=started, to=end, step="1h")
    last_of_hour = {point // 3_600_000: point for point in range(end - count * 600_000, end, 600_000)}
    assert sorted(in_ms(row.computed_at) for row in hourly) == sorted(last_of_hour.values())


@pytest.mark.parametrize(
    ("options", "schema", "says"),
    [
        ({"table": "topic_totals"}, "skew DOUBLE, price INT", "InvalidRequest: schema: there is no column 'price'"),
        ({"table": "partitions", "topic": "nobody-made-it"}, None, "option topic: "),
        ({"table": "runs", "url": "http://127.0.0.1:9", "timeoutMs": "300"}, None, "connect to http://127.0.0.1:9"),
    ],
)
def test_a_table_that_cannot_be_says_why(
    session: SparkSession, stack: Cluster, options: dict[str, str], schema: str | None, says: str
) -> None:
    reader = session.read.format("myqueue.stats").options(**{"url": stack.url, **options})
    if schema is not None:
        reader = reader.schema(schema)
    with pytest.raises(PySparkException) as failed:
        reader.load().collect()
    assert says in str(failed.value)


def test_statistics_are_neither_a_stream_nor_written(session: SparkSession, stack: Cluster) -> None:
    stream = session.readStream.format("myqueue.stats").options(url=stack.url, table="runs").load()
    with pytest.raises(PySparkException, match=r"myqueue.stats is a table, not a stream"):
        stream.writeStream.format("noop").start().awaitTermination(60)
    with pytest.raises(PySparkException, match=r"myqueue.stats can only be read"):
        session.range(1).write.format("myqueue.stats").mode("append").options(url=stack.url, table="runs").save()
