"""Disks without room: writes are refused and say so, reads and elections go on, and it heals when room is made."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest
import requests

from myqueue.protocol.errors import DiskFull
from tests.calls import Calls, assert_failure
from tests.cluster import BROKERS
from tests.process_cluster import ProcessCluster, process_cluster
from tests.small_disk import small_disk
from tests.waiting import throughout, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

DISK_BYTES = 320 << 20
SMALLER_JOURNAL = {"MYQUEUE_JOURNAL_SEGMENT_BYTES": str(20 << 20)}
LARGE = "x" * 900_000
SMALL = "x" * 10_000
ANSWER_S = 5.0
HEALED_S = 10.0
GROWTH_BYTES = 80 << 20  # max_open_body_bytes and a partition's pending_bytes; twice as much is refused


def make(tmp_path: Path, names: tuple[str, ...]) -> Iterator[ProcessCluster]:
    """These brokers have small disks."""
    with ExitStack() as stack:
        data = {name: stack.enter_context(small_disk(tmp_path, name, DISK_BYTES)) for name in names}
        cluster = stack.enter_context(process_cluster(tmp_path, data))
        cluster.environment = SMALLER_JOURNAL
        cluster.start_all()
        cluster.await_placement()
        yield cluster


@pytest.fixture
def all_small(tmp_path: Path) -> Iterator[ProcessCluster]:
    yield from make(tmp_path, BROKERS)


@pytest.fixture
def followers_small(tmp_path: Path) -> Iterator[ProcessCluster]:
    yield from make(tmp_path, BROKERS[1:])


def fill(calls: Calls, topic: str, producer: int) -> int:
    """Until nothing more is taken, not even a small message. How many bytes were taken."""
    taken_bytes = 0
    for message in (LARGE, SMALL * 10, SMALL):
        while (answer := calls.produce(topic, producer, message)).status_code == 200:
            taken_bytes += len(message)
            assert taken_bytes < DISK_BYTES, "the disk is never full"
        assert_full(answer)
    return taken_bytes


def assert_full(answer: requests.Response) -> None:
    assert_failure(answer, 507, DiskFull.error_code, retriable=True)


def test_full_disks_heal_when_a_topic_is_deleted(all_small: ProcessCluster) -> None:
    cluster = all_small
    with requests.Session() as session:
        calls = Calls(cluster.url, session)
        kept, large = calls.topic("kept"), calls.topic("large")
        producer, consumer = calls.producer(kept), calls.consumer(kept)
        for number in range(10):
            calls.sent(kept, producer, f"kept {number}")
        taken_bytes = fill(calls, large, calls.producer(large))
        assert taken_bytes > DISK_BYTES // 4, "most of the disk can be used"
        until(lambda: is_refused(calls, kept, producer), within_s=10, what="all topics refuse")
        assert [calls.consume(kept, consumer).json()["message"] for _ in range(5)] == [f"kept {n}" for n in range(5)]

        leader = cluster.await_leader(kept, within_s=10)
        cluster.kill(leader)
        others = tuple(name for name in BROKERS if name != leader)
        cluster.await_leader(kept, within_s=15, among=others)
        cluster.launch(leader)
        assert [calls.consume(kept, consumer).json()["message"] for _ in range(5)] == [
            f"kept {n}" for n in range(5, 10)
        ]
        until(lambda: is_refused(calls, kept, producer), within_s=10, what="still full, with a leader")

        assert requests.delete(f"{cluster.url}/v1/topics/{large}", timeout=10).status_code == 200
        until(lambda: calls.produce(kept, producer, LARGE).status_code == 200, within_s=HEALED_S, what="writes work")
        again = calls.topic("again")
        second = calls.producer(again)
        for _ in range(20):
            calls.sent(again, second, LARGE)
        cluster.await_ready(within_s=20)
        assert [m["message"] for m in calls.drained(kept, consumer)] == [LARGE], "nothing that was refused"


def is_refused(calls: Calls, topic: str, producer: int) -> bool:
    answer = calls.produce(topic, producer, SMALL)
    if answer.status_code == 507:
        assert_full(answer)
        return True
    assert answer.status_code == 503, answer.text  # while a leader is elected
    return False


@pytest.mark.parametrize("leave_bytes", [8 << 20, 0])
def test_a_majority_of_full_followers_refuses_at_once(followers_small: ProcessCluster, leave_bytes: int) -> None:
    """Their disks fill up at once, not through this topic: what the leader sends them is refused."""
    cluster = followers_small
    with requests.Session() as session:
        calls = Calls(cluster.url, session)
        topic = calls.topic("led", partitions=3)
        partition_id = until(lambda: led_by_first(calls, topic), within_s=20, what="the first broker leads one")[0]
        producer = calls.producer(topic)
        for number in range(10):
            calls.sent(topic, producer, f"sent {number}", partition_id=partition_id)
        before = {name: resident_bytes(cluster, name) for name in (cluster.active_write_manager(), BROKERS[0])}
        peak = dict(before)
        for name in BROKERS[1:]:
            fill_disk(cluster.data_folder(name).resolve() / "ballast", leave_bytes)

        def send(_: int) -> tuple[int, str, float]:
            started_s = time.monotonic()
            with requests.Session() as own:
                answer = Calls(cluster.url, own).produce(topic, producer, LARGE, partition_id=partition_id)
            return answer.status_code, answer.json().get("outcome", ""), time.monotonic() - started_s

        with ThreadPoolExecutor(8) as pool:
            until(lambda: send(0)[0] == 507, within_s=10, what="writes are refused")
            for _ in range(12):
                answers = list(pool.map(send, range(16)))
                peak = {name: max(peak[name], resident_bytes(cluster, name)) for name in peak}
                assert {(status, outcome) for status, outcome, _ in answers} == {(507, "not_written")}, answers
                assert max(seconds for *_, seconds in answers) < ANSWER_S, answers
        assert all(peak[name] - before[name] < GROWTH_BYTES for name in peak), (before, peak)
        consumer = calls.consumer(topic, **{"from": "earliest"})
        read = [calls.consume(topic, consumer, partition_id=partition_id).json()["message"] for _ in range(10)]
        assert read == [f"sent {n}" for n in range(10)]
        throughout(
            lambda: calls.partitions(topic).json()["partitions"][partition_id]["leader"] is not None,
            for_s=2,
            what="the partition has a leader",
        )
        for name in BROKERS[1:]:
            (cluster.data_folder(name).resolve() / "ballast").unlink()
        until(
            lambda: calls.produce(topic, producer, "healed", partition_id=partition_id).status_code == 200,
            within_s=HEALED_S,
            what="writes work again",
        )
        left = [m["message"] for m in calls.drained(topic, consumer, partition_id=partition_id)]
        assert [value for value in left if value != LARGE] == ["healed"]


def resident_bytes(cluster: ProcessCluster, name: str) -> int:
    pid = cluster.pid(name)
    assert pid is not None
    size_bytes: int = psutil.Process(pid).memory_info().rss
    return size_bytes


def led_by_first(calls: Calls, topic: str) -> list[int]:
    return [p["partition_id"] for p in calls.partitions(topic).json()["partitions"] if p["leader"] == 1]


def fill_disk(ballast: Path, leave_bytes: int) -> None:
    """The broker writes meanwhile: nothing left is nothing left for either."""
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while psutil.disk_usage(str(ballast.parent)).free > leave_bytes:
            file.write(bytes(1 << 20))
