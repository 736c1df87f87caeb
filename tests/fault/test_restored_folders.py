"""Data folders that were put back from a backup, or under another broker: what they promised since is not forgotten."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.calls import Calls
from tests.cluster import Cluster
from tests.fault.damaged_replicas import Writer, await_same, incarnation_of
from tests.waiting import let_pass, throughout, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

FIRST, SECOND, THIRD = NAMES = ["broker-1", "broker-2", "broker-3"]


@pytest.fixture
def copy(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "copy"
    shutil.rmtree(tmp_path / "copy", ignore_errors=True)


def put_back(cluster: Cluster, name: str, copy: Path) -> None:
    cluster.erase(name)
    shutil.copytree(copy, cluster.data_folder(name))


def await_another_member(cluster: Cluster, name: str, topic: str, incarnation: int) -> None:
    topic_id = cluster.topic_id(topic)

    def is_voter() -> bool:
        replica = cluster.replica(name, topic_id)
        assert replica is not None
        return replica.incarnation != incarnation and replica.is_voter and not replica.is_changing

    until(is_voter, within_s=40, what=f"{name} is a voter again, as another member")


def test_an_older_copy_does_not_elect_a_leader_that_lacks_messages(
    cluster: Cluster, calls: Calls, topic_name: str, copy: Path
) -> None:
    """What the third broker acknowledged is not in its folder any more: with the first one it would be a majority."""
    assert calls.create_topic(topic_name, partitions=1, replication=3).status_code == 201
    writer = Writer(calls, topic_name, 20)
    before = incarnation_of(cluster, THIRD, topic_name)
    cluster.stop(THIRD)
    shutil.copytree(cluster.data_folder(THIRD), copy)
    cluster.start(THIRD)
    cluster.await_voter(THIRD, topic_name, within_s=20)
    cluster.stop(FIRST)
    for _ in range(20):
        writer.write()
    for name in (SECOND, THIRD):
        cluster.stop(name)
    log = len(cluster.log_of(THIRD))
    put_back(cluster, THIRD, copy)
    for name in (FIRST, THIRD):
        cluster.start(name)
    until(lambda: "an older copy" in cluster.log_of(THIRD)[log:], within_s=20, what="the copy is recognised")
    producer = calls.producer(topic_name)
    throughout(
        lambda: calls.produce(topic_name, producer, "refused").status_code == 503,
        for_s=6,
        what="no leader without the second broker",
    )
    cluster.start(SECOND)
    await_another_member(cluster, THIRD, topic_name, before)
    writer.write(within_s=20)
    read = [value for _, value in cluster.messages(SECOND, topic_name)]
    assert [value for value in read if value != b"refused"] == writer.written
    await_same(cluster, topic_name, NAMES, read)


def test_a_copy_of_a_running_broker_is_recognised_by_its_journal(
    cluster: Cluster, calls: Calls, topic_name: str, copy: Path
) -> None:
    """It was started as often as the original: only the number of the last frame is lower."""
    assert calls.create_topic(topic_name, partitions=1, replication=3).status_code == 201
    writer = Writer(calls, topic_name, 20)
    before = incarnation_of(cluster, THIRD, topic_name)
    cluster.pause(THIRD)
    shutil.copytree(cluster.data_folder(THIRD), copy)
    cluster.resume(THIRD)
    for _ in range(20):
        writer.write()
    cluster.await_voter(THIRD, topic_name, within_s=20)
    await_same(cluster, topic_name, NAMES, writer.written)
    let_pass(2.5)  # heartbeats, every second, carry the number of the last frame
    cluster.stop(THIRD)
    log = len(cluster.log_of(THIRD))
    put_back(cluster, THIRD, copy)
    cluster.start(THIRD)
    until(lambda: "an older copy" in cluster.log_of(THIRD)[log:], within_s=20, what="the copy is recognised")
    await_another_member(cluster, THIRD, topic_name, before)
    writer.write(within_s=20)
    await_same(cluster, topic_name, NAMES, writer.written)


def test_the_folder_of_another_broker_is_refused(cluster: Cluster, calls: Calls, topic_name: str, copy: Path) -> None:
    assert calls.create_topic(topic_name, partitions=1, replication=3).status_code == 201
    writer = Writer(calls, topic_name, 10)
    for name in (SECOND, THIRD):
        cluster.stop(name)
    shutil.copytree(cluster.data_folder(SECOND), copy)
    put_back(cluster, SECOND, cluster.data_folder(THIRD))
    runner, log = len(cluster.log_of("runner")), len(cluster.log_of(SECOND))
    cluster.local.home.stop_mark(SECOND).unlink()
    until(
        lambda: "belongs to broker 3, not to broker 2" in cluster.log_of(SECOND)[log:],
        within_s=20,
        what="it is refused",
    )
    until(lambda: '"returncode": 2,' in cluster.log_of("runner")[runner:], within_s=10, what="it ends with status 2")
    cluster.stop(SECOND)
    put_back(cluster, SECOND, copy)
    for name in (SECOND, THIRD):
        cluster.start(name)
    writer.write(within_s=20)
    await_same(cluster, topic_name, NAMES, writer.written)
