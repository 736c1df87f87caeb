"""Job runs: at most one of each job at a time, and one for each tick of its schedule, over all processes.

A run is stored when it begins and when it ends. In between its holder renews its lease, and this process keeps the time
of the last renewal by its monotonic clock. A run whose lease expired is ended as lost: by the next sweep, or by a
request to begin another one. After a restart no renewal is known yet, so every run that is stored as running gets a
whole lease before it can be ended, and continues if its holder renews it.
"""

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from sqlalchemy.orm import Session

from db import job_runs as stored
from db.job_runs import JobSummary, NewRun
from db.models import JobRun, StatsJob
from db.primary import Primary
from myqueue.protocol import answers, internal, stats_answers
from myqueue.protocol.errors import InvalidRequest, JobRunning, RunEnded, RunNotFound, TickTaken
from myqueue.protocol.models import BeginRun, EndRun, Nothing
from myqueue.protocol.token import Token
from service.http_messages import HttpRequest, HttpResponse
from service.logs import Log
from service.router import Router
from write_manager.metrics import WriteManagerMetrics

LOST = "its lease expired without a renewal"
TICK_AHEAD = timedelta(days=1)  # clocks differ, but a tick days ahead would keep the job from running until then


class JobRuns:
    def __init__(
        self,
        primary: Primary,
        log: Log,
        *,
        lease_s: float,
        history_days: float,
        now_s: Callable[[], float] = time.monotonic,
        metrics: WriteManagerMetrics | None = None,
    ) -> None:
        self._primary = primary
        self._log = log
        self._lease_s = lease_s
        self._history = timedelta(days=history_days)
        self._now_s = now_s
        self._metrics = metrics
        self._renewed_s: dict[int, float] = {}
        self.summaries: Sequence[JobSummary] = ()  # as of the last sweep

    @property
    def lease_ms(self) -> int:
        return round(self._lease_s * 1000)

    def begin(self, request: BeginRun, key: str | None) -> tuple[JobRun, Token | None]:
        """The same key again gets the same run, even if it has ended."""
        now = datetime.now(UTC)
        if request.tick is not None and request.tick > (now + TICK_AHEAD).timestamp() * 1000:
            raise InvalidRequest("tick: lies more than a day ahead")
        with self._primary.transaction() as transaction:
            session = transaction.session
            job = stored.locked_job(session, request.job)
            run = stored.last_run(session, request.job)
            if run is None or key is None or run.idempotency_key != key:
                _take_tick(session, job, request.tick)
                if run is not None and run.outcome == "running":
                    self._take_over(session, run, now)
                new = NewRun(request.job, request.holder, request.trigger, request.tick, key, now)
                run = stored.insert_run(session, new)
            stored.prune_runs(session, request.job, now - self._history)
        self.renewed(run.run_id)
        return run, transaction.token

    def _take_over(self, session: Session, run: JobRun, now: datetime) -> None:
        if not self._has_expired(run.run_id):
            raise JobRunning(
                f"run {run.run_id} of {run.job} is active, held by {run.holder}",
                details={
                    "run_id": run.run_id,
                    "holder": run.holder,
                    "started_at": round(run.started_at.timestamp() * 1000),
                },
            )
        stored.end_run(session, run, "lost", now, message=LOST)
        self._count(run.job, "lost")

    def renew(self, run_id: int) -> None:
        with self._primary.transaction() as transaction:
            self.running(transaction.session, run_id)
        self.renewed(run_id)

    def running(self, session: Session, run_id: int) -> tuple[JobRun, StatsJob]:
        """The run, locked in the state running until the transaction ends."""
        run, job = self._locked(session, run_id)
        if run.outcome != "running":
            raise _ended(run)
        return run, job

    def end(self, run_id: int, request: EndRun) -> Token | None:
        """Idempotent."""
        with self._primary.transaction() as transaction:
            run, _ = self._locked(transaction.session, run_id)
            if run.outcome == "running":
                now = datetime.now(UTC)
                stored.end_run(
                    transaction.session,
                    run,
                    request.outcome,
                    now,
                    rows=request.rows,
                    left_out=request.left_out,
                    message=request.message,
                )
                self._count(run.job, request.outcome)
            elif run.outcome != request.outcome:
                raise _ended(run)
        self._renewed_s.pop(run_id, None)
        return transaction.token

    def _count(self, job: str, outcome: str) -> None:
        if self._metrics is not None:
            self._metrics.job_runs.labels(job, outcome).inc()

    def _locked(self, session: Session, run_id: int) -> tuple[JobRun, StatsJob]:
        found = stored.locked_run(session, run_id)
        if found is None:
            raise RunNotFound()
        return found

    def renewed(self, run_id: int) -> None:
        self._renewed_s[run_id] = self._now_s()

    def _has_expired(self, run_id: int) -> bool:
        """The lease of a run that was never renewed in this process begins now."""
        now_s = self._now_s()
        return now_s - self._renewed_s.setdefault(run_id, now_s) > self._lease_s

    def sweep(self) -> None:
        """End runs whose lease expired, so that they do not look as if they were running."""
        with self._primary.reading() as session:
            running = stored.running(session)
            self.summaries = stored.summaries(session)
        if self._metrics is not None:
            self._metrics.set_jobs(self.summaries)
        for run_id in set(self._renewed_s) - set(running):
            self._renewed_s.pop(run_id, None)
        for run_id in running:
            if self._has_expired(run_id):
                self._end_lost(run_id)

    def _end_lost(self, run_id: int) -> None:
        with self._primary.transaction() as transaction:
            found = stored.locked_run(transaction.session, run_id)
            if found is None or found[0].outcome != "running" or not self._has_expired(run_id):
                return
            stored.end_run(transaction.session, found[0], "lost", datetime.now(UTC), message=LOST)
        self._count(found[0].job, "lost")
        self._log.warning("run lost: its lease expired", run_id=run_id, job=found[0].job, holder=found[0].holder)


def _take_tick(session: Session, job: StatsJob, tick: int | None) -> None:
    """Each tick is run once, by the first to begin it; after a failed run the next tick catches up."""
    if tick is None:
        return
    if job.tick is not None and tick <= job.tick:
        run = stored.run_of_tick(session, job.job, job.tick)
        raise TickTaken(
            f"{job.job} was run for {tick} or a later time already",
            details={"run_id": run and run.run_id, "outcome": run and run.outcome},
        )
    job.tick = tick


def _ended(run: JobRun) -> RunEnded:
    what = "was given up: " + LOST if run.outcome == "lost" else f"has {run.outcome}"
    return RunEnded(f"run {run.run_id} {what}; begin another one", details={"outcome": run.outcome})


def add_job_run_routes(router: Router, runs: JobRuns) -> None:
    """On threads, internal only."""

    def begin_run(request: HttpRequest) -> HttpResponse:
        run, token = runs.begin(request.parse_json(BeginRun), request.idempotency_key())
        body = stats_answers.RunBegun(
            run_id=run.run_id,
            job=run.job,
            started_at=round(run.started_at.timestamp() * 1000),
            lease_ms=runs.lease_ms,
        )
        return HttpResponse.json(body, 201, session_token=token)

    def renew_run(request: HttpRequest) -> HttpResponse:
        request.parse_json(Nothing)
        runs.renew(_run_id(request))
        return HttpResponse.json(stats_answers.RunRenewed(lease_ms=runs.lease_ms))

    def end_run(request: HttpRequest) -> HttpResponse:
        end = request.parse_json(EndRun)
        token = runs.end(_run_id(request), end)
        body = answers.Done(message=f"run {request.path_values['run_id']} has {end.outcome}")
        return HttpResponse.json(body, session_token=token)

    router.add(internal.BEGIN_RUN, begin_run)
    router.add(internal.RENEW_RUN, renew_run)
    router.add(internal.END_RUN, end_run)


def _run_id(request: HttpRequest) -> int:
    return request.path_id("run_id", RunNotFound)
