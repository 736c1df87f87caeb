"""What is new since the last run: a checkpointed query that reads up to now and ends.

Spark writes down how far a micro-batch goes before it is read, and that it is done after its results were taken. A
micro-batch that is repeated in between has the same number, and the statistics API counts it once.
"""

from collections.abc import Callable
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from spark.checkpoint import MicroBatch, micro_batch, query_id
from spark.runs import Run

_LOOK_EVERY_S = 1
_TIMEOUT_MS = 20_000  # a topic that nobody leads for longer fails the run: the next one reads it
TakeBatch = Callable[[DataFrame, MicroBatch, str, int], None]  # messages, what they are, id of the query, number


class Incremental:
    def __init__(self, session: SparkSession, url: str, columns: str, checkpoint: Path) -> None:
        self._session = session
        self._url = url
        self._columns = columns
        self._checkpoint = checkpoint
        self._failure: Exception | None = None

    def run(self, run: Run, take: TakeBatch) -> str:
        """Hands every micro-batch to `take`, usually one, none if nothing is new; the id of the query."""
        run.doing = "reading what is new"
        messages = (
            self._session.readStream.format("myqueue")
            .schema(self._columns)
            .option("url", self._url)
            .option("subscribePattern", ".*")
            .option("startingOffsets", "earliest")
            .option("failOnDataLoss", "false")
            .option("timeoutMs", _TIMEOUT_MS)
            .load()
        )
        self._failure = None

        def guarded(batch: DataFrame, batch_id: int) -> None:
            # What comes out of here reaches the caller as Spark's text only: the error itself is kept.
            try:
                run.check()
                take(batch, micro_batch(self._checkpoint, batch_id), query_id(self._checkpoint), batch_id)
            except Exception as error:
                self._failure = error
                raise

        query = (
            messages.writeStream.queryName(run.job)
            .option("checkpointLocation", self._checkpoint.as_uri())
            .trigger(availableNow=True)
            .foreachBatch(guarded)
            .start()
        )
        try:
            while not query.awaitTermination(_LOOK_EVERY_S):
                run.check()
        except StreamingQueryException as error:
            run.check()
            raise self._failure or error from None
        finally:
            query.stop()
        return query_id(self._checkpoint)
