"""What `python -m spark` does: run one job now, list schedules, or be the scheduler."""

import logging
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import UTC, datetime
from types import FrameType

from pyspark.sql import SparkSession
from rich.console import Console

from myqueue.protocol.errors import JobRunning, MyQueueError
from service import logs
from spark import session as sessions
from spark import tables
from spark.access import access, reading_url
from spark.config import JOB_NAMES, SparkSettings, holder
from spark.failure import DONE, FAILED, RUNS_ELSEWHERE, WRONG_USAGE, SparkFailure
from spark.jobs import FIGURES, JOBS, PATHS, partition_audit
from spark.jobs.work import Work
from spark.progress import Watch
from spark.runs import Run, RunStopped, said
from spark.scheduler import Scheduler
from spark.stats_calls import StatsCalls, StatsReads
from spark.tables import Done

LOOK_EVERY_S = 0.25


def stop_on_signals(stopping: threading.Event) -> None:
    """SIGTERM and Ctrl-C only set it: Spark must not be called from within a signal's handler."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)


def run(settings: SparkSettings, job: str, *, audit: bool, console: Console) -> int:
    stopping = threading.Event()
    stop_on_signals(stopping)
    calls = StatsCalls(access(settings))
    try:
        with sessions.one_session(f"myqueue {job}", settings) as build:
            return run_with(build, settings, calls, job, audit=audit, console=console, stopping=stopping)
    finally:
        calls.close()


def run_with(
    build: Callable[[], SparkSession],
    settings: SparkSettings,
    calls: StatsCalls,
    job: str,
    *,
    audit: bool,
    console: Console,
    stopping: threading.Event,
) -> int:
    """The run is begun before Spark is started: whoever comes second need not wait for that."""
    try:
        begun = Run(calls, job, holder(), "manual")
    except JobRunning as error:
        raise SparkFailure(_runs_elsewhere(job, error), RUNS_ELSEWHERE) from None
    session: SparkSession | None = None

    def work() -> Done:
        nonlocal session
        with begun:
            session = build()
            begun.check()
            act = partition_audit.run if audit else JOBS[job]
            return act(Work(session, calls, begun, settings.dir))

    with ThreadPoolExecutor(1, thread_name_prefix=job) as pool, Watch(begun, console) as watch:
        future = pool.submit(work)
        while not wait([future], timeout=LOOK_EVERY_S).done:
            watch.look(None if session is None else session.sparkContext)
            if stopping.is_set():
                begun.stop("stopped")
    _show(_done(future, job), job, calls, console)
    if begun.fails is not None:
        raise SparkFailure(f"{job}: {begun.fails}")
    return DONE


def _show(done: Done, job: str, reads: StatsReads, console: Console) -> None:
    if done.differences:
        tables.show_differences(done.differences, console)
    try:
        tables.show_figures(FIGURES[job](reads), console)
    except MyQueueError as error:  # the run is over, and its results are stored
        console.print(f"the figures could not be read back: {error.message}", markup=False, highlight=False)
    where = f"curl {reads.url}{PATHS[job]}"
    console.print(f"{done.text}; read the figures with: {where}", markup=False, highlight=False, soft_wrap=True)


def _done(future: "Future[Done]", job: str) -> Done:
    try:
        return future.result()
    except (MyQueueError, SparkFailure):
        raise
    except RunStopped as error:
        raise SparkFailure(f"{job}: {error}") from None
    except Exception as error:
        raise SparkFailure(f"{job} failed: {said(error)}") from error


def _runs_elsewhere(job: str, error: JobRunning) -> str:
    since = error.details.get("started_at")
    when = f" since {tables.moment(since)} UTC" if isinstance(since, int) else ""
    return f"{job} is running{when} in {error.details.get('holder', 'another process')}; try again when it has ended"


def schedule(settings: SparkSettings, console: Console) -> int:
    reads = StatsReads(reading_url(settings))
    now = datetime.now(UTC)
    try:
        rows = [tables.schedule_row(job, settings.schedule_of(job), reads.runs(job, 1), now) for job in JOB_NAMES]
    finally:
        reads.close()
    tables.show_schedule(rows, console)
    return DONE


def scheduler(settings: SparkSettings) -> int:
    if all(settings.schedule_of(job).is_off for job in JOB_NAMES):
        raise SparkFailure("every job is off: there is nothing to schedule", WRONG_USAGE)
    calls = StatsCalls(access(settings))
    stopping = threading.Event()
    stop_on_signals(stopping)
    log = logs.configure("spark", settings.log_level)
    logging.getLogger("apscheduler").setLevel(logging.ERROR)  # that a run takes longer than its interval is no trouble
    log.info("starting Spark", master=settings.master, url=calls.url)
    try:
        with sessions.one_session("myqueue scheduler", settings) as build:
            session = build()
            stop_on_signals(stopping)  # Spark has put its own in place of that for Ctrl-C
            log.info("Spark is ready", version=session.version, java=sessions.java_version(session))
            spark_jobs = Scheduler(holder(), settings, session, calls, log, stopping)
            spark_jobs.start()
            stopping.wait()
            log.info("stopping")
            spark_jobs.stop()
            return FAILED if spark_jobs.has_lost_spark else DONE
    finally:
        calls.close()
        log.info("stopped")
