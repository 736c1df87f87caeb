"""Reading a topic in Spark beside reading the same messages from Parquet files, in turn, in one session."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.measurement import Addresses, Figure, Pace
from benchmarks.spark_session import TOPIC, fill, peak_memory, spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PRUNED = "value BINARY, offset BIGINT"
ROW_GROUP_BYTES = 16 << 20  # a reader takes whole row groups into memory, and the driver has little of that


def read_topic(addresses: Addresses, pace: Pace, size: int) -> Figure:
    """The figure counts all columns; how long the chosen ones and Parquet take are details of it."""
    url, folder = addresses["url"], Path(addresses["folder"])
    messages = fill(url, pace.spark_messages, size)
    with spark_session(url, folder) as session:
        table = str(folder / "messages.parquet")
        written = _topic(session, url).write.mode("overwrite").option("compression", "uncompressed")
        written.option("parquet.block.size", ROW_GROUP_BYTES).parquet(table)
        ways: dict[str, Callable[[], DataFrame]] = {
            "parquet": lambda: session.read.parquet(table),
            "topic": lambda: _topic(session, url),
            "pruned": lambda: _topic(session, url, PRUNED),
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


def _topic(session: "SparkSession", url: str, schema: str | None = None) -> "DataFrame":
    reader = session.read.format("myqueue").option("url", url).option("subscribe", TOPIC)
    return (reader if schema is None else reader.schema(schema)).load()


def _aggregate(frame: "DataFrame") -> tuple[float, tuple[int, int]]:
    from pyspark.sql import functions as f

    began = time.perf_counter()
    (row,) = frame.agg(f.sum(f.length("value")), f.max("offset")).collect()
    return time.perf_counter() - began, (row[0], row[1])
