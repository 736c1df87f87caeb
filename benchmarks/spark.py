"""Spark on top of the stack: reading a topic beside Parquet files, and the job partition_metrics. On new stacks."""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from benchmarks.machine import package_version
from benchmarks.measurement import Addresses, Figure, Measurement, Pace, Running
from benchmarks.ours import BROKERS, new_stack, stored
from benchmarks.spark_session import TOPIC, fill, spark_session, topic_frame
from benchmarks.spark_sinks import write_stream, write_table
from spark.config import SparkFailure
from spark.runtime import find_java

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PRUNED = "value BINARY, offset BIGINT"
ROW_GROUP_BYTES = 16 << 20  # a reader loads whole row groups, and the driver has little memory
JOB = "partition_metrics"
TIMES = 10
NEW_SHARE = 10  # what is new for each run: a tenth of the shorter history
SIDES = ("short", "long")
KEY = "myqueue-spark"
KEY_OF_JOBS = "myqueue-spark-jobs"
SPARE_S = 600.0  # Spark starts, and millions of messages are sent, before the clock runs


@dataclass(frozen=True, slots=True)
class Memory:
    """Peak resident bytes."""

    driver: int  # Spark's Java: driver and executor in one
    worker: int  # the largest Python process that it has started
    workers: int  # all of them, shared pages counted each time


def peak_memory() -> Memory:
    """Of the Spark that this process has started."""
    drivers, workers = [0], [0]
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError):
            (drivers if child.name() == "java" else workers).append(_most_resident(child.pid))
    return Memory(max(drivers), max(workers), sum(workers))


def _most_resident(pid: int) -> int:
    """From the kernel's own high-water mark."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def read_topic(addresses: Addresses, pace: Pace, size: int) -> Figure:
    """The figure is for all columns; the times of the chosen columns and of Parquet are its details."""
    url, folder = addresses["url"], Path(addresses["folder"])
    messages = fill(url, pace.spark_messages, size)
    with spark_session(url, folder) as session:
        table = str(folder / "messages.parquet")
        written = topic_frame(session, url).write.mode("overwrite").option("compression", "uncompressed")
        written.option("parquet.block.size", ROW_GROUP_BYTES).parquet(table)
        ways: dict[str, Callable[[], DataFrame]] = {
            "parquet": lambda: session.read.parquet(table),
            "topic": lambda: topic_frame(session, url),
            "pruned": lambda: topic_frame(session, url, PRUNED),
        }
        began = time.perf_counter()
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        found = set()
        for _ in range(pace.spark_warm_ups + pace.spark_rounds):
            for way, frame in ways.items():
                spent, answer = _aggregate(frame())
                seconds[way].append(spent)
                found.add(answer)
        if len(found) != 1 or next(iter(found))[0] != messages * size:
            raise RuntimeError(f"{messages} messages of {size} bytes, but the answers are {found}")
        best = {way: min(spent[pace.spark_warm_ups :]) for way, spent in seconds.items()}
        memory = peak_memory()
        java = session.sparkContext._jvm
        assert java is not None
        heap = java.java.lang.Runtime.getRuntime().maxMemory()
    return Figure(
        messages / best["topic"],
        "messages/s",
        time.perf_counter() - began,
        messages,
        {
            **{f"{way}_s": spent for way, spent in best.items()},
            **{f"{way}_all_s": spent for way, spent in seconds.items()},
            "driver_heap_bytes": float(heap),
            "driver_rss_bytes": float(memory.driver),
            "worker_rss_bytes": float(memory.worker),
            "workers_rss_bytes": float(memory.workers),
        },
    )


def _aggregate(frame: "DataFrame") -> tuple[float, tuple[int, int]]:
    from pyspark.sql import functions as f

    began = time.perf_counter()
    (row,) = frame.agg(f.sum(f.length("value")), f.max("offset")).collect()
    return time.perf_counter() - began, (row[0], row[1])


def metrics_with_history(addresses: Addresses, pace: Pace, size: int) -> Figure:
    """The time of a run with the longer history over the time of one with the shorter, Spark's start left out."""
    folder = Path(addresses["folder"])
    long = pace.spark_messages
    new = long // TIMES // NEW_SHARE
    began = time.perf_counter()
    seconds: dict[str, list[float]] = {side: [] for side in SIDES}
    histories: dict[str, int] = {}
    with spark_session(addresses["long.url"], folder) as session:
        for side, history in (("short", long // TIMES), ("long", long)):
            fill(addresses[f"{side}.url"], history, size)
            _run(session, addresses, side)  # takes in the history
        for number in range(pace.spark_warm_ups + pace.spark_rounds):
            for side in SIDES:
                url = addresses[f"{side}.url"]
                there = stored(url, TOPIC)
                if number == pace.spark_warm_ups:
                    histories[side] = there
                fill(url, there + new, size)
                seconds[side].append(_timed(session, addresses, side, new))
    best = {side: min(spent[pace.spark_warm_ups :]) for side, spent in seconds.items()}
    return Figure(
        best["long"] / best["short"],
        "times",
        time.perf_counter() - began,
        new,
        {
            "short_history": histories["short"],
            "long_history": histories["long"],
            **{f"{side}_s": spent for side, spent in best.items()},
            **{f"{side}_all_s": spent for side, spent in seconds.items()},
        },
    )


def _timed(session: "SparkSession", addresses: Addresses, side: str, new: int) -> float:
    began = time.perf_counter()
    rows = _run(session, addresses, side)
    seconds = time.perf_counter() - began
    if rows != new:
        raise RuntimeError(f"{new} messages are new, but {JOB} has read {rows}")
    return seconds


def _run(session: "SparkSession", addresses: Addresses, side: str) -> int:
    """One run, as by the scheduler; how many messages it has read."""
    # Imported here: Spark need not be installed for other measurements.
    from spark.config import Access
    from spark.job_run import JobRun
    from spark.jobs import JOBS
    from spark.jobs.work import Work
    from spark.stats_client import StatsClient

    url, write_managers = addresses[f"{side}.url"], addresses[f"{side}.write_manager_urls"]
    calls = StatsClient(Access(url, tuple(write_managers.split(",")), addresses[f"{side}.cluster_secret"]))
    try:
        with JobRun(calls, JOB, "benchmarks", "manual") as run:
            JOBS[JOB](Work(session, calls, run, Path(addresses["folder"]) / side))
    finally:
        calls.close()
    return run.rows


class OursSpark:
    key = KEY
    title = "myqueue by Spark"
    durability = f"the same stack: {BROKERS} replicas, fsynced by a majority"

    def missing(self) -> str | None:
        if find_spec("pyspark") is None:
            return "Spark: pip install -r requirements/spark.txt"
        try:
            find_java("auto")
        except SparkFailure as failure:
            return str(failure)
        return None

    @contextlib.contextmanager
    def running(self, folder: Path) -> Iterator[Running]:
        with new_stack(folder) as stack:
            yield Running(_version(), {"url": stack.url, "folder": str(folder)})

    def measurements(self) -> list[Measurement]:
        return [  # the sinks first: they write what there is, and reading wants more
            Measurement(KEY, "Spark", "df.write into a topic", 100, write_table, SPARE_S),
            Measurement(KEY, "Spark", "a stream into a topic, exactly once", 100, write_stream, SPARE_S),
            Measurement(KEY, "Spark", "sum(length(value)), max(offset) of a topic", 100, read_topic, SPARE_S),
        ]


class OursSparkJobs(OursSpark):
    key = KEY_OF_JOBS

    @contextlib.contextmanager
    def running(self, folder: Path) -> Iterator[Running]:
        addresses = {"folder": str(folder)}
        with contextlib.ExitStack() as stacks:
            for side in SIDES:
                (folder / side).mkdir(mode=0o711)
                stack = stacks.enter_context(new_stack(folder / side))
                addresses[f"{side}.url"] = stack.url
                addresses[f"{side}.write_manager_urls"] = ",".join(stack.internal_urls)
                addresses[f"{side}.cluster_secret"] = stack.secrets.cluster_secret
            yield Running(_version(), addresses)

    def measurements(self) -> list[Measurement]:
        method = "partition_metrics with 10 times the history"
        return [Measurement(KEY_OF_JOBS, "Spark", method, 100, metrics_with_history, SPARE_S)]


def _version() -> str:
    return f"PySpark {package_version('pyspark')}, Java {find_java('auto').version}"
