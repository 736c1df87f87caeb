"""Results of job runs: deduplicated, merged with the stored figures and stored, in one transaction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from sqlalchemy.orm import Session

from db import catalog, stats, stats_thinning
from db.models import StatsJob
from db.primary import Primary
from db.stats import ConsumerPoint, Figures, PartitionKey, StatsSource, StoredLag, StoredMinute, TopicPoint
from myqueue.protocol import internal, stats_answers
from myqueue.protocol.errors import MetadataUnavailable, RunNotFound
from myqueue.protocol.models import ConsumerLagMeasure, PartitionMeasure, RunResults, TopicMinute
from myqueue.protocol.token import Token
from service.http_messages import HttpRequest, HttpResponse
from service.logs import Log
from service.router import Router
from write_manager.job_runs import JobRuns
from write_manager.stats import BatchDecision, LastBatch, decide_batch, merged_figures, replaced_figures
from write_manager.stats_history import HistoryTiers, consumer_point, lag_with_rates, topic_point, with_rates_out

RATES_OUT_KEPT = timedelta(minutes=5)  # what consumers read counts for so long as what they read now
MINUTE_AHEAD = timedelta(days=1)  # clocks of brokers may be wrong, but minutes days ahead would not be pruned


@dataclass(frozen=True, slots=True)
class AppliedResults:
    applied: bool
    skipped: int
    token: Token | None


class JobResults:
    def __init__(self, primary: Primary, runs: JobRuns, log: Log, *, history_days: float, tiers: HistoryTiers) -> None:
        self._primary = primary
        self._runs = runs
        self._log = log
        self._history = timedelta(days=history_days)
        self._tiers = tiers

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
        figures = with_rates_out(figures, stats.rates_out(session, names, now - RATES_OUT_KEPT))
        stats.save_figures(session, source, figures, names)
        stats.add_topic_points(session, present.topic_points(figures, names, now))
        lags_before = stats.lags_of(session, {lag.consumer_id for lag in lags})
        measured = [lag_with_rates(lags_before.get((lag.consumer_id, lag.partition_id)), lag, now) for lag in lags]
        stats.save_lags(session, measured)
        stats.add_consumer_points(session, present.consumer_points(measured, now))
        added = [StoredMinute(each.topic_id, each.minute, each.messages, each.payload_bytes) for each in minutes]
        stats.add_minutes(session, source, added, replace=request.replace)
        return len(rows) - len(partitions) - len(minutes) - len(lags)

    def _prune(self) -> None:
        """The results are stored, whatever becomes of this: the next results prune as well."""
        now = datetime.now(UTC)
        try:
            with self._primary.transaction() as transaction:
                stats_thinning.prune_points(transaction.session, now - self._tiers.kept)
                stats_thinning.prune_minutes(transaction.session, now - self._history)
            for rule in self._tiers.rules:
                with self._primary.transaction() as transaction:
                    stats_thinning.thin(transaction.session, rule, now)
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

    def topic_points(
        self, figures: Mapping[PartitionKey, Figures], names: Mapping[UUID, str], now: datetime
    ) -> list[TopicPoint]:
        """Of the topics of which every partition was measured: a sum without one of them would look like a loss."""
        by_topic: dict[UUID, list[Figures]] = {}
        for (topic_id, _), each in figures.items():
            by_topic.setdefault(topic_id, []).append(each)
        return [
            topic_point(topic_id, found, now)
            for topic_id, found in sorted(by_topic.items())
            if len(found) == self._topics[names[topic_id]].partitions
        ]

    def consumer_points(self, lags: Sequence[StoredLag], now: datetime) -> list[ConsumerPoint]:
        partitions = {topic.topic_id: topic.partitions for topic in self._topics.values()}
        by_consumer: dict[int, list[StoredLag]] = {}
        for lag in lags:
            by_consumer.setdefault(lag.consumer_id, []).append(lag)
        points = []
        for consumer_id, found in sorted(by_consumer.items()):
            topic_id, partition_id = self._consumers[consumer_id]
            if len(found) == (partitions[topic_id] if partition_id is None else 1):
                points.append(consumer_point(consumer_id, found, now))
        return points


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


def add_job_result_routes(router: Router, results: JobResults) -> None:
    """On threads. Internal only: no client may set the statistics."""

    def post_results(request: HttpRequest) -> HttpResponse:
        applied = results.apply(request.path_id("run_id", RunNotFound), request.parse_json(RunResults))
        body = stats_answers.ResultsTaken(applied=applied.applied, skipped=applied.skipped)
        return HttpResponse.json(body, session_token=applied.token)

    router.add(internal.POST_RESULTS, post_results)
