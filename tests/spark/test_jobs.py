"""Jobs on the real stack: their figures are what was produced, however often and after whatever they run."""

import io
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import requests
from pyspark.sql import SparkSession
from rich.console import Console

from myqueue import Admin
from myqueue.protocol.errors import MyQueueError, RunEnded
from myqueue.protocol.models import PartitionMeasure, RunResults
from spark.commands import run_with
from spark.config import DONE, FAILED, RUNS_ELSEWHERE, Access, SparkFailure, SparkSettings, load
from spark.incremental_query import folder_of
from spark.job_run import JobRun, RunStopped
from spark.jobs import JOBS
from spark.jobs.work import Work
from spark.stats_client import StatsClient
from tests.calls import Calls
from tests.cluster import Cluster
from tests.spark.listing import await_listed
from tests.waiting import until

pytestmark = pytest.mark.timeout(300)  # the first test waits for the stack and Spark

FIRST_MS = 1_700_000_000_000
CHECKOUT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Jobs:
    session: SparkSession
    settings: SparkSettings
    calls: StatsClient

    def run(self, job: str, *, audit: bool = False) -> tuple[int, str]:
        """As `python -m spark run` in the shared session: exit code and what was printed."""
        printed = io.StringIO()
        console = Console(file=printed, width=160)
        try:
            code = run_with(
                lambda: self.session,
                self.settings,
                self.calls,
                job,
                audit=audit,
                console=console,
                stopping=threading.Event(),
            )
        except SparkFailure as failure:
            return failure.exit_code, f"{printed.getvalue()}{failure}"
        except MyQueueError as error:
            return FAILED, f"{printed.getvalue()}{error.message}"
        return code, printed.getvalue()

    def done(self, job: str, *, audit: bool = False) -> str:
        """What a run that succeeds prints."""
        code, printed = self.run(job, audit=audit)
        assert code == DONE, printed
        return printed

    def rows_of(self, job: str) -> int:
        """What the last run has gone through."""
        rows: int = self.calls.runs(job, 1)[0]["rows"]
        return rows

    def partitions(self, topic: str) -> list[dict[str, Any]]:
        return [each for each in self.calls.partitions() if each["topic"] == topic]

    def minutes(self, topic: str) -> tuple[int, int]:
        """Messages and bytes of all minutes."""
        found = [each for each in self.calls.topics(60) if each["topic"] == topic]
        return sum(each["messages"] for each in found), sum(each["bytes"] for each in found)

    def checkpoint(self, job: str) -> Path:
        return folder_of(self.settings.dir, job, self.settings.url)

    def forget_the_last_commit(self, job: str) -> None:
        """As if the driver had died after the results were taken and before Spark wrote that down."""
        commits = self.checkpoint(job) / "commits"
        last = max((path for path in commits.iterdir() if path.name.isdecimal()), key=lambda path: int(path.name))
        last.unlink()
        (commits / f".{last.name}.crc").unlink(missing_ok=True)


@pytest.fixture(scope="module")
def jobs(session: SparkSession, stack: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    calls = StatsClient(Access(stack.url, tuple(stack.internal_urls), stack.secret))
    yield Jobs(session, load(url=stack.url, dir=tmp_path_factory.mktemp("jobs")), calls)
    calls.close()


@pytest.fixture
def calls(stack: Cluster) -> Iterator[Calls]:
    with requests.Session() as http:
        yield Calls(stack.url, http)


def make_topic(calls: Calls, name: str, partitions: int = 1) -> None:
    """A job may ask any read manager which topics there are."""
    calls.topic(name, partitions)
    await_listed(calls.url, name)


def produce(calls: Calls, topic: str, partition: int, count: int, first_ms: int = FIRST_MS) -> int:
    """Messages with keys and without, one millisecond apart; the bytes of their keys and values."""
    messages = [
        {"value": "v" * (number % 50), "partition": partition, "timestamp": first_ms + number}
        | ({"key": "k" * 3} if number % 2 else {})
        for number in range(count)
    ]

    def are_taken() -> bool:
        answer = calls.post(f"/v1/topics/{topic}/messages", {"messages": messages})
        if answer.status_code == 503 and answer.json().get("outcome") == "not_written":
            return False  # the partition has no leader yet
        assert answer.status_code == 200, answer.text
        return True

    until(are_taken, within_s=30, what=f"{topic}/{partition} takes messages")
    return sum(number % 50 + 3 * (number % 2) for number in range(count))


def test_partition_metrics(jobs: Jobs, calls: Calls, topic_name: str) -> None:
    make_topic(calls, topic_name, partitions=3)
    sizes = [produce(calls, topic_name, 0, 300), produce(calls, topic_name, 1, 70)]
    printed = jobs.done("partition_metrics")
    assert f"curl {jobs.settings.url}/v1/stats/partitions" in printed
    first, second, empty = jobs.partitions(topic_name)
    assert (first["messages"], first["bytes"], first["bytes_exact"]) == (300, sizes[0], True)
    assert (first["first_offset"], first["end_offset"], first["log_end_offset"]) == (0, 300, 300)
    assert (first["first_timestamp"], first["last_timestamp"]) == (FIRST_MS, FIRST_MS + 299)
    assert (first["gaps"], first["duplicates"], first["rate_per_minute"]) == (0, 0, None)
    assert (second["messages"], second["bytes"]) == (70, sizes[1])
    assert (empty["messages"], empty["bytes"], empty["end_offset"], empty["last_timestamp"]) == (0, 0, 0, None)

    # Again: only what is new is read, and it adds up.
    more = produce(calls, topic_name, 1, 30, FIRST_MS - 1000)
    jobs.done("partition_metrics")
    assert jobs.rows_of("partition_metrics") == 30
    second = jobs.partitions(topic_name)[1]
    assert (second["messages"], second["bytes"], second["gaps"]) == (100, sizes[1] + more, 0)
    assert (second["first_timestamp"], second["last_timestamp"]) == (FIRST_MS - 1000, FIRST_MS + 69)
    assert second["rate_per_minute"] > 0

    # The driver died after the results were taken: the micro-batch is read again, and counts once.
    known = figures(jobs, topic_name)
    jobs.forget_the_last_commit("partition_metrics")
    jobs.done("partition_metrics")
    assert jobs.rows_of("partition_metrics") == 30
    assert figures(jobs, topic_name) == known


def figures(jobs: Jobs, topic: str) -> list[tuple[int, int, int, int]]:
    return [(p["messages"], p["bytes"], p["gaps"], p["duplicates"]) for p in jobs.partitions(topic)]


@pytest.mark.slow
def test_topic_rollup(jobs: Jobs, calls: Calls, topic_name: str, tmp_path: Path) -> None:
    make_topic(calls, topic_name)
    size = produce(calls, topic_name, 0, 120)
    jobs.done("topic_rollup")
    assert jobs.minutes(topic_name) == (120, size)

    # A micro-batch that is repeated, and more after it.
    jobs.forget_the_last_commit("topic_rollup")
    size += produce(calls, topic_name, 0, 5)
    jobs.done("topic_rollup")
    assert jobs.minutes(topic_name) == (125, size)

    # A checkpoint that is lost: it begins anew. If the old one comes back later, it must not add to that.
    checkpoint, lost = jobs.checkpoint("topic_rollup"), tmp_path / "lost"
    checkpoint.rename(lost)
    jobs.done("topic_rollup")
    assert jobs.rows_of("topic_rollup") >= 125
    assert jobs.minutes(topic_name) == (125, size)
    shutil.rmtree(checkpoint)
    lost.rename(checkpoint)
    produce(calls, topic_name, 0, 1)
    code, printed = jobs.run("topic_rollup")
    assert (code, "MYQUEUE_SPARK_DIR" in printed) == (FAILED, True), printed
    assert jobs.minutes(topic_name) == (125, size)
    shutil.rmtree(checkpoint)


def test_consumer_lag(jobs: Jobs, calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name, partitions=2)
    produce(calls, topic_name, 0, 10)
    consumer_id = calls.consumer(topic_name, name="reader", **{"from": "earliest"})
    for _ in range(4):
        assert calls.consume(topic_name, consumer_id).status_code == 200
    jobs.done("consumer_lag")
    behind, none = (each for each in jobs.calls.consumers() if each["consumer_id"] == consumer_id)
    assert (behind["name"], behind["partition_id"], behind["cursor"], behind["end_offset"]) == ("reader", 0, 4, 10)
    assert behind["messages"] == 6
    assert behind["bytes"] > 0
    assert (none["messages"], none["bytes"], none["seconds"]) == (0, 0, 0)


@pytest.mark.slow
def test_audit_finds_a_difference_and_puts_it_right(jobs: Jobs, calls: Calls, topic_name: str) -> None:
    make_topic(calls, topic_name, partitions=2)
    size = produce(calls, topic_name, 1, 40)
    printed = jobs.done("partition_metrics", audit=True)
    assert "0 differences" in printed

    # Somebody posts other figures.
    wrong = PartitionMeasure(
        topic=topic_name,
        topic_id=UUID(calls.get(f"/v1/topics/{topic_name}").json()["topic_id"]),
        partition_id=1,
        from_offset=0,
        to_offset=40,
        messages=40,
        payload_bytes=size + 1,
        beginning_offset=0,
        end_offset=40,
    )
    with JobRun(jobs.calls, "partition_metrics", "somebody", "manual") as run:
        jobs.calls.post(run.run_id, RunResults(replace=True, partitions=[wrong]))

    code, printed = jobs.run("partition_metrics", audit=True)
    assert code == FAILED
    assert f"{topic_name}/1: recorded payload bytes: {size + 1} instead of {size}" in printed
    assert jobs.calls.runs("partition_metrics", 1)[0]["outcome"] == "failed"
    # It has put that right; what is new adds up with it, and the next audit agrees.
    size += produce(calls, topic_name, 1, 2)
    jobs.done("partition_metrics", audit=True)
    assert figures(jobs, topic_name) == [(0, 0, 0, 0), (42, size, 0, 0)]


def test_one_run_at_a_time(jobs: Jobs, stack: Cluster) -> None:
    where = {
        "MYQUEUE_URL": stack.url,
        "MYQUEUE_WRITE_MANAGER_URLS": ",".join(stack.internal_urls),
        "MYQUEUE_CLUSTER_SECRET": stack.secret,
    }
    with JobRun(jobs.calls, "consumer_lag", "somebody-else", "manual"):
        command = [sys.executable, "-m", "spark", "run", "consumer_lag"]
        found = subprocess.run(command, cwd=CHECKOUT, env=where, capture_output=True, text=True, timeout=60)
    assert found.returncode == RUNS_ELSEWHERE
    assert "consumer_lag is running since" in found.stderr
    assert "somebody-else" in found.stderr


def test_a_run_that_was_given_up_or_stopped_posts_nothing(jobs: Jobs, calls: Calls, topic_name: str) -> None:
    make_topic(calls, topic_name)
    produce(calls, topic_name, 0, 3)
    run = JobRun(jobs.calls, "partition_metrics", "tests", "manual")
    jobs.calls.end(run.run_id, succeeded=False, rows=0, message=None)
    with pytest.raises((RunEnded, RunStopped)), run:  # whichever is refused first: the results, or the renewal
        JOBS["partition_metrics"](Work(jobs.session, jobs.calls, run, jobs.settings.dir))
    run = JobRun(jobs.calls, "partition_metrics", "tests", "manual")
    run.stop("stopped")
    with pytest.raises(RunStopped), run:
        JOBS["partition_metrics"](Work(jobs.session, jobs.calls, run, jobs.settings.dir))
    last = jobs.calls.runs("partition_metrics", 1)[0]
    assert (last["outcome"], last["message"]) == ("failed", "stopped")
    assert jobs.partitions(topic_name) == []

    jobs.done("partition_metrics")
    assert figures(jobs, topic_name)[0][0] == 3


def test_runs_leave_no_thread_behind(jobs: Jobs) -> None:
    def monitors() -> int:
        jvm = jobs.session.sparkContext._jvm
        assert jvm is not None
        names = [str(thread.getName()) for thread in jvm.java.lang.Thread.getAllStackTraces().keySet()]
        return sum(name.startswith("Idle Worker Monitor") for name in names)

    jobs.done("partition_metrics")  # a session's first run starts some that it keeps
    before = monitors()
    for _ in range(2):
        jobs.done("partition_metrics")
    until(lambda: monitors() <= before, what=f"Spark has no more than the {before} threads of the first run")


@pytest.mark.slow
def test_a_partition_without_a_leader_is_unknown_and_the_others_are_measured(
    jobs: Jobs, calls: Calls, stack: Cluster, topic_name: str
) -> None:
    alone, other = f"{topic_name}-alone", f"{topic_name}-other"
    calls.topic(other, partitions=1)
    with Admin(stack.url) as admin:
        admin.create_topic(alone, partitions=1, replication=1)
        (broker_id,) = admin.partitions(alone)[0].replicas
        for name in (alone, other):
            admin.register_consumer(name)
            produce(calls, name, 0, 10)
    await_listed(stack.url, alone, other)
    for job in JOBS:
        jobs.done(job)
    stack.stop(f"broker-{broker_id}")
    try:
        produce(calls, other, 0, 7)
        assert "the lag of 1 unknown (a partition has no leader)" in jobs.done("consumer_lag")
        jobs.done("partition_metrics")
        jobs.done("topic_rollup")
        assert jobs.partitions(other)[0]["messages"] == 17
        assert jobs.minutes(other)[0] == 17
    finally:
        stack.start(f"broker-{broker_id}")
        stack.heal()
    produce(calls, alone, 0, 5)
    jobs.done("partition_metrics")
    assert jobs.partitions(alone)[0]["messages"] == 15
