"""The jobs by name: what each does with its run, and how its figures are read back."""

from collections.abc import Callable

from myqueue.protocol import routes
from spark import tables
from spark.jobs import consumer_lag, partition_metrics, topic_rollup
from spark.jobs.work import Work
from spark.stats_calls import StatsReads
from spark.tables import Done, Figures

SHOWN_MINUTES = 60

JOBS: dict[str, Callable[[Work], Done]] = {
    "partition_metrics": partition_metrics.run,
    "consumer_lag": consumer_lag.run,
    "topic_rollup": topic_rollup.run,
}
FIGURES: dict[str, Callable[[StatsReads], Figures]] = {
    "partition_metrics": lambda reads: tables.partitions(reads.partitions()),
    "consumer_lag": lambda reads: tables.consumers(reads.consumers()),
    "topic_rollup": lambda reads: tables.minutes(reads.topics(SHOWN_MINUTES)),
}
PATHS = {
    "partition_metrics": routes.PARTITION_STATS.path,
    "consumer_lag": routes.CONSUMER_STATS.path,
    "topic_rollup": routes.TOPIC_STATS.path,
}
