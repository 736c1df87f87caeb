"""Topics that do not keep everything, and topics that are deleted: the same on all replicas."""

import time
from collections.abc import Callable

import pytest
import requests

from myqueue.protocol import http_headers, internal
from tests.calls import Calls, assert_failure, token_of
from tests.cluster import BROKERS, Cluster
from tests.replicas import keeps_topic
from tests.waiting import until

pytestmark = pytest.mark.timeout(90)

MESSAGE = "x" * 10_000
LOOKS_APART_S = 2.5  # a leader looks every second whether there is something to cut


def beginning_of(calls: Calls, topic: str) -> int:
    answer = calls.partitions(topic)
    assert answer.status_code == 200, answer.text
    beginning: int = answer.json()["partitions"][0]["beginning_offset"]
    return beginning


def starts_of(cluster: Cluster, topic: str) -> set[tuple[int, int]]:
    """Where the log starts in the files: one place, unless replicas differ."""
    topic_id = cluster.topic_id(topic)
    found = [cluster.replica(name, topic_id) for name in BROKERS]
    return {(-1, -1) if replica is None else (replica.start_index, replica.start_offset) for replica in found}


def await_cut(cluster: Cluster, calls: Calls, topic: str, is_there: Callable[[int], bool], *, within_s: float) -> int:
    """The beginning, once it is where it should be, stays there, and is in the same place in all three files."""
    seen: dict[int, float] = {}

    def look() -> int | None:
        beginning = beginning_of(calls, topic)
        rests = time.monotonic() - seen.setdefault(beginning, time.monotonic()) > LOOKS_APART_S
        same = {offset for _, offset in starts_of(cluster, topic)} == {beginning}
        return beginning if rests and same and is_there(beginning) else None

    return until(look, within_s=within_s, what="the log was cut, in the same place everywhere")


def fetch(cluster: Cluster, name: str, topic: str, offset: int) -> requests.Response:
    path = internal.MESSAGES.path_for(topic_id=cluster.topic_id(topic), partition_id=0)
    secret = {http_headers.SECRET: cluster.secret}
    return requests.get(
        cluster.address_of(name) + path, params={"offset": offset, "limit": 1}, headers=secret, timeout=5
    )


def test_retention_by_bytes(cluster: Cluster, calls: Calls, topic_name: str) -> None:
    """A consumer that was too slow goes on with the first message that is left."""
    assert calls.create_topic(topic_name, partitions=1, retention_bytes=300_000).status_code == 201
    producer, slow = calls.producer(topic_name), calls.consumer(topic_name)
    for number in range(10):
        calls.sent(topic_name, producer, f"{number} {MESSAGE}")
    assert calls.consume(topic_name, slow).json()["offset"] == 0
    for number in range(10, 100):
        calls.sent(topic_name, producer, f"{number} {MESSAGE}")
    start = await_cut(cluster, calls, topic_name, lambda beginning: beginning > 50, within_s=20)
    listed = calls.partitions(topic_name).json()["partitions"][0]
    assert listed["end_offset"] == 100
    assert listed["size"] == 100 - listed["beginning_offset"]
    assert 300_000 <= listed["size_bytes"] < 500_000
    for name in BROKERS:
        gone = fetch(cluster, name, topic_name, 1)
        assert gone.status_code == 410, gone.text
        assert gone.json()["details"] == {"beginning_offset": start}
        assert fetch(cluster, name, topic_name, start).status_code == 200
    read = calls.drained(topic_name, slow)
    assert [message["offset"] for message in read] == list(range(start, 100))
    assert [message["message"].split()[0] for message in read] == [str(number) for number in range(start, 100)]
    fresh = calls.consumer(topic_name, **{"from": "earliest"})
    assert calls.consume(topic_name, fresh).json()["offset"] == start
    assert calls.sent(topic_name, producer, "next") == (0, 100)


def test_retention_by_time(cluster: Cluster, calls: Calls, topic_name: str) -> None:
    assert calls.create_topic(topic_name, partitions=1, retention_ms=2000).status_code == 201
    producer = calls.producer(topic_name)
    for number in range(20):
        calls.sent(topic_name, producer, str(number))
    sent_s = time.monotonic()
    start = await_cut(cluster, calls, topic_name, lambda beginning: beginning == 20, within_s=20)
    assert (start, time.monotonic() - sent_s >= 2) == (20, True)
    late = calls.consumer(topic_name, **{"from": "earliest"})
    assert calls.consume(topic_name, late).status_code == 204
    kept = requests.patch(f"{cluster.url}/v1/topics/{topic_name}", json={"retention_ms": None}, timeout=15)
    assert kept.status_code == 200, kept.text
    assert calls.sent(topic_name, producer, "next") == (0, 20)
    assert calls.consume(topic_name, late).json()["offset"] == 20


def test_a_shortened_retention_deletes_and_reaches_a_broker_that_was_away(
    cluster: Cluster, calls: Calls, topic_name: str
) -> None:
    calls.topic(topic_name)
    producer = calls.producer(topic_name)
    for number in range(20):
        calls.sent(topic_name, producer, str(number))
    cluster.stop("broker-2")
    changed = requests.patch(f"{cluster.url}/v1/topics/{topic_name}", json={"retention_ms": 1000}, timeout=15)
    assert (changed.status_code, changed.json()["retention_ms"]) == (200, 1000)
    until(lambda: beginning_of(calls, topic_name) == 20, within_s=20, what="what is older is gone")
    assert calls.sent(topic_name, producer, "next") == (0, 20)
    cluster.start("broker-2")
    topic_id = cluster.topic_id(topic_name)

    def retentions() -> set[tuple[int | None, int | None] | None]:
        found = [cluster.replica(name, topic_id) for name in BROKERS]
        return {None if replica is None else replica.retention for replica in found}

    until(lambda: retentions() == {(1000, None)}, within_s=20, what="all three replicas have stored the new one")
    await_cut(cluster, calls, topic_name, lambda beginning: beginning == 21, within_s=20)
    removed = requests.patch(f"{cluster.url}/v1/topics/{topic_name}", json={"retention_ms": None}, timeout=15)
    assert (removed.status_code, removed.json()["retention_ms"]) == (200, None)
    assert retentions() == {(None, None)}, "brokers that answer have it before the request is answered"


@pytest.mark.slow
def test_cut_log_reaches_a_broker_that_lost_its_data(cluster: Cluster, calls: Calls, topic_name: str) -> None:
    """There is no whole log left to give it: it starts where the others start."""
    assert calls.create_topic(topic_name, partitions=1, retention_bytes=100_000).status_code == 201
    producer = calls.producer(topic_name)
    first = calls.produce(topic_name, producer, "first", {"Idempotency-Key": "first"})
    for number in range(60):
        calls.sent(topic_name, producer, f"{number} {MESSAGE}")
    await_cut(cluster, calls, topic_name, lambda beginning: beginning > 30, within_s=20)
    cluster.stop("broker-2")
    cluster.erase("broker-2")
    cluster.start("broker-2")
    cluster.await_voter("broker-2", topic_name, within_s=20)
    cluster.stop("broker-1")
    cluster.await_leader(topic_name, within_s=10, among=("broker-2", "broker-3"))
    again = calls.produce(topic_name, producer, "first", {"Idempotency-Key": "first"})
    assert (again.status_code, again.json()) == (200, first.json()), "what was written under a key is known for longer"
    assert calls.sent(topic_name, producer, "next") == (0, 61)
    cluster.start("broker-1")
    until(lambda: len(starts_of(cluster, topic_name)) == 1, within_s=10, what="all replicas start in the same place")


def test_topic_deleted_and_made_again(cluster: Cluster, calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name, partitions=2)
    old_id = cluster.topic_id(topic_name)
    producer, consumer = calls.producer(topic_name), calls.consumer(topic_name)
    for number in range(20):
        calls.sent(topic_name, producer, f"old {number}", partition_id=number % 2)
    assert all(keeps_topic(cluster.data_folder(name), old_id) for name in BROKERS)
    deleted = requests.delete(f"{cluster.url}/v1/topics/{topic_name}", timeout=10)
    assert deleted.status_code == 200, deleted.text
    assert_failure(calls.consume(topic_name, consumer), 404, 40403, outcome=None)
    assert_failure(calls.produce(topic_name, producer, "late"), 404, 40401)
    listed = calls.get("/topics", headers=token_of(deleted))
    assert listed.status_code in (200, 404), listed.text  # 404: there is none at all
    assert topic_name not in listed.json().get("topics", [])
    again = requests.delete(f"{cluster.url}/v1/topics/{topic_name}", timeout=10)
    assert_failure(again, 404, 40401)

    calls.topic(topic_name, partitions=2)
    new_id = cluster.topic_id(topic_name)
    assert new_id != old_id
    assert calls.consume(topic_name, consumer).status_code == 404, "a consumer of the old one is none of the new one"
    assert calls.produce(topic_name, producer, "late").status_code == 404
    producer, consumer = calls.producer(topic_name), calls.consumer(topic_name)
    assert calls.sent(topic_name, producer, "new", partition_id=0) == (0, 0)
    assert [message["message"] for message in calls.drained(topic_name, consumer)] == ["new"]

    def is_gone() -> bool:
        return not any(keeps_topic(cluster.data_folder(name), old_id) for name in BROKERS)

    until(is_gone, within_s=15, what="brokers have deleted what they held of the old one")
    for name in BROKERS:
        held = cluster.ask(cluster.address_of(name) + internal.BROKER_TOPICS.path).json()["topics"]
        assert str(old_id) not in {topic["topic_id"] for topic in held}
