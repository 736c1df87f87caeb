"""The jobs by name."""

from collections.abc import Callable

from spark.jobs import consumer_lag, partition_metrics, topic_rollup
from spark.jobs.work import JobResult, Work

JOBS: dict[str, Callable[[Work], JobResult]] = {
    "partition_metrics": partition_metrics.run,
    "consumer_lag": consumer_lag.run,
    "topic_rollup": topic_rollup.run,
}
