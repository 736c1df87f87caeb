"""Topics as Spark tables and streams, figures of the cluster as tables: the PySpark data sources `myqueue` and
`myqueue.stats`."""

from typing import TYPE_CHECKING

from myqueue.spark.datasource import MyQueueDataSource
from myqueue.spark.foreach_batch import to_topic
from myqueue.spark.progress import OffsetsBehindLatest, OffsetsBehindListener, offsets_behind_latest
from myqueue.spark.stats_source import StatsDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "MyQueueDataSource",
    "OffsetsBehindLatest",
    "OffsetsBehindListener",
    "StatsDataSource",
    "offsets_behind_latest",
    "register",
    "to_topic",
]


def register(session: "SparkSession") -> None:
    """After this, `format("myqueue")` and `format("myqueue.stats")` work in the session."""
    session.dataSource.register(MyQueueDataSource)
    session.dataSource.register(StatsDataSource)
