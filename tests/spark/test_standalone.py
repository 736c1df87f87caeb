"""Source, sink, jobs and scheduler on a Spark cluster of processes, one of whose workers is killed in the middle."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from myqueue import Admin, Producer
from spark.config import JOB_NAMES
from tests.cluster import Cluster
from tests.spark.standalone_cluster import CHECKOUT, EXECUTOR, StandaloneCluster, standalone_cluster
from tests.spark.stored import stored
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # four Javas and a stack have to start

MESSAGES = 20_000
RUN_S = 150.0


@pytest.fixture
def standalone(stack: Cluster, tmp_path: Path) -> Iterator[StandaloneCluster]:
    with standalone_cluster(tmp_path, stack.secret, workers=2) as cluster:
        yield cluster


def end_offsets(stack: Cluster, topic: str) -> int:
    answer = requests.get(f"{stack.url}/v1/topics/{topic}/offsets", timeout=10).json()
    return sum(one["end_offset"] for one in answer["partitions"])


def test_a_cluster_goes_on_when_a_worker_dies(
    stack: Cluster, standalone: StandaloneCluster, topic_name: str, tmp_path: Path
) -> None:
    target = f"{topic_name}-copy"
    expected = Counter(b"%d" % number for number in range(MESSAGES))
    with Admin(stack.url) as admin:
        for name in (topic_name, target):
            admin.create_topic(name, 2)
        admin.register_consumer(topic_name)
    with Producer(stack.url, topic_name) as producer:
        producer.send_many(list(expected)).result(30)

    # The source and the sink, with a kill after the first micro-batch and long before the last.
    environment = {**os.environ, "SPARK_MASTER": standalone.url}
    arguments = [stack.url, topic_name, target, str(tmp_path / "checkpoint")]
    with (tmp_path / "driver.log").open("wb") as log:
        driver = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.relaying", *arguments],
            cwd=CHECKOUT,
            env=environment,
            stdout=log,
            stderr=log,
        )
    try:
        until(lambda: end_offsets(stack, target) > 0, within_s=RUN_S, what="a micro-batch is published")
        assert standalone.executors("worker-1")
        standalone.kill("worker-1")
        assert end_offsets(stack, target) < MESSAGES
        assert driver.wait(RUN_S) == 0, (tmp_path / "driver.log").read_text()
    finally:
        driver.kill()
        driver.wait()
    assert Counter(one.value for one in stored(stack.url, target)) == expected
    standalone.start_worker("worker-3")

    # The scheduler and its jobs. Only this driver knows the secret.
    settings = {
        "MYQUEUE_URL": stack.url,
        "MYQUEUE_WRITE_MANAGER_URLS": ",".join(stack.internal_urls),
        "MYQUEUE_CLUSTER_SECRET": stack.secret,
        "MYQUEUE_SPARK_DIR": str(tmp_path / "jobs"),
        **{f"MYQUEUE_SPARK_{job.upper()}": "interval:3s" for job in JOB_NAMES},
    }
    with (tmp_path / "scheduler.log").open("wb") as log:
        scheduler = subprocess.Popen(
            [sys.executable, "-m", "spark", "scheduler"],
            cwd=CHECKOUT,
            env={**environment, **settings},
            stdout=log,
            stderr=log,
        )

    def succeeded(job: str) -> bool:
        assert scheduler.poll() is None, (tmp_path / "scheduler.log").read_text()
        runs = requests.get(f"{stack.url}/v1/stats/runs", {"job": job, "limit": "20"}, timeout=10).json()["runs"]
        own = [run for run in runs if run["holder"].endswith(f".{scheduler.pid}")]
        return any(run["outcome"] == "succeeded" for run in own)

    try:
        for job in JOB_NAMES:
            until(lambda job=job: succeeded(job), within_s=RUN_S, what=f"{job} succeeds")  # type: ignore[misc]
        words = standalone.words_of_all()
        assert sum(EXECUTOR in each for each in words.values()) >= 2
        assert any("spark.worker_daemon" in each for each in words.values())
        assert [pid for pid, each in words.items() if stack.secret in each] == []
        scheduler.terminate()
        assert scheduler.wait(60) == 0
    finally:
        scheduler.kill()
        scheduler.wait()
    listed = requests.get(f"{stack.url}/v1/stats/partitions", {"topic": target}, timeout=10).json()["partitions"]
    assert sum(one["messages"] for one in listed) == MESSAGES
