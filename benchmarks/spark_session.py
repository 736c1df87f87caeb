"""A Spark session for measurements, and a topic filled for it."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.ours import TIMEOUT_S, stored
from benchmarks.workload import CHUNK
from myqueue import Admin, Producer, TopicExists

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "bench-spark"
PARTITIONS = 4


@contextlib.contextmanager
def spark_session(url: str, folder: Path) -> Iterator["SparkSession"]:
    """As the jobs have it: 512 MB for its driver, tasks on this machine, Python workers that are reused."""
    # Imported here: Spark need not be installed for other measurements.
    from spark.config import load
    from spark.session import build

    session = build("benchmarks", settings=load(url=url, dir=folder / "spark", master="local[2]", driver_memory="512m"))
    try:
        yield session
    finally:
        session.stop()


def fill(url: str, messages: int, size: int) -> int:
    """Sends until so many are stored. All differ: Parquet would store equal ones once."""
    with Admin(url) as admin, contextlib.suppress(TopicExists):
        admin.create_topic(TOPIC, partitions=PARTITIONS)
    there = stored(url, TOPIC)
    with Producer(url, topic=TOPIC) as producer:
        for begin in range(there, messages, CHUNK):
            payload = os.urandom(size * min(CHUNK, messages - begin))
            producer.send_many([payload[at : at + size] for at in range(0, len(payload), size)])
        producer.flush(TIMEOUT_S)
    found = stored(url, TOPIC)
    if found != max(there, messages):
        raise RuntimeError(f"{messages} messages should be stored but {found} are")
    return found


def topic_frame(session: "SparkSession", url: str, schema: str | None = None) -> "DataFrame":
    reader = session.read.format("myqueue").option("url", url).option("subscribe", TOPIC)
    return (reader if schema is None else reader.schema(schema)).load()
