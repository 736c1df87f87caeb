"""The scheduler as a process of its own, on the packaged Java."""

import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from pyspark.sql import SparkSession
from rich.console import Console
from structlog.testing import capture_logs

from myqueue import Admin
from myqueue.protocol.errors import JobRunning
from spark.commands import schedule
from spark.config import JOB_NAMES, Access, load
from spark.job_run import JobRun
from spark.scheduler import JobScheduler
from spark.stats_client import StatsClient
from tests.cluster import Cluster
from tests.waiting import until

pytestmark = pytest.mark.timeout(600)  # a Spark of its own has to start

JOB = "consumer_lag"
CHECKOUT = Path(__file__).resolve().parents[2]
START_S = 120.0
RUN_S = 120.0


class SchedulerProcess:
    def __init__(self, stack: Cluster, folder: Path) -> None:
        self._said = folder / "error_summary"
        self._errors = folder / "errors"
        settings = {
            "MYQUEUE_URL": stack.url,
            "MYQUEUE_WRITE_MANAGER_URLS": ",".join(stack.internal_urls),
            "MYQUEUE_CLUSTER_SECRET": stack.secret,
            "MYQUEUE_JAVA": "packaged",
            "MYQUEUE_SPARK_DIR": str(folder),
            "MYQUEUE_SPARK_CONSUMER_LAG": "interval:2s",
            "MYQUEUE_SPARK_PARTITION_METRICS": "off",
            "MYQUEUE_SPARK_TOPIC_ROLLUP": "off",
        }
        with self._said.open("w") as error_summary, self._errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "spark", "scheduler"],
                cwd=CHECKOUT,
                env={**os.environ, **settings},
                stdout=error_summary,
                stderr=errors,
            )

    def events(self) -> list[dict[str, Any]]:
        """Its log; a line that is not JSON fails."""
        text = self._said.read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def errors(self) -> str:
        return self._errors.read_text()

    def await_event(self, event: str, *, within_s: float, **fields: object) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            assert self.process.poll() is None, self.errors()
            matching = (each for each in self.events() if each["event"] == event and fields.items() <= each.items())
            return next(matching, None)

        return until(look, within_s=within_s, what=f"the scheduler says {event} {fields}")


@pytest.fixture
def calls(stack: Cluster) -> Iterator[StatsClient]:
    calls = StatsClient(Access(stack.url, tuple(stack.internal_urls), stack.secret))
    yield calls
    calls.close()


@pytest.fixture
def scheduler(stack: Cluster, tmp_path: Path) -> Iterator[SchedulerProcess]:
    started = SchedulerProcess(stack, tmp_path)
    yield started
    if started.process.poll() is None:
        started.process.kill()
    started.process.wait()


@pytest.mark.slow
def test_scheduler(stack: Cluster, calls: StatsClient, scheduler: SchedulerProcess, topic_name: str) -> None:
    with Admin(stack.url) as admin:
        admin.create_topic(topic_name)
        admin.register_consumer(topic_name)

    def its_runs() -> list[dict[str, Any]]:
        """Those that succeeded, oldest first."""
        own = [run for run in reversed(calls.runs(JOB, 100)) if run["holder"].endswith(f".{scheduler.process.pid}")]
        return [run for run in own if run["outcome"] == "succeeded"]

    # A tick has passed since the last run, or there was none: it is caught up at once. Then the interval counts.
    assert scheduler.await_event("Spark is ready", within_s=START_S)["java"].startswith("25.")
    scheduler.await_event("scheduled", within_s=RUN_S, job=JOB, missed=True)
    until(lambda: len(its_runs()) >= 2, within_s=RUN_S, what="two runs")
    assert [run["trigger"] for run in its_runs()[:2]] == ["caught_up", "schedule"]

    # While another process runs the job, this one does not.
    def begun() -> JobRun | None:
        try:
            return JobRun(calls, JOB, "another-process", "manual")
        except JobRunning:
            return None

    with until(begun, within_s=RUN_S, what="a moment between two runs") as other:
        count = len(its_runs())
        scheduler.await_event("waiting for another run", within_s=RUN_S, job=JOB, run_id=other.run_id)
        assert len(its_runs()) == count
    until(lambda: len(its_runs()) > count, within_s=RUN_S, what="it runs again")

    scheduler.process.send_signal(signal.SIGINT)  # for which Spark has a handler of its own
    assert scheduler.process.wait(60) == 0
    assert scheduler.events()[-1]["event"] == "stopped"
    assert "Traceback" not in scheduler.errors()
    until(lambda: calls.runs(JOB, 1)[0]["outcome"] != "running", what="its last run has ended, not by its lease")

    printed = io.StringIO()
    settings = load(url=stack.url, consumer_lag="interval:30d", topic_rollup="off")
    assert schedule(settings, Console(file=printed, width=160)) == 0
    lines = {line.split()[1]: line for line in printed.getvalue().splitlines() if "_" in line}
    assert set(lines) >= set(JOB_NAMES)
    assert "interval:30d" in lines[JOB]
    assert "never" in lines["topic_rollup"]


def test_every_tick_is_run_once_however_many_schedulers_there_are(
    stack: Cluster, calls: StatsClient, session: SparkSession, tmp_path: Path
) -> None:
    settings = load(
        url=stack.url, dir=tmp_path, consumer_lag="interval:1s", partition_metrics="off", topic_rollup="off"
    )
    before = {run["run_id"] for run in calls.runs(JOB, 100)}

    def new_runs() -> list[dict[str, Any]]:
        return [run for run in calls.runs(JOB, 100) if run["run_id"] not in before]

    stopping = threading.Event()
    with capture_logs() as error_summary:
        log = structlog.get_logger()
        schedulers = [JobScheduler(name, settings, session, calls, log, stopping) for name in ("one", "another")]
        for scheduler in schedulers:
            scheduler.start()
        until(lambda: len(new_runs()) >= 4, within_s=RUN_S, what="four runs")
        for scheduler in schedulers:
            scheduler.stop()
    runs = new_runs()
    assert len({run["tick"] for run in runs}) == len(runs)
    assert all(run["tick"] % 1000 == 0 for run in runs)
    others = {"run by another process", "waiting for another run"}
    events = {entry["event"] for entry in error_summary}
    assert events <= {"scheduled", "run succeeded", "run stopped", *others}, error_summary
    assert events & others
