"""Runs of jobs: at most one of each job at a time, and one for each tick of its schedule, over all processes.

A run is stored when it begins and when it ends. In between its holder renews it, and this process remembers by its
monotonic clock when it last did. A run that is silent for longer than the lease is given up: by the next sweep, or by
whoever wants to begin another one. After a restart nothing was heard of anybody yet, so every run that is stored as
running gets a whole lease before it can be given up, and goes on if its holder does.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from sqlalchemy.orm import Session

from db import job_runs as stored
from db.job_runs import NewRun
from db.models import JobRun, StatsJob
from db.primary import Primary
from myqueue.protocol.errors import InvalidRequest, JobRunning, RunEnded, RunNotFound, TickTaken
from myqueue.protocol.models import BeginRun, EndRun
from myqueue.protocol.token import Token
from service.logs import Log

LOST = "nothing was heard of it for longer than its lease"
TICK_AHEAD = timedelta(days=1)  # clocks differ, but what lies days ahead would keep the job from running until then


class Runs:
    def __init__(
        self,
        primary: Primary,
        log: Log,
        *,
        lease_s: float,
        history_days: float,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._primary = primary
        self._log = log
        self._lease_s = lease_s
        self._history = timedelta(days=history_days)
        self._now_s = now_s
        self._heard_s: dict[int, float] = {}

    @property
    def lease_ms(self) -> int:
        return round(self._lease_s * 1000)

    def begin(self, request: BeginRun, key: str | None) -> tuple[JobRun, Token | None]:
        """The same key again gets the same run, whatever has become of it."""
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
        self.heard(run.run_id)
        return run, transaction.token

    def _take_over(self, session: Session, run: JobRun, now: datetime) -> None:
        if not self._is_silent(run.run_id):
            raise JobRunning(
                f"run {run.run_id} of {run.job} is under way, held by {run.holder}",
                details={
                    "run_id": run.run_id,
                    "holder": run.holder,
                    "started_at": round(run.started_at.timestamp() * 1000),
                },
            )
        stored.end_run(session, run, "lost", now, message=LOST)

    def renew(self, run_id: int) -> None:
        with self._primary.transaction() as transaction:
            self.held(transaction.session, run_id)
        self.heard(run_id)

    def held(self, session: Session, run_id: int) -> tuple[JobRun, StatsJob]:
        """The run, which is running and will be until the transaction ends."""
        run, job = self._found(session, run_id)
        if run.outcome != "running":
            raise _ended(run)
        return run, job

    def end(self, run_id: int, request: EndRun) -> Token | None:
        """Said again, it is success again."""
        with self._primary.transaction() as transaction:
            run, _ = self._found(transaction.session, run_id)
            if run.outcome == "running":
                now = datetime.now(UTC)
                stored.end_run(transaction.session, run, request.outcome, now, request.rows, request.message)
            elif run.outcome != request.outcome:
                raise _ended(run)
        self._heard_s.pop(run_id, None)
        return transaction.token

    def _found(self, session: Session, run_id: int) -> tuple[JobRun, StatsJob]:
        found = stored.locked_run(session, run_id)
        if found is None:
            raise RunNotFound()
        return found

    def heard(self, run_id: int) -> None:
        self._heard_s[run_id] = self._now_s()

    def _is_silent(self, run_id: int) -> bool:
        """One that this process has never heard of counts from now on."""
        now_s = self._now_s()
        return now_s - self._heard_s.setdefault(run_id, now_s) > self._lease_s

    def sweep(self) -> None:
        """Gives up runs that are silent, so that they do not look as if they were running."""
        with self._primary.reading() as session:
            running = stored.running(session)
        for run_id in set(self._heard_s) - set(running):
            self._heard_s.pop(run_id, None)
        for run_id in running:
            if self._is_silent(run_id):
                self._give_up(run_id)

    def _give_up(self, run_id: int) -> None:
        with self._primary.transaction() as transaction:
            found = stored.locked_run(transaction.session, run_id)
            if found is None or found[0].outcome != "running" or not self._is_silent(run_id):
                return
            stored.end_run(transaction.session, found[0], "lost", datetime.now(UTC), message=LOST)
        self._log.warning("run given up", run_id=run_id, job=found[0].job, holder=found[0].holder)


def _take_tick(session: Session, job: StatsJob, tick: int | None) -> None:
    """Each tick is run once, by whoever begins first: one that failed is made good by the next."""
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
