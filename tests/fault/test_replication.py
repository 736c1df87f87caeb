"""Brokers that die, hang or lose their data while clients are at work: nothing acknowledged is lost, writes go on."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from uuid import UUID

import pytest
import requests

from myqueue.protocol import batch as batches
from myqueue.protocol import errors, http_headers, internal
from myqueue.protocol.batch import Message
from tests import history
from tests.calls import Calls
from tests.cluster import BROKERS, Cluster
from tests.replicas import StoredReplica, differences, stored_log
from tests.stored_files import flip_bit, flip_frame, partition_file_with
from tests.waiting import let_pass, until
from tests.workload import Load, running_load

pytestmark = pytest.mark.timeout(300)

LONGEST_OUTAGE_S = 10.0
RESTARTED_S = 60.0  # of a busy machine


def others(*names: str) -> tuple[str, ...]:
    return tuple(name for name in BROKERS if name not in names)


def assert_same_files(cluster: Cluster, topic: str, partitions: int, *, within_s: float = 15) -> None:
    """The replicas' files agree, entry by entry, as soon as the last one has caught up."""
    topic_id = cluster.topic_id(topic)
    for partition_id in range(partitions):
        leader = cluster.await_leader(topic, partition_id, within_s=10)
        end_offset = await_end(cluster, leader, topic_id, partition_id, 0, within_s=1)
        for name in BROKERS:
            await_end(cluster, name, topic_id, partition_id, end_offset, within_s=within_s)
        logs = [stored_log(cluster.data_folder(name), topic_id, partition_id) for name in BROKERS]
        assert differences(logs, end_offset) == []


def await_end(
    cluster: Cluster, name: str, topic_id: UUID, partition_id: int, end_offset: int, *, within_s: float
) -> int:
    """How many messages the broker has stored, when it has at least that many."""

    def look() -> StoredReplica | None:
        replica = cluster.replica(name, topic_id, partition_id)
        return replica if replica is not None and replica.end_offset >= end_offset else None

    return until(look, within_s=within_s, what=f"{name} has {end_offset} messages").end_offset


def kill_leader(cluster: Cluster, load: Load, topic: str) -> tuple[str, int]:
    name = cluster.await_leader(topic, within_s=10)
    load.recorder.fault("kill", name)
    died = cluster.kill(name)
    return name, died


def kill_leaders(cluster: Cluster, topic: str, path: Path, kills: int) -> list[float]:
    """The outages in seconds, in the order of the kills."""
    with running_load(cluster, topic, path, producers=4, consumers=2) as load:
        load.await_progress(within_s=20)
        for _ in range(kills):
            name, died = kill_leader(cluster, load, topic)
            cluster.await_leader(topic, within_s=LONGEST_OUTAGE_S, among=others(name))
            load.await_progress(within_s=20, produced=50, consumed=10)
            cluster.await_restart(name, died, within_s=RESTARTED_S)
            cluster.await_voter(name, topic, within_s=20)
    events = history.load(path)
    assert history.violations(events) == {}
    return history.outages_s(events, "kill")


def test_leader_killed_five_times(cluster: Cluster, calls: Calls, topic_name: str, tmp_path: Path) -> None:
    """As often as make test has time for; the slow test kills twenty."""
    calls.topic(topic_name, partitions=1)
    outages_s = kill_leaders(cluster, topic_name, tmp_path / "history.jsonl", 5)
    print(f"write outages: p50 {median(outages_s):.2f} s, max {max(outages_s):.2f} s of {len(outages_s)} kills")
    assert max(outages_s) <= LONGEST_OUTAGE_S
    assert_same_files(cluster, topic_name, 1)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_leader_killed_many_times(cluster: Cluster, calls: Calls, topic_name: str, tmp_path: Path) -> None:
    calls.topic(topic_name, partitions=1)
    outages_s = kill_leaders(cluster, topic_name, tmp_path / "history.jsonl", 20)
    print(f"write outages: p50 {median(outages_s):.2f} s, max {max(outages_s):.2f} s of {len(outages_s)} kills")
    assert median(outages_s) <= 4
    assert max(outages_s) <= LONGEST_OUTAGE_S
    assert_same_files(cluster, topic_name, 1)


def test_leader_that_hangs(cluster: Cluster, calls: Calls, topic_name: str, tmp_path: Path) -> None:
    """Another leads meanwhile. Requests that waited in its socket are refused when it resumes, also for the end."""
    calls.topic(topic_name, partitions=1)
    topic_id = cluster.topic_id(topic_name)
    path = tmp_path / "history.jsonl"
    with running_load(cluster, topic_name, path, producers=4, consumers=2) as load, ThreadPoolExecutor(2) as pool:
        load.await_progress(within_s=20)
        name = cluster.await_leader(topic_name, within_s=5)
        paused_s = time.monotonic()
        load.recorder.fault("pause", name)
        cluster.pause(name)
        append = pool.submit(_append, cluster, name, topic_id, b"to a leader that was")
        offsets = pool.submit(_offsets, cluster, name, topic_id)
        cluster.await_leader(topic_name, within_s=LONGEST_OUTAGE_S, among=others(name))
        load.await_progress(within_s=20, produced=100)
        let_pass(max(0.0, paused_s + 5 - time.monotonic()))
        cluster.resume(name)
        assert append.result().http_status in (421, 503)
        assert offsets.result() is None
        load.await_progress(within_s=20)
    events = history.load(path)
    assert history.violations(events) == {}
    assert max(history.outages_s(events, "pause")) <= LONGEST_OUTAGE_S
    assert_same_files(cluster, topic_name, 1)


def _append(cluster: Cluster, name: str, topic_id: UUID, value: bytes) -> errors.MyQueueError:
    headers = {http_headers.SECRET: cluster.secret, "Content-Type": http_headers.BATCH_TYPE}
    data = batches.encode(topic_id, 0, [Message(value)])
    item = internal.APPEND_ITEM.pack(len(data)) + data
    answer = requests.post(cluster.address_of(name) + internal.APPEND.path, data=item, headers=headers, timeout=20)
    (refused,) = answer.json()["answers"]
    return errors.from_body(refused["error"], answer.status_code)


def _offsets(cluster: Cluster, name: str, topic_id: UUID) -> object:
    asked = {"partitions": [{"topic_id": str(topic_id), "partition_id": 0}], "timestamp": None}
    return cluster.ask(cluster.address_of(name) + internal.OFFSETS.path, asked, timeout_s=20).json()["offsets"][0]


def test_all_brokers_killed_at_once(cluster: Cluster, calls: Calls, topic_name: str, tmp_path: Path) -> None:
    calls.topic(topic_name, partitions=3)
    path = tmp_path / "history.jsonl"
    with running_load(cluster, topic_name, path, producers=4, consumers=2) as load:
        load.await_progress(within_s=20)
        load.recorder.fault("kill all", "brokers")
        died = {name: cluster.kill(name) for name in ("broker-3", "broker-1", "broker-2")}
        killed_s = time.monotonic()
        for name, pid in died.items():
            cluster.await_restart(name, pid, within_s=RESTARTED_S)
        for partition_id in range(3):
            cluster.await_leader(topic_name, partition_id, within_s=RESTARTED_S)
        assert time.monotonic() - killed_s <= RESTARTED_S
        load.await_progress(within_s=20)
    assert history.violations(history.load(path)) == {}
    assert_same_files(cluster, topic_name, 3)


@pytest.mark.slow
def test_broker_that_lost_its_data(cluster: Cluster, calls: Calls, topic_name: str, tmp_path: Path) -> None:
    """It comes back as a new member and is filled by the others; then it counts: one of those may die."""
    calls.topic(topic_name, partitions=2)
    path = tmp_path / "history.jsonl"
    topic_id = cluster.topic_id(topic_name)
    with running_load(cluster, topic_name, path, producers=4, consumers=2) as load:
        load.await_progress(within_s=20)
        before = cluster.replica("broker-2", topic_id)
        cluster.stop("broker-2")
        cluster.erase("broker-2")
        cluster.start("broker-2")
        for partition_id in range(2):
            cluster.await_voter("broker-2", topic_name, partition_id, within_s=20)
        after = cluster.replica("broker-2", topic_id)
        assert before is not None
        assert after is not None
        assert after.incarnation != before.incarnation
        cluster.stop("broker-1")
        for partition_id in range(2):
            cluster.await_leader(topic_name, partition_id, within_s=10, among=others("broker-1"))
        load.await_progress(within_s=20)
        cluster.start("broker-1")
    assert history.violations(history.load(path)) == {}
    assert_same_files(cluster, topic_name, 2)


def restart(cluster: Cluster, name: str) -> None:
    """The journal begins anew: what was stored before is in the partitions' files only."""
    cluster.stop(name)
    cluster.start(name)
    cluster.await_healthy(within_s=20)


def await_rebuilt(cluster: Cluster, topic: str, incarnation: int, partition_id: int = 0, *, within_s: float) -> None:
    """The replica on broker 3 was removed from its group, came back as another member and has caught up."""
    until(
        lambda: incarnation_of(cluster, topic, partition_id) != incarnation,
        within_s=within_s,
        what=f"the replica of {topic} is another member",
    )
    cluster.await_voter("broker-3", topic, partition_id, within_s=within_s)


def first_message(cluster: Cluster, name: str, topic: str) -> requests.Response | None:
    path = internal.MESSAGES.path_for(topic_id=cluster.topic_id(topic), partition_id=0)
    try:
        return cluster.ask(f"{cluster.address_of(name)}{path}?offset=0&limit=1")
    except requests.RequestException:
        return None


@pytest.mark.slow
def test_a_flipped_bit_in_a_message(cluster: Cluster, calls: Calls, topic_name: str, tmp_path: Path) -> None:
    """Found when it is read, and made again from the other replicas, which go on all the time."""
    path = tmp_path / "history.jsonl"
    topic = calls.topic(topic_name, partitions=1)
    calls.sent(topic, calls.producer(topic), f"needle {topic}")
    other = calls.topic(f"{topic_name}-load", partitions=3)
    with running_load(cluster, other, path, producers=4, consumers=2) as load:
        load.await_progress(within_s=20)
        cluster.await_voter("broker-3", topic, within_s=20)
        restart(cluster, "broker-3")
        cluster.stop("broker-3")
        before = incarnation_of(cluster, topic)
        needle = f"needle {topic}".encode()
        flip_bit(partition_file_with(cluster.data_folder("broker-3"), needle), needle)
        cluster.start("broker-3")

        def is_found() -> bool:
            answer = first_message(cluster, "broker-3", topic)
            # By the time of this answer another replica may have taken the place of the damaged one.
            is_right = answer is None or answer.status_code != 200 or needle in answer.content
            assert is_right, "it is never served"
            log = cluster.log_of("broker-3").splitlines()
            return any("partition is damaged" in line and topic in line for line in log)

        until(is_found, within_s=20, what="the damage is found")
        await_rebuilt(cluster, topic, before, within_s=20)
        load.await_progress(within_s=20)
    assert [value for _, value in cluster.messages("broker-3", topic)] == [needle]
    assert_same_files(cluster, topic, 1)
    assert history.violations(history.load(path)) == {}
    assert_same_files(cluster, other, 3)
    aside = cluster.data_folder("broker-3") / "aside"
    until(lambda: not list(aside.glob("*")), within_s=10, what="what was kept aside is removed")


@pytest.mark.slow
def test_a_flipped_bit_in_a_journal(cluster: Cluster, calls: Calls, topic_name: str, tmp_path: Path) -> None:
    """A vote may have been in it: no replica of the broker votes any more before its group has made it again."""
    path = tmp_path / "history.jsonl"
    topic = calls.topic(topic_name, partitions=1)
    other = calls.topic(f"{topic_name}-load", partitions=3)
    with running_load(cluster, other, path, producers=4, consumers=2) as load:
        cluster.await_voter("broker-3", topic, within_s=20)
        calls.sent(topic, calls.producer(topic), f"needle {topic}")
        load.await_progress(within_s=20)
        cluster.stop("broker-3")
        replicas = [(topic, 0), *((other, partition_id) for partition_id in range(3))]
        before = [incarnation_of(cluster, *replica) for replica in replicas]
        flip_frame(cluster.data_folder("broker-3"), f"needle {topic}".encode())
        cluster.start("broker-3")
        for (name, partition_id), incarnation in zip(replicas, before, strict=True):
            await_rebuilt(cluster, name, incarnation, partition_id, within_s=40)
        load.await_progress(within_s=20)
    assert "the journal is damaged" in cluster.log_of("broker-3")
    assert history.violations(history.load(path)) == {}
    assert_same_files(cluster, topic, 1)
    assert_same_files(cluster, other, 3)


def incarnation_of(cluster: Cluster, topic: str, partition_id: int = 0) -> int:
    replica = cluster.replica("broker-3", topic, partition_id)
    assert replica is not None
    return replica.incarnation
