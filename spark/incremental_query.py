"""Reads what is new since the last run: a checkpointed query that reads up to now and ends.

Spark stores how far a micro-batch goes before it is read, and that it is done after its results were posted. A
micro-batch that is repeated in between has the same number, and the statistics API counts it once.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from myqueue.spark.offsets import StreamOffset
from spark.idle_monitors import end_idle_monitors
from spark.job_run import JobRun

_LOOK_EVERY_S = 1
_TIMEOUT_MS = 20_000  # a cluster that does not answer for longer fails the run: the next one reads it


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """A micro-batch as Spark stored it before it was read: every repetition is the same."""

    ends: dict[tuple[str, int], int]  # the next offset of each topic and partition
    topic_ids: dict[str, UUID]
    planned_ms: int


def folder_of(root: Path, job: str, url: str) -> Path:
    """A checkpoint per job and cluster: offsets of another cluster mean nothing."""
    return root / "checkpoints" / f"{job}-{hashlib.sha256(url.encode()).hexdigest()[:12]}"


def query_id(folder: Path) -> str:
    """Spark writes it when the query first starts; a new folder is a new query."""
    found: str = json.loads((folder / "metadata").read_text())["id"]
    return found


def planned_batch(folder: Path, number: int) -> PlannedBatch:
    return parse_offsets((folder / "offsets" / str(number)).read_text())


def last_finished(folder: Path) -> PlannedBatch | None:
    numbers = [int(path.name) for path in (folder / "commits").glob("*") if path.name.isdecimal()]
    return planned_batch(folder, max(numbers)) if numbers else None


def parse_offsets(text: str) -> PlannedBatch:
    """Spark's file of one micro-batch: a version, its own metadata, then one line per source (there is one)."""
    _, metadata, offsets = text.splitlines()[:3]
    read = StreamOffset.from_json(json.loads(offsets))
    topic_ids = {topic: UUID(topic_id) for topic, topic_id in read.topic_ids.items()}
    return PlannedBatch(dict(read.offsets), topic_ids, json.loads(metadata)["batchTimestampMs"])


TakeBatch = Callable[[DataFrame, PlannedBatch, str, int], None]  # messages, their plan, query id, number


class IncrementalQuery:
    def __init__(self, session: SparkSession, url: str, columns: str, checkpoint: Path) -> None:
        self._session = session
        self._url = url
        self._columns = columns
        self._checkpoint = checkpoint
        self._failure: Exception | None = None

    def run(self, run: JobRun, take: TakeBatch) -> str:
        """Passes every micro-batch to `take`: usually one, none if nothing is new. Returns the query id."""
        run.doing = "reading what is new"
        messages = (
            self._session.readStream.format("myqueue")
            .schema(self._columns)
            .option("url", self._url)
            .option("subscribePattern", ".*")
            .option("startingOffsets", "earliest")
            .option("failOnDataLoss", "false")
            .option("failOnNoLeader", "false")
            .option("timeoutMs", _TIMEOUT_MS)
            .load()
        )
        self._failure = None

        def guarded(batch: DataFrame, batch_id: int) -> None:
            # Spark passes an exception on as text only: keep the error itself.
            try:
                run.check()
                take(batch, planned_batch(self._checkpoint, batch_id), query_id(self._checkpoint), batch_id)
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
            end_idle_monitors(self._session)
        return query_id(self._checkpoint)
