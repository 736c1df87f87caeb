"""Spark into a topic: a table that it has in memory, and a stream from one topic into another."""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.measurement import Addresses, Figure, Pace
from benchmarks.ours import stored
from benchmarks.spark_session import TOPIC, fill, spark_session, topic_frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHARE = 5  # of the messages that Spark reads, one of so many is written in a round
MICRO_BATCHES = 4


def write_table(addresses: Addresses, pace: Pace, size: int) -> Figure:
    """Keys and values, from a table that Spark has cached: the best round."""
    url, folder = addresses["url"], Path(addresses["folder"])
    rows = fill(url, pace.spark_messages // SHARE, size)
    began = time.perf_counter()
    seconds = []
    with spark_session(url, folder) as session:
        frame = topic_frame(session, url).selectExpr("concat('customer-', offset % 1000) AS key", "value").cache()
        if frame.count() != rows:
            raise RuntimeError(f"{rows} messages are stored, but Spark has read {frame.count()}")
        for _ in range(pace.spark_warm_ups + pace.spark_rounds):
            before = stored(url, "bench-written")
            started = time.perf_counter()
            frame.write.format("myqueue").mode("append").options(url=url, topic="bench-written").save()
            seconds.append(time.perf_counter() - started)
            _check(stored(url, "bench-written") - before, rows)
    best = min(seconds[pace.spark_warm_ups :])
    return Figure(rows / best, "messages/s", time.perf_counter() - began, rows, {"all_s": seconds})


def write_stream(addresses: Addresses, pace: Pace, size: int) -> Figure:
    """The best micro-batch of some queries, reading included; and the first one of the session."""
    url, folder = addresses["url"], Path(addresses["folder"])
    rows = fill(url, pace.spark_messages // SHARE, size)
    began = time.perf_counter()
    rates, firsts = [], []
    with spark_session(url, folder) as session:
        for number in range(pace.spark_warm_ups + pace.spark_rounds):
            before = stored(url, "bench-streamed")
            done = list(_copied(session, url, rows, folder / f"checkpoint-{number}"))
            _check(stored(url, "bench-streamed") - before, rows)
            firsts.append(done[0]["durationMs"]["triggerExecution"] / 1000)
            if number >= pace.spark_warm_ups:
                rates += [one["numInputRows"] / one["durationMs"]["triggerExecution"] * 1000 for one in done]
    details = {"first_s": firsts[0], "all_first_s": firsts}
    return Figure(max(rates), "messages/s", time.perf_counter() - began, rows, details)


def _copied(session: "SparkSession", url: str, rows: int, checkpoint: Path) -> Iterable[Any]:
    """The progress of each micro-batch that had something to do."""
    source = session.readStream.format("myqueue").options(url=url, subscribe=TOPIC, startingOffsets="earliest")
    frame = source.option("maxOffsetsPerTrigger", -(-rows // MICRO_BATCHES)).load().select("key", "value")
    sink = frame.writeStream.format("myqueue").options(url=url, topic="bench-streamed")
    query = sink.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    return [one for one in query.recentProgress if one["numInputRows"]]


def _check(found: int, rows: int) -> None:
    if found != rows:
        raise RuntimeError(f"{rows} rows were written, but {found} are stored")
