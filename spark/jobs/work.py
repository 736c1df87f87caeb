"""What a job gets, what it returns, and how its results are posted."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TypeVar

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import DataFrame, Row, SparkSession

from myqueue.protocol import limits
from myqueue.protocol.models import ConsumerLagMeasure, PartitionMeasure, RunResults, TopicMinute
from spark.config import MAX_CONSUMERS
from spark.incremental_query import folder_of
from spark.job_run import JobRun
from spark.stats_client import StatsClient

T = TypeVar("T")

SUM_OF_BYTES = "sum(coalesce(octet_length(key), 0) + octet_length(value))"  # in Spark SQL, of messages


@dataclass(frozen=True, slots=True)
class Difference:
    """Found by an audit."""

    topic: str
    partition: int
    what: str
    expected: int
    found: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}: {self.what}: {self.found} instead of {self.expected}"


@dataclass(frozen=True, slots=True)
class JobResult:
    text: str
    differences: Sequence[Difference] = field(default=())


@dataclass(frozen=True, slots=True)
class Work:
    session: SparkSession
    calls: StatsClient
    run: JobRun
    folder: Path
    max_consumers: int = MAX_CONSUMERS

    @property
    def url(self) -> str:
        return self.calls.url

    @property
    def checkpoint(self) -> Path:
        return folder_of(self.folder, self.run.job, self.url)

    def collect(self, frame: DataFrame) -> list[Row]:
        """The frame's rows. When the run is stopped, cancels Spark's tasks and raises RunStopped."""
        context = self.session.sparkContext
        group = f"{self.run.job}-{self.run.run_id}"
        context.setJobGroup(group, self.run.job, interruptOnCancel=True)
        self.run.on_stop(lambda: _cancel(context, group))
        try:
            return frame.collect()
        finally:
            self.run.check()

    def post(self, results: Iterable[RunResults]) -> None:
        for part in results:
            self.calls.post(self.run.run_id, part)


def _cancel(context: SparkContext, group: str) -> None:
    # Without its Java there is nothing to cancel, and `collect` has failed already.
    with suppress(Py4JError, OSError):
        context.cancelJobGroup(group)


def result_parts(
    *,
    query_id: str | None = None,
    batch_id: int | None = None,
    replace: bool = False,
    partitions: Sequence[PartitionMeasure] = (),
    topics: Sequence[TopicMinute] = (),
    consumers: Sequence[ConsumerLagMeasure] = (),
) -> Iterator[RunResults]:
    """The results, cut at the API's limits; at least one part, which records that there was a run."""
    of_partitions = _slices(partitions, limits.MAX_MEASURED_PARTITIONS)
    of_topics = _slices(topics, limits.MAX_MEASURED_MINUTES)
    of_consumers = dict(enumerate(_whole_consumers(consumers, limits.MAX_MEASURED_LAGS)))
    for part in range(max(1, len(of_partitions), len(of_topics), len(of_consumers))):
        yield RunResults(
            query_id=query_id,
            batch_id=batch_id,
            part=part,
            replace=replace,
            partitions=of_partitions.get(part, []),
            topics=of_topics.get(part, []),
            consumers=of_consumers.get(part, []),
        )


def _whole_consumers(lags: Sequence[ConsumerLagMeasure], size: int) -> Iterator[list[ConsumerLagMeasure]]:
    """In parts of at most `size`, all partitions of a consumer in the same: its totals are those of one post."""
    part: list[ConsumerLagMeasure] = []
    for _, found in groupby(lags, key=lambda lag: lag.consumer_id):
        of_consumer = list(found)
        if part and len(part) + len(of_consumer) > size:
            yield part
            part = []
        part += of_consumer
    if part:
        yield part


def _slices(items: Sequence[T], size: int) -> dict[int, list[T]]:
    return {part: list(items[part * size : (part + 1) * size]) for part in range(-(-len(items) // size))}
