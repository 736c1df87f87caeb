"""topic_rollup: messages and bytes of every topic and minute, by the clock of the partitions' leaders."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from myqueue.protocol.models import TopicMinute
from spark.incremental_query import IncrementalQuery, PlannedBatch
from spark.jobs.work import SUM_OF_BYTES, JobResult, Work, result_parts

COLUMNS = "key BINARY, value BINARY, topic STRING, append_time TIMESTAMP"
DAYS_BACK = 7  # the API does not keep minutes for longer
DAYS_AHEAD = 1  # a leader's clock that is further ahead is wrong
MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS


@dataclass(frozen=True, slots=True)
class MinuteSums:
    topic: str
    minute: int
    messages: int
    bytes: int


def run(work: Work) -> JobResult:
    batches = 0

    def take(messages: DataFrame, batch: PlannedBatch, query_id: str, batch_id: int) -> None:
        nonlocal batches
        # By the time at which the micro-batch was planned: a repetition gives the same sums.
        sums = [MinuteSums(**row.asDict()) for row in per_minute(messages, batch.planned_ms).collect()]
        minutes = topic_minutes(sums, batch.topic_ids)
        work.post(result_parts(query_id=query_id, batch_id=batch_id, topics=minutes))
        batches += 1
        work.run.rows += sum(each.messages for each in minutes)

    query_id = IncrementalQuery(work.session, work.url, COLUMNS, work.checkpoint).run(work.run, take)
    if not batches:
        work.post(result_parts(query_id=query_id))
    return JobResult(f"{work.run.rows:,} new messages of the last {DAYS_BACK} days")


def per_minute(messages: DataFrame, now_ms: int) -> DataFrame:
    """One row per topic and minute of the leaders' clocks around `now_ms`: topic, minute, messages, bytes."""
    first_ms, last_ms = now_ms - DAYS_BACK * DAY_MS, now_ms + DAYS_AHEAD * DAY_MS
    minute = f.expr(f"unix_millis(append_time) div {MINUTE_MS} * {MINUTE_MS}").alias("minute")
    wanted = messages.where(f"unix_millis(append_time) BETWEEN {first_ms} AND {last_ms}")
    return wanted.groupBy("topic", minute).agg(
        f.expr("count(1)").alias("messages"), f.expr(SUM_OF_BYTES).alias("bytes")
    )


def topic_minutes(sums: Sequence[MinuteSums], topic_ids: Mapping[str, UUID]) -> list[TopicMinute]:
    """In order, so that a repeated micro-batch is cut into the same parts."""
    return [
        TopicMinute(
            topic=each.topic,
            topic_id=topic_ids[each.topic],
            minute=each.minute,
            messages=each.messages,
            payload_bytes=each.bytes,
        )
        for each in sorted(sums, key=lambda each: (each.topic, each.minute))
    ]
