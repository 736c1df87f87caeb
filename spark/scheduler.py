"""Runs the jobs when they are due, in one long-lived Spark session.

Jobs run one at a time in one thread: they share the machine's cores with the brokers anyway. The write manager
guarantees that a job runs once at a time and once per tick over all processes: it refuses any other run.
"""

import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from myqueue.protocol.errors import JobRunning, MyQueueError, TickTaken
from service.logs import Log
from spark.config import JOB_NAMES, SparkSettings
from spark.job_run import JobRun, RunStopped, error_summary
from spark.jobs import JOBS
from spark.jobs.work import Work
from spark.stats_client import StatsClient

RETRY_EVERY_S = 5.0
LAST_RUNS = 100  # searched for the last one that succeeded


class JobScheduler:
    """Sets `stopping` when Spark is gone. `name` identifies this scheduler among all processes."""

    def __init__(
        self,
        name: str,
        settings: SparkSettings,
        session: SparkSession,
        calls: StatsClient,
        log: Log,
        stopping: threading.Event,
    ) -> None:
        self._name = name
        self._settings = settings
        self._session = session
        self._calls = calls
        self._log = log
        self._stopping = stopping
        self._begun: dict[str, int] = {}  # the last tick of each job
        self._current: JobRun | None = None
        self.has_lost_spark = False
        self._scheduler = BackgroundScheduler(
            executors={"default": ThreadPoolExecutor(1)},
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
            timezone=UTC,
        )

    def start(self) -> None:
        """Waits until the cluster answers, because the missed runs are stored there."""
        last = self._last_successes()
        now = datetime.now(UTC)
        for job, success in last.items():
            schedule = self._settings.schedule_of(job)
            if schedule.is_off:
                continue
            is_missed = schedule.is_missed(success, now)
            self._log.info(
                "scheduled", job=job, schedule=schedule.text, next_run=str(schedule.next_tick(now)), missed=is_missed
            )
            self._scheduler.add_job(self._run, schedule.trigger(), args=[job, "schedule"], id=job)
            if is_missed:
                self._catch_up(job, now)
        self._scheduler.start()

    def stop(self) -> None:
        """The current run ends as failed, with the reason `stopped`."""
        self._stopping.set()
        self._scheduler.remove_all_jobs()
        current = self._current
        if current is not None:
            current.stop("stopped")
        self._scheduler.shutdown(wait=True)

    def _last_successes(self) -> dict[str, datetime | None]:
        """By job; empty if the scheduler is stopped meanwhile."""
        while not self._stopping.is_set():
            try:
                return {job: _last_success(self._calls.runs(job, LAST_RUNS)) for job in JOB_NAMES}
            except MyQueueError as error:
                if not error.retriable:
                    raise
                self._log.warning("the cluster does not answer", url=self._calls.url, why=error.message)
                self._stopping.wait(RETRY_EVERY_S)
        return {}

    def _run(self, job: str, trigger: str) -> None:
        log = self._log.bind(job=job)
        due = self._settings.schedule_of(job).last_tick(datetime.now(UTC))
        tick = 0 if due is None else round(due.timestamp() * 1000)
        if self._stopping.is_set() or tick <= self._begun.get(job, 0):
            return
        run = self._begin(job, trigger, tick, log)
        if run is None:
            return
        self._begun[job] = tick
        try:
            with run:
                self._current = run
                if self._stopping.is_set():
                    run.stop("stopped")
                run.check()
                settings = self._settings
                done = JOBS[job](Work(self._session, self._calls, run, settings.dir, settings.max_consumers))
            if run.fails is None:
                log.info("run succeeded", run_id=run.run_id, rows=run.rows, done=done.text)
            else:
                log.error("run failed", run_id=run.run_id, rows=run.rows, why=run.fails)
        except RunStopped as error:
            log.warning("run stopped", run_id=run.run_id, why=str(error))
        except Exception as error:  # noqa: BLE001 the next tick is the retry
            # Without the Python stack, which would end in Spark's Java.
            log.error("run failed", run_id=run.run_id, why=error_summary(error), error=type(error).__name__)  # noqa: TRY400
            self._check_spark()
        finally:
            self._current = None

    def _begin(self, job: str, trigger: str, tick: int, log: Log) -> JobRun | None:
        """None if the job must not run now; a tick without a run is caught up."""
        try:
            return JobRun(self._calls, job, self._name, trigger, tick)
        except TickTaken as error:
            log.info("run by another process", why=error.message, run_id=error.details.get("run_id"))
            return None
        except JobRunning as error:
            log.info("waiting for another run", why=error.message, run_id=error.details.get("run_id"))
        except MyQueueError as error:
            if not error.retriable:
                log.error("run failed", why=error.message, code=error.error_code)  # noqa: TRY400 it says it all
                return None
            log.warning("the cluster does not answer", url=self._calls.url, why=error.message)
        self._catch_up(job, datetime.now(UTC) + timedelta(seconds=RETRY_EVERY_S))
        return None

    def _catch_up(self, job: str, when: datetime) -> None:
        """If another process takes the tick meanwhile, this run is refused."""
        self._scheduler.add_job(
            self._run, "date", run_date=when, args=[job, "caught_up"], id=f"{job}, caught up", replace_existing=True
        )

    def _check_spark(self) -> None:
        try:
            is_gone = self._session.sparkContext._jsc.sc().isStopped()
        except (Py4JError, OSError):
            is_gone = True
        if is_gone:
            self._log.error("Spark is gone; end this process, so that its supervisor starts it again")
            self.has_lost_spark = True
            self._stopping.set()


def _last_success(runs: Sequence[Mapping[str, Any]]) -> datetime | None:
    """When the last run that succeeded began; `runs` newest first."""
    begun = next((run["started_at"] for run in runs if run["outcome"] == "succeeded"), None)
    return None if begun is None else datetime.fromtimestamp(begun / 1000, UTC)
