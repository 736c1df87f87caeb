"""Topics as Spark tables and streams: the PySpark data source `myqueue`."""

from typing import TYPE_CHECKING

from myqueue.spark.datasource import MyQueueDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["MyQueueDataSource", "register"]


def register(session: "SparkSession") -> None:
    """After this, `format("myqueue")` works in the session."""
    session.dataSource.register(MyQueueDataSource)
