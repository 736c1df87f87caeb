"""What Spark writes is in its topics: once from a stream, also when its driver is killed."""

import os
import signal
import subprocess
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import requests
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from myqueue import Admin
from myqueue.protocol.partitioner import partition_for
from tests.cluster import Cluster
from tests.spark.copying import Copying
from tests.spark.stored import stored
from tests.spark.tollgate import Tollgate

pytestmark = pytest.mark.timeout(300)  # the first test waits for the stack and for Spark

PARTITIONS = 3
ROWS = 2000


@pytest.fixture
def topic(stack: Cluster, topic_name: str) -> str:
    with Admin(stack.url) as admin:
        admin.create_topic(topic_name, PARTITIONS)
    return topic_name


def test_a_batch_write_is_stored_as_a_producer_would(session: SparkSession, stack: Cluster, topic: str) -> None:
    rows = session.range(0, ROWS, 1, 2).selectExpr(
        "if(id % 5 = 0, null, concat('key ', id % 97)) AS key",
        "cast(concat('value ', id) AS binary) AS value",
        "if(id % 2 = 0, null, timestamp_millis(1700000000000 + id)) AS timestamp",
        "if(id % 3 = 0, null, array(struct('number' AS key, cast(string(id) AS binary) AS value))) AS headers",
    )
    before_ms = datetime.now(UTC).timestamp() * 1000
    rows.write.format("myqueue").mode("append").options(
        url=stack.url, topic=topic, batchBytes="3000", compression="lz4"
    ).save()
    found = stored(stack.url, topic)
    assert len(found) == ROWS
    numbers = [int(one.value.split()[1]) for one in found]
    assert sorted(numbers) == list(range(ROWS))
    for number, one in zip(numbers, found, strict=True):
        assert one.key == (None if number % 5 == 0 else b"key %d" % (number % 97))
        assert one.key is None or one.partition == partition_for(one.key, PARTITIONS)
        assert one.headers == (() if number % 3 == 0 else (("number", str(number).encode()),))
        assert one.timestamp >= before_ms - 1 if number % 2 == 0 else one.timestamp == 1_700_000_000_000 + number
    assert {one.partition for one in found if one.key is None} == set(range(PARTITIONS))
    for of_task in (range(ROWS // 2), range(ROWS // 2, ROWS)):
        for partition in range(PARTITIONS):
            kept = [n for n, one in zip(numbers, found, strict=True) if n in of_task and one.partition == partition]
            assert [n for n in kept if n % 5] == sorted(n for n in kept if n % 5)


def test_rows_name_topic_and_partition(session: SparkSession, stack: Cluster, topic: str) -> None:
    """A topic that is missing is made."""
    other = f"{topic}-other"
    rows = session.range(100).selectExpr(
        "string(id) AS value", f"if(id < 10, '{topic}', '{other}') AS topic", "if(id % 2 = 0, 1, null) AS partition"
    )
    rows.write.format("myqueue").mode("append").option("url", stack.url).save()
    here, there = stored(stack.url, topic), stored(stack.url, other)
    assert sorted(int(one.value) for one in here) == list(range(10))
    assert sorted(int(one.value) for one in there) == list(range(10, 100))
    assert all(one.partition == 1 for one in here + there if int(one.value) % 2 == 0)


@pytest.mark.parametrize(
    ("columns", "words"),
    [  # by the plan, by a task; all others are found by checks that have tests of their own
        (["id AS value"], "column 'value' is bigint, it must be binary or string"),
        (["if(id = 3, null, string(id)) AS value"], "value is null in 1 of"),
    ],
)
def test_what_cannot_be_written_is_named(
    session: SparkSession, stack: Cluster, topic: str, columns: list[str], words: str
) -> None:
    rows = session.range(0, 4, 1, 1).selectExpr(*columns)
    with pytest.raises(PySparkException, match=words):
        rows.write.format("myqueue").mode("append").options(url=stack.url, topic=topic).save()
    assert not stored(stack.url, topic)


def values_in(stack: Cluster, topic: str) -> Counter[bytes]:
    return Counter(one.value for one in stored(stack.url, topic))


@pytest.mark.slow
@pytest.mark.timeout(600)  # its first driver starts a Spark of its own
def test_a_stream_is_written_once_whatever_happens_to_its_driver(
    session: SparkSession, stack: Cluster, topic: str, tmp_path: Path
) -> None:
    """It is killed in the middle of publishing, before the answer to its last append arrived. The next one computes
    the micro-batch with other tasks, so that the rows come in another order, and goes on."""
    lines, checkpoint = tmp_path / "lines", tmp_path / "checkpoint"
    lines.mkdir()
    for start in (0, 150):
        (lines / f"{start}").write_text("".join(f"value {number}\n" for number in range(start, start + 150)))
    expected = Counter(b"value %d" % number for number in range(300))
    target_id = requests.get(f"{stack.url}/v1/topics/{topic}", timeout=10).json()["topic_id"]

    def kill() -> None:
        os.killpg(driver.pid, signal.SIGKILL)

    with Tollgate(stack.url, kill, 4, answered=True, topic_id=target_id) as gate:
        first = Copying(str(lines), gate.url, topic, str(checkpoint))
        alone = {**os.environ, "SPARK_MASTER": "local[1]"}
        driver = subprocess.Popen(first.arguments(), env=alone, start_new_session=True)
        driver.wait(240)
        assert (gate.struck.is_set(), driver.returncode) == (True, -signal.SIGKILL)
    assert 0 < values_in(stack, topic).total() < expected.total()

    replace(first, url=stack.url).run(session, tasks=2)
    assert values_in(stack, topic) == expected
