"""Writing what `foreachBatch` gets, exactly once: for output modes that Spark does not pass to a Python sink."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from myqueue.protocol.errors import InvalidRequest
from myqueue.spark.manifest import MicroBatch
from myqueue.spark.options import MICRO_BATCH, QUERY_ID, stream_write_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def to_topic(topic: str | None = None, **options: object) -> Callable[["DataFrame", int], None]:
    """A function for `writeStream.foreachBatch`. Without a topic, each row names its own in a column `topic`.

    `options` are those of `writeStream.format("myqueue")`; wrong ones are refused here, before the query starts.
    """
    given = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    if topic is not None:
        given["topic"] = topic
    stream_write_options(given)

    def write(frame: "DataFrame", number: int) -> None:
        query = frame.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
        if query is None:
            raise InvalidRequest("to_topic(...) is for foreachBatch of a streaming query; write a table with df.write")
        micro_batch = MicroBatch(query, number)
        frame.write.format("myqueue").mode("append").options(**given).option(MICRO_BATCH, micro_batch.text).save()

    return write
