"""What runs have found: put together with what was known, and stored, in one transaction."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy.orm import Session

from db import catalog, stats
from db.models import StatsJob
from db.primary import Primary
from db.stats import Source, StoredLag, StoredMinute
from myqueue.protocol.errors import MetadataUnavailable
from myqueue.protocol.models import ConsumerLagMeasure, PartitionMeasure, RunResults, TopicMinute
from myqueue.protocol.token import Token
from service.logs import Log
from write_manager.batches import Last, Verdict, judge
from write_manager.measures import merged, replaced
from write_manager.runs import Runs

MINUTE_AHEAD = timedelta(days=1)  # clocks of brokers may be wrong, but what lies days ahead would not grow old


@dataclass(frozen=True, slots=True)
class Taken:
    applied: bool
    skipped: int
    token: Token | None


class Results:
    def __init__(self, primary: Primary, runs: Runs, log: Log, *, history_days: float) -> None:
        self._primary = primary
        self._runs = runs
        self._log = log
        self._history = timedelta(days=history_days)

    def take(self, run_id: int, request: RunResults) -> Taken:
        skipped = 0
        with self._primary.transaction() as transaction:
            _, job = self._runs.held(transaction.session, run_id)
            verdict = _judge(job, request)
            if verdict is not Verdict.REPEATED:
                _note(job, verdict, request)
                skipped = self._store(transaction.session, Source(job.job, job.generation), request)
        self._runs.heard(run_id)
        self._prune()
        return Taken(verdict is not Verdict.REPEATED, skipped, transaction.token)

    def _store(self, session: Session, source: Source, request: RunResults) -> int:
        """How many rows were left out."""
        now = datetime.now(UTC)
        rows: list[PartitionMeasure | TopicMinute | ConsumerLagMeasure]
        rows = [*request.partitions, *request.topics, *request.consumers]
        # Topics and consumers stay until the commit; others may come and go meanwhile.
        present = Present(session, {row.topic for row in rows}, {lag.consumer_id for lag in request.consumers})
        partitions = [measure for measure in request.partitions if present.has_partition(measure)]
        minutes = [minute for minute in request.topics if self._is_timely(minute, now) and present.has_topic(minute)]
        lags = [lag for lag in request.consumers if present.has_cursor(lag)]
        names = {measure.topic_id: measure.topic for measure in partitions}
        known = stats.figures_of(session, source, names)
        put_together = replaced if request.replace else merged
        keys = [(measure.topic_id, measure.partition_id) for measure in partitions]
        figures = {k: put_together(known.get(k), measure, now) for k, measure in zip(keys, partitions, strict=True)}
        stats.save_figures(session, source, figures, names)
        stats.save_lags(session, [_lag_row(lag, now) for lag in lags])
        added = [StoredMinute(minute.topic_id, minute.minute, minute.messages, minute.bytes) for minute in minutes]
        stats.add_minutes(session, source, added, replace=request.replace)
        return len(rows) - len(partitions) - len(minutes) - len(lags)

    def _prune(self) -> None:
        """What was found is stored, whatever becomes of this: the next results prune as well."""
        try:
            with self._primary.transaction() as transaction:
                stats.prune(transaction.session, datetime.now(UTC) - self._history)
        except MetadataUnavailable as error:
            self._log.warning("old figures not pruned", error=error.message)

    def _is_timely(self, minute: TopicMinute, now: datetime) -> bool:
        return (now - self._history).timestamp() <= minute.minute / 1000 <= (now + MINUTE_AHEAD).timestamp()


class Present:
    """What is there of what was measured, and stays there until the transaction ends."""

    def __init__(self, session: Session, topics: set[str], consumers: set[int]) -> None:
        self._topics = catalog.hold_topics(session, topics)
        self._consumers = catalog.consumers_held(session, consumers)

    def has_topic(self, row: PartitionMeasure | TopicMinute) -> bool:
        """Not if it was made anew."""
        topic = self._topics.get(row.topic)
        return topic is not None and topic.topic_id == row.topic_id

    def has_partition(self, measure: PartitionMeasure) -> bool:
        return self.has_topic(measure) and measure.partition_id < self._topics[measure.topic].partitions

    def has_cursor(self, lag: ConsumerLagMeasure) -> bool:
        topic = self._topics.get(lag.topic)
        topic_id, partition_id = self._consumers.get(lag.consumer_id, (None, None))
        if topic is None or topic.topic_id != topic_id or partition_id not in (None, lag.partition_id):
            return False
        return lag.partition_id < topic.partitions


def _judge(job: StatsJob, request: RunResults) -> Verdict:
    last = None
    if job.query_id is not None and job.batch_id is not None:
        last = Last(job.query_id, job.batch_id, job.part or 0)
    return judge(last, request.query_id, request.batch_id, request.part)


def _note(job: StatsJob, verdict: Verdict, request: RunResults) -> None:
    if verdict is Verdict.TAKE_OVER:
        job.generation += 1
    if verdict is not Verdict.REFRESH:
        job.query_id, job.batch_id, job.part = request.query_id, request.batch_id, request.part


def _lag_row(lag: ConsumerLagMeasure, now: datetime) -> StoredLag:
    return StoredLag(
        lag.consumer_id, lag.partition_id, lag.cursor, lag.end_offset, lag.messages, lag.bytes, lag.seconds, now
    )
