"""What a run of partition_metrics costs when the topic has ten times the history and the new part is the same.

Two stacks, one with each history, and runs in turn in one session: what makes Spark faster or slower over time makes
both so.
"""

import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.measurement import Addresses, Figure, Pace
from benchmarks.ours import stored
from benchmarks.spark_session import TOPIC, fill, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOB = "partition_metrics"
TIMES = 10
NEW_SHARE = 10  # what is new for each run: a tenth of the shorter history
SIDES = ("short", "long")


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
    """As the scheduler does it; how many messages it has read."""
    # Imported where they are used: Spark need not be installed for the other measurements.
    from spark.config import Access
    from spark.job_run import JobRun
    from spark.jobs import JOBS
    from spark.jobs.work import Work
    from spark.stats_client import StatsClient

    url, write_manager_url = addresses[f"{side}.url"], addresses[f"{side}.write_manager_url"]
    calls = StatsClient(Access(url, write_manager_url, addresses[f"{side}.cluster_secret"]))
    try:
        with JobRun(calls, JOB, "benchmarks", "manual") as run:
            JOBS[JOB](Work(session, calls, run, Path(addresses["folder"]) / side))
    finally:
        calls.close()
    return run.rows
