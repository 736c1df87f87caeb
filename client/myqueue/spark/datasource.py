"""The data source by which Spark reads topics, once or as a stream, and writes to them."""

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from myqueue.protocol.errors import InvalidRequest
from myqueue.spark import columns
from myqueue.spark.options import batch_read_options, read_options, stream_read_options
from myqueue.spark.reader import MyQueueReader
from myqueue.spark.stream_reader import MyQueueStreamReader


class MyQueueDataSource(DataSource):
    """`spark.read.format("myqueue").option("subscribe", "orders").load()`; options as those of Spark's Kafka source.

    Without a schema it has the columns of the Kafka source. A schema that names some of the columns reads only those,
    which is faster: Spark does not pass the columns that a query needs to a Python data source.
    """

    @classmethod
    def name(cls) -> str:
        return "myqueue"

    def schema(self) -> StructType:
        return columns.schema(include_headers=read_options(self.options).include_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        return MyQueueReader(batch_read_options(self.options), columns.arrow_schema(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return MyQueueStreamReader(stream_read_options(self.options), columns.arrow_schema(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from myqueue.spark import sink  # readers do not need it

        if overwrite:
            raise InvalidRequest("mode overwrite: a topic is only ever appended to; use mode('append')")
        return sink.batch_writer(self.options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from myqueue.spark import sink

        if overwrite:
            raise InvalidRequest(
                "output mode complete: a topic is only ever appended to. Use append; or, to write the rows that have"
                " changed, mode update with foreachBatch(myqueue.spark.to_topic(...))"
            )
        return sink.stream_writer(self.options, schema)
