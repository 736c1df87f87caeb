"""Processes that die, hang or stay away while clients are at work: what was acknowledged stays, and all come back."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests

from myqueue.protocol.errors import NoLeader
from tests import history
from tests.calls import Calls, assert_failure
from tests.cluster import STANDBYS, Cluster
from tests.waiting import let_pass, until
from tests.workload import running_load

pytestmark = pytest.mark.timeout(90)


def await_all_leaders(calls: Calls, topic: str, *, within_s: float) -> None:
    def all_led() -> bool:
        answer = calls.partitions(topic)
        return answer.status_code == 200 and all(p["leader"] is not None for p in answer.json()["partitions"])

    until(all_led, within_s=within_s, what=f"every partition of {topic} has a leader")


def test_only_replica_that_stays_away(cluster: Cluster, calls: Calls, topic_name: str) -> None:
    """Its partitions have no leader and say so at once; the others go on; it comes back with all it had."""
    assert calls.create_topic(topic_name, partitions=3, replication=1).status_code == 201
    producer, consumer = calls.producer(topic_name), calls.consumer(topic_name)
    leaders = [partition["leader"] for partition in calls.partitions(topic_name).json()["partitions"]]
    gone, *others = sorted(range(3), key=lambda partition_id: leaders[partition_id] != 3)
    key = {"Idempotency-Key": "once"}
    first = calls.produce(topic_name, producer, "before", key, partition_id=gone)
    cluster.stop("broker-3")

    def assert_no_leader() -> None:
        started_s = time.monotonic()
        answer = calls.produce(topic_name, producer, "lost", partition_id=gone)
        assert time.monotonic() - started_s < 5
        assert_failure(answer, 503, 50302, retriable=True)
        assert int(answer.headers["Retry-After"]) >= 1

    assert_no_leader()
    for partition_id in others:
        assert calls.sent(topic_name, producer, "elsewhere", partition_id=partition_id) == (partition_id, 0)
        assert calls.consume(topic_name, consumer, partition_id=partition_id).json()["message"] == "elsewhere"
    listed = calls.partitions(topic_name).json()["partitions"]
    assert [p["leader"] for p in listed] == [None if leader == 3 else leader for leader in leaders]
    read = calls.consume(topic_name, consumer, partition_id=gone)
    assert_failure(read, 503, 50302, outcome=None, retriable=True)
    assert_failure(calls.size(topic_name, consumer), 503, 50302, outcome=None, retriable=True)
    offsets = calls.get(f"/v1/topics/{topic_name}/offsets")
    assert_failure(offsets, 503, 50302, outcome=None, retriable=True)

    def placed_elsewhere() -> bool:
        name = f"{topic_name}-{time.monotonic_ns()}"
        calls.topic(name, partitions=3)
        return {p["leader"] for p in calls.partitions(name).json()["partitions"]} == {1, 2}

    until(placed_elsewhere, within_s=10, what="new partitions go to brokers that are there")
    assert_no_leader()

    cluster.start("broker-3")
    await_all_leaders(calls, topic_name, within_s=15)
    again = calls.produce(topic_name, producer, "before", key, partition_id=gone)
    assert (again.status_code, again.json()) == (200, first.json())
    assert [(m["message"], m["offset"]) for m in calls.drained(topic_name, consumer)] == [("before", 0)]


@pytest.mark.slow
def test_most_replicas_that_stay_away(cluster: Cluster, calls: Calls, topic_name: str) -> None:
    """One of three goes unnoticed. Two of three: refused at once, and nothing is forgotten."""
    calls.topic(topic_name, partitions=3)
    producer, consumer = calls.producer(topic_name), calls.consumer(topic_name)
    for partition_id in range(3):
        assert calls.sent(topic_name, producer, "before", partition_id=partition_id) == (partition_id, 0)
    cluster.stop("broker-1")
    for partition_id in range(3):
        cluster.await_leader(topic_name, partition_id, within_s=5, among=("broker-2", "broker-3"))
        assert calls.sent(topic_name, producer, "with two", partition_id=partition_id) == (partition_id, 1)
    cluster.stop("broker-2")
    outcomes = []
    for partition_id in range(3):
        started_s = time.monotonic()
        answer = calls.produce(topic_name, producer, "with one", partition_id=partition_id)
        assert time.monotonic() - started_s < 5.0
        assert (answer.status_code, answer.json()["error_code"]) == (503, NoLeader.error_code), answer.text
        outcomes.append(answer.json()["outcome"])
        assert int(answer.headers["Retry-After"]) >= 1
    assert_failure(calls.size(topic_name, consumer), 503, 50302, outcome=None, retriable=True)
    cluster.start("broker-1")
    cluster.start("broker-2")
    for partition_id in range(3):
        cluster.await_leader(topic_name, partition_id, within_s=15)
    read = [(m["partition_id"], m["message"]) for m in calls.drained(topic_name, consumer)]
    for partition_id in range(3):
        values = [value for where, value in read if where == partition_id]
        assert values[:2] == ["before", "with two"]
        assert values[2:] == [] or (values[2:], outcomes[partition_id]) == (["with one"], "unknown")


@pytest.mark.slow
def test_nginx_killed_under_load(cluster: Cluster, calls: Calls, topic_name: str, tmp_path: Path) -> None:
    calls.topic(topic_name, partitions=2)
    path = tmp_path / "history.jsonl"
    with running_load(cluster, topic_name, path, producers=2, consumers=2) as load:
        load.await_progress(within_s=20)
        died = cluster.kill("nginx")
        cluster.await_restart("nginx", died, within_s=20)
        cluster.await_ready(within_s=10)
        load.await_progress(within_s=20)
    assert history.violations(history.load(path)) == {}


@pytest.mark.parametrize("name", STANDBYS)
def test_one_standby_killed(cluster: Cluster, calls: Calls, topic_name: str, name: str) -> None:
    """The other one confirms, and its read manager reads elsewhere: no request fails."""
    calls.topic(topic_name)
    died = cluster.kill(name)
    for number in range(20):
        assert calls.register_consumer(topic_name, name=str(number)).status_code == 201
        assert calls.partitions(topic_name).status_code == 200
        until(lambda: topic_name in calls.get("/topics").json()["topics"], within_s=10, what="the cached list ages")
    cluster.await_restart(name, died, within_s=20)


def test_no_standby_left(cluster: Cluster, calls: Calls, topic_name: str) -> None:
    """No write can be confirmed: metadata stands still and says so; messages and listings go on; then all recovers."""
    calls.topic(topic_name)
    producer, consumer = calls.producer(topic_name), calls.consumer(topic_name)
    calls.sent(topic_name, producer, "before")
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(cluster.stop, STANDBYS))
    unsure = f"{topic_name}-unsure"
    attempts: dict[str, Callable[[], requests.Response]] = {
        "topic": lambda: calls.create_topic(unsure, partitions=1),
        "producer": lambda: calls.register_producer(topic_name, name="unsure"),
        "consumer": lambda: calls.register_consumer(topic_name, name="unsure"),
    }
    for what, attempt in attempts.items():
        started_s = time.monotonic()
        answer = attempt()
        assert time.monotonic() - started_s < 8, what
        # After the first one, or a write of the write manager's own, nothing more is tried before a standby has it.
        outcome = answer.json()["outcome"]
        assert outcome == "not_written" or what == "topic"
        assert_failure(answer, 503, 50303, outcome=outcome, retriable=True)
        assert int(answer.headers["Retry-After"]) >= 1
    claim = calls.consume(topic_name, consumer)
    assert (claim.status_code, claim.json()["status"]) == (503, "failure"), "a claim that is not stored is not answered"
    assert int(claim.headers["Retry-After"]) >= 1
    assert calls.get("/topics").status_code == 200
    assert calls.partitions(topic_name).json()["partitions"][0]["end_offset"] == 1
    assert calls.size(topic_name, consumer).status_code == 200
    calls.sent(topic_name, producer, "meanwhile")

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(cluster.start, STANDBYS))
    until(
        lambda: calls.register_consumer(topic_name).status_code == 201,
        within_s=20,
        what="registrations are taken again",
    )
    # Answers that only memory backs ("nothing to read") need a lease that a standby has confirmed.
    cluster.await_verified(within_s=20)
    assert [m["message"] for m in calls.drained(topic_name, consumer)] == ["before", "meanwhile"]
    assert attempts["topic"]().status_code in (201, 409), "made now, or made then"
    assert calls.partitions(unsure).status_code == 200
    for what in ("producer", "consumer"):
        first, second = attempts[what](), attempts[what]()
        assert first.status_code in (200, 201), first.text
        assert (second.status_code, second.json()) == (200, first.json())


@pytest.mark.slow
def test_read_manager_that_hangs(cluster: Cluster, calls: Calls, topic_name: str) -> None:
    """8 s after it stopped answering no request is sent to it any more; those it has are answered when it resumes."""
    calls.topic(topic_name)
    url = f"{cluster.url}/topics/{topic_name}/partitions"
    cluster.pause("read-manager-2")
    with ThreadPoolExecutor(6) as pool:
        caught = [pool.submit(requests.get, url, timeout=45) for _ in range(6)]
        let_pass(8.0)  # the health check has noticed
        for _ in range(40):
            assert requests.get(url, timeout=3).status_code == 200
        cluster.resume("read-manager-2")
        assert [future.result().status_code for future in caught] == [200] * 6


@pytest.mark.slow
def test_read_managers_killed_in_turn(cluster: Cluster, calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name)
    for name in ("read-manager-1", "read-manager-2"):
        died = cluster.kill(name)
        for _ in range(40):
            assert calls.partitions(topic_name).status_code == 200
        cluster.await_restart(name, died, within_s=20)
