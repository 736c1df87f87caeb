"""The Spark session that is measured, the messages it reads, and the memory it takes."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from benchmarks.ours import TIMEOUT_S, stored
from benchmarks.workload import CHUNK
from myqueue import Admin, Producer, TopicExists

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC = "bench-spark"
PARTITIONS = 4


@contextlib.contextmanager
def spark_session(url: str, folder: Path) -> Iterator["SparkSession"]:
    """As the jobs have it: 512 MB for its driver, tasks on this machine, Python workers that are reused."""
    # Imported where they are used: Spark need not be installed for the other measurements.
    from spark.config import load
    from spark.session import build

    session = build("benchmarks", settings=load(url=url, dir=folder / "spark", master="local[2]", driver_memory="512m"))
    try:
        yield session
    finally:
        session.stop()


def fill(url: str, messages: int, size: int) -> int:
    """Sends until so many are stored, all of them different: equal ones would let Parquet store each only once."""
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


@dataclass(frozen=True, slots=True)
class Memory:
    """The most that was ever resident of each, in bytes."""

    driver: int  # Spark's Java: driver and executor in one
    worker: int  # the largest Python process that it has started
    workers: int  # all of them, counting what they share each time


def peak_memory() -> Memory:
    """Of the Spark that this process has started."""
    drivers, workers = [0], [0]
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError):
            (drivers if child.name() == "java" else workers).append(_most_resident(child.pid))
    return Memory(max(drivers), max(workers), sum(workers))


def _most_resident(pid: int) -> int:
    """The kernel keeps count, so nothing need be sampled."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0
