"""Topics as Spark tables and streams: the PySpark data source `myqueue`."""

from typing import TYPE_CHECKING

from myqueue.spark.datasource import MyQueueDataSource
from myqueue.spark.foreach_batch import to_topic
from myqueue.spark.progress import OffsetsBehindLatest, OffsetsBehindListener, offsets_behind_latest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "MyQueueDataSource",
    "OffsetsBehindLatest",
    "OffsetsBehindListener",
    "offsets_behind_latest",
    "register",
    "to_topic",
]


def register(session: "SparkSession") -> None:
    """After this, `format("myqueue")` works in the session."""
    session.dataSource.register(MyQueueDataSource)
