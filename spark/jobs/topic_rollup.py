"""topic_rollup: messages and bytes of every topic and minute, by the clock of the partitions' leaders."""

from pyspark.sql import DataFrame

from spark.aggregates import MINUTE_COLUMNS, per_minute
from spark.checkpoint import MicroBatch
from spark.incremental import Incremental
from spark.jobs.work import Work
from spark.measures import MinuteSums, posts, topic_minutes
from spark.tables import Done

DAYS_BACK = 7  # longer the API does not keep minutes
DAYS_AHEAD = 1  # a leader's clock that is further ahead is wrong


def run(work: Work) -> Done:
    batches = 0

    def take(messages: DataFrame, batch: MicroBatch, query_id: str, batch_id: int) -> None:
        nonlocal batches
        # By the time at which the micro-batch was planned: repeated, it is the same.
        sums = per_minute(messages, batch.planned_ms, days_back=DAYS_BACK, days_ahead=DAYS_AHEAD).collect()
        minutes = topic_minutes([MinuteSums(**row.asDict()) for row in sums], batch.topic_ids)
        for results in posts(query_id=query_id, batch_id=batch_id, topics=minutes):
            work.calls.post(work.run.run_id, results)
        batches += 1
        work.run.rows += sum(each.messages for each in minutes)

    query_id = Incremental(work.session, work.url, MINUTE_COLUMNS, work.checkpoint).run(work.run, take)
    if not batches:
        for results in posts(query_id=query_id):
            work.calls.post(work.run.run_id, results)
    return Done(f"{work.run.rows:,} new messages of the last {DAYS_BACK} days")
