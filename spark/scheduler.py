"""Runs the jobs when they are due, in one long-lived Spark session.

Jobs take turns in one thread: they share the machine's cores with the brokers anyway. That a job runs once at a time
and once for each tick over all processes is the write manager's word: a run that it refuses is left to whoever has it.
"""

import threading
from datetime import UTC, datetime, timedelta

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from myqueue.protocol.errors import JobRunning, MyQueueError, TickTaken
from service.logs import Log
from spark.config import JOB_NAMES, SparkSettings
from spark.jobs import JOBS
from spark.jobs.work import Work
from spark.runs import Run, RunStopped, said
from spark.stats_calls import StatsCalls
from spark.tables import last_success, milliseconds

RETRY_EVERY_S = 5.0
LAST_RUNS = 100  # among which the last one that succeeded is looked for


class Scheduler:
    """Sets `stopping` itself when Spark is gone. Its name tells it from all other schedulers."""

    def __init__(
        self,
        name: str,
        settings: SparkSettings,
        session: SparkSession,
        calls: StatsCalls,
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
        self._current: Run | None = None
        self.has_lost_spark = False
        self._scheduler = BackgroundScheduler(
            executors={"default": ThreadPoolExecutor(1)},
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
            timezone=UTC,
        )

    def start(self) -> None:
        """Waits until the cluster answers: only it knows what was missed."""
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
        """A run under way ends as failed, with the reason `stopped`."""
        self._stopping.set()
        self._scheduler.remove_all_jobs()
        current = self._current
        if current is not None:
            current.stop("stopped")
        self._scheduler.shutdown(wait=True)

    def _last_successes(self) -> dict[str, datetime | None]:
        """By job; empty if it was stopped while it waited."""
        while not self._stopping.is_set():
            try:
                return {job: last_success(self._calls.runs(job, LAST_RUNS)) for job in JOB_NAMES}
            except MyQueueError as error:
                if not error.retriable:
                    raise
                self._log.warning("the cluster does not answer", url=self._calls.url, why=error.message)
                self._stopping.wait(RETRY_EVERY_S)
        return {}

    def _run(self, job: str, trigger: str) -> None:
        log = self._log.bind(job=job)
        due = self._settings.schedule_of(job).last_tick(datetime.now(UTC))
        tick = 0 if due is None else milliseconds(due)
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
                done = JOBS[job](Work(self._session, self._calls, run, self._settings.dir))
            if run.fails is None:
                log.info("run succeeded", run_id=run.run_id, rows=run.rows, done=done.text)
            else:
                log.error("run failed", run_id=run.run_id, rows=run.rows, why=run.fails)
        except RunStopped as error:
            log.warning("run stopped", run_id=run.run_id, why=str(error))
        except Exception as error:  # noqa: BLE001 the next tick is the retry
            # Its message says it all: a Python stack would end in Spark's Java.
            log.error("run failed", run_id=run.run_id, why=said(error), error=type(error).__name__)  # noqa: TRY400
            self._look_after_spark()
        finally:
            self._current = None

    def _begin(self, job: str, trigger: str, tick: int, log: Log) -> Run | None:
        """None if it must not be run now; what was not run at this tick is caught up."""
        try:
            return Run(self._calls, job, self._name, trigger, tick)
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
        """If the tick was taken meanwhile, that run is refused."""
        self._scheduler.add_job(
            self._run, "date", run_date=when, args=[job, "caught_up"], id=f"{job}, caught up", replace_existing=True
        )

    def _look_after_spark(self) -> None:
        try:
            is_gone = self._session.sparkContext._jsc.sc().isStopped()
        except (Py4JError, OSError):
            is_gone = True
        if is_gone:
            self._log.error("Spark is gone; end this process, so that whoever keeps it up starts it again")
            self.has_lost_spark = True
            self._stopping.set()
