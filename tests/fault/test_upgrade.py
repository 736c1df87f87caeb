"""A cluster of the last release is upgraded under load: managers first, then each broker, from an empty folder.

What brokers of the last release stored cannot be read by this one: an upgraded broker is filled by the others.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from typer.testing import CliRunner

from myqueue.cli.app import app
from tests import history
from tests.calls import Calls
from tests.cluster import BROKERS, READ_MANAGERS
from tests.process_cluster import ProcessCluster, last_release, process_cluster
from tests.replicas import differences, stored_log
from tests.waiting import until
from tests.workload import running_load

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]

PARTITIONS = 3
KEY = {"Idempotency-Key": "only once"}
LARGE = "x" * 10_000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ProcessCluster]:
    """All of it is the last release."""
    release = last_release(tmp_path / "release")
    with process_cluster(tmp_path) as cluster:
        cluster.release = release
        cluster.start_all()
        cluster.await_placement()
        yield cluster


@pytest.fixture
def calls(cluster: ProcessCluster) -> Iterator[Calls]:
    with requests.Session() as session:
        yield Calls(cluster.url, session)


def bounds(calls: Calls, topic: str, partition_id: int = 0) -> tuple[int, int]:
    partition = calls.partitions(topic).json()["partitions"][partition_id]
    return partition["beginning_offset"], partition["end_offset"]


def make_cut_topic(calls: Calls, topic: str) -> int:
    """Its log does not start at the beginning any more: a new replica needs a snapshot. The keyed message is cut."""
    assert calls.create_topic(topic, partitions=1, retention_bytes=100_000).status_code == 201
    producer = calls.producer(topic)
    first = calls.produce(topic, producer, "first", KEY)
    assert (first.status_code, first.json()["offset"]) == (200, 0), first.text
    fill(calls, topic, producer)
    return producer


def fill(calls: Calls, topic: str, producer: int) -> None:
    """So much that what was there is cut."""
    end = bounds(calls, topic)[1]
    for _ in range(30):
        calls.sent(topic, producer, LARGE)
    until(lambda: bounds(calls, topic)[0] >= end, within_s=20, what="the log is cut")


def upgrade(cluster: ProcessCluster, name: str, *, refused_first: bool) -> None:
    cluster.stop(name)
    if refused_first:
        assert (cluster.data_folder(name) / "broker.db").exists()
        cluster.launch(name)
        assert cluster.exit_status(name, within_s=30) == 2
        assert "empty its folder" in cluster.log_of(name)
        assert (cluster.data_folder(name) / "broker.db").exists()
    cluster.erase(name)
    cluster.start(name)


def await_voting(cluster: ProcessCluster, name: str, topics: dict[str, int]) -> None:
    """As the documents say: until `doctor` finds nothing. Then the next broker may go."""

    def finds_nothing() -> bool:
        done = CliRunner().invoke(app, ["doctor", "-o", "json", "--url", cluster.url])
        found = {finding["tier"]: finding["state"] for finding in json.loads(done.stdout)["findings"]}
        return all(found[tier] == "ok" for tier in ("brokers", "partitions", "replicas"))

    until(finds_nothing, within_s=60, what="doctor finds nothing")
    for topic, partitions in topics.items():
        for partition_id in range(partitions):
            cluster.await_voter(name, topic, partition_id, within_s=2)


def test_one_broker_at_a_time(cluster: ProcessCluster, calls: Calls, tmp_path: Path) -> None:
    topic, cut = calls.topic("loaded", partitions=PARTITIONS), "cut"
    producer = make_cut_topic(calls, cut)
    path = tmp_path / "history.jsonl"
    release = cluster.release
    with running_load(cluster, topic, path, producers=4, consumers=2, pause_s=0.01) as load:
        load.await_progress(within_s=30)
        cluster.release = None
        for name in ("write-manager-1", "write-manager-2", *READ_MANAGERS):  # the second one is new
            load.recorder.fault("upgrade", name)
            cluster.stop(name)
            cluster.start(name)
        load.await_progress(within_s=30)
        for name in BROKERS[:2]:
            load.recorder.fault("upgrade", name)
            upgrade(cluster, name, refused_first=name == BROKERS[0])
            await_voting(cluster, name, {topic: PARTITIONS, cut: 1})
            load.await_progress(within_s=30)
        # The last old broker was away while the log was cut: upgraded ones send it a snapshot.
        cluster.stop(BROKERS[2])
        fill(calls, cut, producer)
        cluster.release = release
        cluster.start(BROKERS[2])
        begin, end = bounds(calls, cut)
        until(
            lambda: [offset for offset, _ in cluster.messages(BROKERS[2], cut, start=begin)] == list(range(begin, end)),
            within_s=30,
            what="the old broker has caught up",
        )
        cluster.release = None
        upgrade(cluster, BROKERS[2], refused_first=False)
        await_voting(cluster, BROKERS[2], {topic: PARTITIONS, cut: 1})
        load.await_progress(within_s=30)
    assert history.violations(history.load(path)) == {}
    again = calls.produce(cut, producer, "first", KEY)
    assert again.status_code == 200, again.text
    assert again.json()["offset"] == 0, "the table of keys came along with the snapshots"
    for name, partitions in ((topic, PARTITIONS), (cut, 1)):
        for partition_id in range(partitions):
            await_same(cluster, name, partition_id, bounds(calls, name, partition_id)[1])


def await_same(cluster: ProcessCluster, topic: str, partition_id: int, end_offset: int) -> None:
    topic_id = cluster.topic_id(topic)

    def look() -> list[str] | None:
        logs = [stored_log(cluster.data_folder(name), topic_id, partition_id) for name in BROKERS]
        found.clear()
        found.extend(differences(logs, end_offset))
        return None if found else ["same"]

    found: list[str] = []
    until(look, within_s=20, what=f"all replicas of {topic}-{partition_id} are the same: {found}")
