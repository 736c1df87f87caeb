"""partition_metrics: offsets, messages, bytes, times and rate of every partition, and whether offsets are missing."""

from collections.abc import Mapping
from uuid import UUID

from pyspark.sql import DataFrame, Row

from spark.aggregates import PARTITION_COLUMNS, per_partition
from spark.catalog import extents
from spark.checkpoint import MicroBatch
from spark.incremental import Incremental
from spark.jobs.work import Work
from spark.measures import PartitionSums, partition_measures, posts
from spark.tables import Done


def run(work: Work) -> Done:
    read_what_is_new(work)
    return Done(f"{work.run.rows:,} new messages")


def read_what_is_new(work: Work) -> None:
    """Posts one micro-batch; without one, what the brokers say now."""
    batches = 0

    def take(messages: DataFrame, batch: MicroBatch, query_id: str, batch_id: int) -> None:
        nonlocal batches
        sums = sums_in(per_partition(messages).collect())
        _post(work, sums, batch.topic_ids, query_id, batch_id)
        batches += 1
        work.run.rows += sum(each.messages for each in sums)

    query_id = Incremental(work.session, work.url, PARTITION_COLUMNS, work.checkpoint).run(work.run, take)
    if not batches:
        _post(work, [], {}, query_id, None)


def sums_in(rows: list[Row]) -> list[PartitionSums]:
    return [PartitionSums(**row.asDict()) for row in rows]


def _post(
    work: Work, sums: list[PartitionSums], topic_ids: Mapping[str, UUID], query_id: str, batch_id: int | None
) -> None:
    # The brokers are asked after the messages were read: their ends lie at or behind everything that was.
    measures = partition_measures(sums, topic_ids, extents(work.calls.transport))
    for results in posts(query_id=query_id, batch_id=batch_id, partitions=measures):
        work.calls.post(work.run.run_id, results)
