"""Job runs as stored. Every change of a job's runs and results first locks the job's row."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Select, delete, or_, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session, aliased

from db.catalog import take_ids
from db.models import JobRun, StatsJob

PRUNED_AT_ONCE = 1000
MAX_SUMMARIES = 100  # jobs are named by who runs them


@dataclass(frozen=True, slots=True)
class NewRun:
    job: str
    holder: str
    trigger: str
    tick: int | None
    idempotency_key: str | None
    started_at: datetime


def locked_job(session: Session, job: str) -> StatsJob:
    """Created if it is missing. No other transaction changes it, its runs or its results before this one ends."""
    session.execute(insert(StatsJob).values(job=job).on_conflict_do_nothing())
    return session.scalars(select(StatsJob).where(StatsJob.job == job).with_for_update()).one()


def locked_run(session: Session, run_id: int) -> tuple[JobRun, StatsJob] | None:
    """The run and its job. The run is read under the lock: the transaction that held it may have ended the run."""
    name = session.scalar(select(JobRun.job).where(JobRun.run_id == run_id))
    if name is None:
        return None
    job = locked_job(session, name)
    return session.get_one(JobRun, run_id), job


def run_of_tick(session: Session, job: str, tick: int) -> JobRun | None:
    return session.scalars(select(JobRun).where(JobRun.job == job, JobRun.tick == tick)).first()


def last_run(session: Session, job: str) -> JobRun | None:
    return session.scalars(select(JobRun).where(JobRun.job == job).order_by(JobRun.run_id.desc()).limit(1)).first()


def insert_run(session: Session, new: NewRun) -> JobRun:
    run = JobRun(
        run_id=take_ids(session, "run"),
        job=new.job,
        holder=new.holder,
        trigger=new.trigger,
        tick=new.tick,
        idempotency_key=new.idempotency_key,
        started_at=new.started_at,
        outcome="running",
    )
    session.add(run)
    session.flush()
    return run


def end_run(
    session: Session,
    run: JobRun,
    outcome: str,
    when: datetime,
    *,
    rows: int = 0,
    left_out: int = 0,
    message: str | None = None,
) -> None:
    run.outcome, run.ended_at, run.rows, run.left_out, run.message = outcome, when, rows, left_out, message
    session.flush()  # before another one is inserted: only one may be running


def running(session: Session) -> list[int]:
    return list(session.scalars(select(JobRun.run_id).where(JobRun.outcome == "running")))


@dataclass(frozen=True, slots=True)
class JobSummary:
    """The last run of a job that has ended, and the last one that succeeded."""

    job: str
    outcome: str
    took_s: float
    rows: int
    left_out: int
    succeeded_at: datetime | None


def summaries(session: Session) -> list[JobSummary]:
    found = []
    for job in session.scalars(select(StatsJob.job).order_by(StatsJob.job).limit(MAX_SUMMARIES)):
        ended = select(JobRun).where(JobRun.job == job, JobRun.ended_at.is_not(None)).order_by(JobRun.run_id.desc())
        run = session.scalars(ended.limit(1)).first()
        if run is None or run.ended_at is None:
            continue
        good = run if run.outcome == "succeeded" else session.scalars(_succeeded(job)).first()
        took_s = (run.ended_at - run.started_at).total_seconds()
        at = None if good is None else good.ended_at
        found.append(JobSummary(job, run.outcome, took_s, run.rows, run.left_out, at))
    return found


def _succeeded(job: str) -> Select[JobRun]:
    succeeded = select(JobRun).where(JobRun.job == job, JobRun.outcome == "succeeded")
    return succeeded.order_by(JobRun.run_id.desc()).limit(1)


def prune_runs(session: Session, job: str, before: datetime) -> None:
    """Delete old ones, except the last that succeeded: the time at which the job is due depends on it."""
    later = aliased(JobRun)
    succeeded_later = (
        select(later.run_id)
        .where(later.job == JobRun.job, later.run_id > JobRun.run_id, later.outcome == "succeeded")
        .exists()
    )
    old = (
        select(JobRun.run_id)
        .where(JobRun.job == job, JobRun.ended_at < before, or_(JobRun.outcome != "succeeded", succeeded_later))
        .order_by(JobRun.ended_at)
        .limit(PRUNED_AT_ONCE)
    )
    session.execute(delete(JobRun).where(JobRun.run_id.in_(old)).execution_options(synchronize_session=False))
