"""Spark on top of the stack: reading a topic, and the job that measures partitions. On stacks of their own, new."""

import contextlib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from benchmarks.machine import package_version
from benchmarks.measurement import Measurement
from benchmarks.ours import BROKERS, new_stack
from benchmarks.spark_metrics import SIDES, metrics_with_history
from benchmarks.spark_read import read_topic
from benchmarks.system import Running
from spark.config import SparkFailure
from spark.runtime import find_java

KEY = "myqueue-spark"
KEY_OF_JOBS = "myqueue-spark-jobs"
SPARE_S = 600.0  # Spark starts, and millions of messages are sent, before the clock runs


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
        return [Measurement(KEY, "Spark", "sum(length(value)), max(offset) of a topic", 100, read_topic, SPARE_S)]


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
                addresses[f"{side}.write_manager_url"] = stack.internal_url
                addresses[f"{side}.cluster_secret"] = stack.secrets.cluster_secret
            yield Running(_version(), addresses)

    def measurements(self) -> list[Measurement]:
        method = "partition_metrics with 10 times the history"
        return [Measurement(KEY_OF_JOBS, "Spark", method, 100, metrics_with_history, SPARE_S)]


def _version() -> str:
    return f"PySpark {package_version('pyspark')}, Java {find_java('auto').version}"
