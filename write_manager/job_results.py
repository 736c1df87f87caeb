"""Results of job runs: deduplicated, merged with the stored figures and stored, in one transaction."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy.orm import Session

from db import catalog, stats
from db.models import StatsJob
from db.primary import Primary
from db.stats import StatsSource, StoredLag, StoredMinute
from myqueue.protocol import answers, internal
from myqueue.protocol.errors import MetadataUnavailable, RunNotFound
from myqueue.protocol.models import ConsumerLagMeasure, PartitionMeasure, RunResults, TopicMinute
from myqueue.protocol.token import Token
from service.http_messages import HttpRequest, HttpResponse
from service.logs import Log
from service.router import Router
from write_manager.job_runs import JobRuns
from write_manager.stats import BatchDecision, LastBatch, decide_batch, merged_figures, replaced_figures

MINUTE_AHEAD = timedelta(days=1)  # clocks of brokers may be wrong, but minutes days ahead would not be pruned


@dataclass(frozen=True, slots=True)
class AppliedResults:
    applied: bool
    skipped: int
    token: Token | None


class JobResults:
    def __init__(self, primary: Primary, runs: JobRuns, log: Log, *, history_days: float) -> None:
        self._primary = primary
        self._runs = runs
        self._log = log
        self._history = timedelta(days=history_days)

    def apply(self, run_id: int, request: RunResults) -> AppliedResults:
        skipped = 0
        with self._primary.transaction() as transaction:
            _, job = self._runs.running(transaction.session, run_id)
            decision = _decide(job, request)
            if decision is not BatchDecision.REPEATED:
                _advance(job, decision, request)
                skipped = self._store(transaction.session, StatsSource(job.job, job.generation), request)
        self._runs.renewed(run_id)
        self._prune()
        return AppliedResults(decision is not BatchDecision.REPEATED, skipped, transaction.token)

    def _store(self, session: Session, source: StatsSource, request: RunResults) -> int:
        """The number of rows that were skipped."""
        now = datetime.now(UTC)
        rows: list[PartitionMeasure | TopicMinute | ConsumerLagMeasure]
        rows = [*request.partitions, *request.topics, *request.consumers]
        # These topics and consumers are locked until the commit.
        present = ExistingTargets(session, {row.topic for row in rows}, {lag.consumer_id for lag in request.consumers})
        partitions = [measure for measure in request.partitions if present.has_partition(measure)]
        minutes = [minute for minute in request.topics if self._is_timely(minute, now) and present.has_topic(minute)]
        lags = [lag for lag in request.consumers if present.has_cursor(lag)]
        names = {measure.topic_id: measure.topic for measure in partitions}
        known = stats.figures_of(session, source, names)
        combine = replaced_figures if request.replace else merged_figures
        keys = [(measure.topic_id, measure.partition_id) for measure in partitions]
        figures = {k: combine(known.get(k), measure, now) for k, measure in zip(keys, partitions, strict=True)}
        stats.save_figures(session, source, figures, names)
        stats.save_lags(session, [_lag_row(lag, now) for lag in lags])
        added = [StoredMinute(minute.topic_id, minute.minute, minute.messages, minute.bytes) for minute in minutes]
        stats.add_minutes(session, source, added, replace=request.replace)
        return len(rows) - len(partitions) - len(minutes) - len(lags)

    def _prune(self) -> None:
        """The results are stored, whatever becomes of this: the next results prune as well."""
        try:
            with self._primary.transaction() as transaction:
                stats.prune(transaction.session, datetime.now(UTC) - self._history)
        except MetadataUnavailable as error:
            self._log.warning("old figures not pruned", error=error.message)

    def _is_timely(self, minute: TopicMinute, now: datetime) -> bool:
        return (now - self._history).timestamp() <= minute.minute / 1000 <= (now + MINUTE_AHEAD).timestamp()


class ExistingTargets:
    """The measured topics and consumers that exist; they are locked until the transaction ends."""

    def __init__(self, session: Session, topics: set[str], consumers: set[int]) -> None:
        self._topics = catalog.lock_topics(session, topics)
        self._consumers = catalog.lock_consumers(session, consumers)

    def has_topic(self, row: PartitionMeasure | TopicMinute) -> bool:
        """False when another topic has its name by now."""
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


def _decide(job: StatsJob, request: RunResults) -> BatchDecision:
    last = None
    if job.query_id is not None and job.batch_id is not None:
        last = LastBatch(job.query_id, job.batch_id, job.part or 0)
    return decide_batch(last, request.query_id, request.batch_id, request.part)


def _advance(job: StatsJob, decision: BatchDecision, request: RunResults) -> None:
    if decision is BatchDecision.TAKE_OVER:
        job.generation += 1
    if decision is not BatchDecision.REFRESH:
        job.query_id, job.batch_id, job.part = request.query_id, request.batch_id, request.part


def _lag_row(lag: ConsumerLagMeasure, now: datetime) -> StoredLag:
    return StoredLag(
        lag.consumer_id, lag.partition_id, lag.cursor, lag.end_offset, lag.messages, lag.bytes, lag.seconds, now
    )


def add_job_result_routes(router: Router, results: JobResults) -> None:
    """On threads. Internal only: no client may set the statistics."""

    def post_results(request: HttpRequest) -> HttpResponse:
        applied = results.apply(request.path_id("run_id", RunNotFound), request.parse_json(RunResults))
        body = answers.ResultsTaken(applied=applied.applied, skipped=applied.skipped)
        return HttpResponse.json(body, session_token=applied.token)

    router.add(internal.POST_RESULTS, post_results)
