"""The commands of `python -m spark`: run one job now, list schedules, or run the scheduler."""

import logging
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import UTC, datetime
from types import FrameType

from pyspark.sql import SparkSession
from rich.console import Console

from myqueue.protocol import routes
from myqueue.protocol.errors import JobRunning, MyQueueError
from service import logs
from spark import session as sessions
from spark.config import (
    DONE,
    FAILED,
    JOB_NAMES,
    RUNS_ELSEWHERE,
    WRONG_USAGE,
    SparkFailure,
    SparkSettings,
    access,
    holder,
    reading_url,
)
from spark.console import (
    Figures,
    ProgressDisplay,
    consumer_figures,
    minute_figures,
    moment,
    partition_figures,
    schedule_row,
    show_differences,
    show_figures,
    show_schedule,
)
from spark.job_run import JobRun, RunStopped, error_summary
from spark.jobs import JOBS, partition_audit
from spark.jobs.work import JobResult, Work
from spark.scheduler import JobScheduler
from spark.stats_client import StatsClient, StatsReader

REFRESH_EVERY_S = 0.25
SHOWN_MINUTES = 60
# Of each job: how its figures are read back, and where.
FIGURES: dict[str, tuple[Callable[[StatsReader], Figures], str]] = {
    "partition_metrics": (lambda stats: partition_figures(stats.partitions()), routes.PARTITION_STATS.path),
    "consumer_lag": (lambda stats: consumer_figures(stats.consumers()), routes.CONSUMER_STATS.path),
    "topic_rollup": (lambda stats: minute_figures(stats.topics(SHOWN_MINUTES)), routes.TOPIC_STATS.path),
}


def stop_on_signals(stopping: threading.Event) -> None:
    """SIGTERM and Ctrl-C only set an event: Spark must not be called from a signal handler."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)


def run(settings: SparkSettings, job: str, *, audit: bool, console: Console) -> int:
    stopping = threading.Event()
    stop_on_signals(stopping)
    calls = StatsClient(access(settings))
    try:
        with sessions.one_session(f"myqueue {job}", settings) as build:
            return run_with(build, settings, calls, job, audit=audit, console=console, stopping=stopping)
    finally:
        calls.close()


def run_with(
    build: Callable[[], SparkSession],
    settings: SparkSettings,
    calls: StatsClient,
    job: str,
    *,
    audit: bool,
    console: Console,
    stopping: threading.Event,
) -> int:
    """Begins the run before it starts Spark, so that a refused run fails fast."""
    try:
        begun = JobRun(calls, job, holder(), "manual")
    except JobRunning as error:
        raise SparkFailure(_runs_elsewhere(job, error), RUNS_ELSEWHERE) from None
    session: SparkSession | None = None

    def work() -> JobResult:
        nonlocal session
        with begun:
            session = build()
            begun.check()
            act = partition_audit.run if audit else JOBS[job]
            return act(Work(session, calls, begun, settings.dir, settings.max_consumers))

    with ThreadPoolExecutor(1, thread_name_prefix=job) as pool, ProgressDisplay(begun, console) as display:
        future = pool.submit(work)
        while not wait([future], timeout=REFRESH_EVERY_S).done:
            display.update(None if session is None else session.sparkContext)
            if stopping.is_set():
                begun.stop("stopped")
    _show(_done(future, job), job, calls, console)
    if begun.fails is not None:
        raise SparkFailure(f"{job}: {begun.fails}")
    return DONE


def _show(done: JobResult, job: str, stats: StatsReader, console: Console) -> None:
    if done.differences:
        show_differences(done.differences, console)
    read_figures, path = FIGURES[job]
    try:
        show_figures(read_figures(stats), console)
    except MyQueueError as error:  # the run is over, and its results are stored
        console.print(f"the figures could not be read back: {error.message}", markup=False, highlight=False)
    where = f"curl {stats.url}{path}"
    console.print(f"{done.text}; read the figures with: {where}", markup=False, highlight=False, soft_wrap=True)


def _done(future: "Future[JobResult]", job: str) -> JobResult:
    try:
        return future.result()
    except (MyQueueError, SparkFailure):
        raise
    except RunStopped as error:
        raise SparkFailure(f"{job}: {error}") from None
    except Exception as error:
        raise SparkFailure(f"{job} failed: {error_summary(error)}") from error


def _runs_elsewhere(job: str, error: JobRunning) -> str:
    since = error.details.get("started_at")
    when = f" since {moment(since)} UTC" if isinstance(since, int) else ""
    return f"{job} is running{when} in {error.details.get('holder', 'another process')}; try again when it has ended"


def schedule(settings: SparkSettings, console: Console) -> int:
    reads = StatsReader(reading_url(settings))
    now = datetime.now(UTC)
    try:
        rows = [schedule_row(job, settings.schedule_of(job), reads.runs(job, 1), now) for job in JOB_NAMES]
    finally:
        reads.close()
    show_schedule(rows, console)
    return DONE


def scheduler(settings: SparkSettings) -> int:
    if all(settings.schedule_of(job).is_off for job in JOB_NAMES):
        raise SparkFailure("every job is off: there is nothing to schedule", WRONG_USAGE)
    calls = StatsClient(access(settings))
    stopping = threading.Event()
    stop_on_signals(stopping)
    log = logs.configure("spark", settings.log_level)
    logging.getLogger("apscheduler").setLevel(logging.ERROR)  # a run that takes longer than its interval is fine
    log.info("starting Spark", master=settings.master, url=calls.url)
    try:
        with sessions.one_session("myqueue scheduler", settings) as build:
            session = build()
            stop_on_signals(stopping)  # Spark has replaced the handler of Ctrl-C
            log.info("Spark is ready", version=session.version, java=sessions.java_version(session))
            spark_jobs = JobScheduler(holder(), settings, session, calls, log, stopping)
            spark_jobs.start()
            stopping.wait()
            log.info("stopping")
            spark_jobs.stop()
            return FAILED if spark_jobs.has_lost_spark else DONE
    finally:
        calls.close()
        log.info("stopped")
