"""The library's batches while brokers die and hang: each message once and in order, for the producer and the reader."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from myqueue import Consumer, Deliveries, Producer
from tests.calls import Calls
from tests.cluster import Cluster
from tests.waiting import until

pytestmark = pytest.mark.timeout(120)

PARTITIONS = 3
GROUP = 200


@pytest.mark.slow
def test_a_leader_is_killed_and_another_one_hangs(cluster: Cluster, calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name, partitions=PARTITIONS)
    stopping = threading.Event()
    sent: list[list[tuple[list[str], Deliveries]]] = [[] for _ in range(PARTITIONS)]
    read: list[list[str]] = [[] for _ in range(PARTITIONS)]

    def produce() -> int:
        with Producer(cluster.url, topic_name, linger_ms=1) as producer:
            for number in itertools.count():
                for partition in range(PARTITIONS):
                    values = [f"{partition}-{number}-{index}" for index in range(GROUP)]
                    sent[partition].append((values, producer.send_many(values, partition=partition)))
                if stopping.wait(0.02):
                    return number
        raise AssertionError

    def consume() -> None:
        with Consumer(cluster.url, topic_name, start="earliest") as consumer:
            silent_s = 0.0
            while not stopping.is_set() or sum(map(len, read)) < GROUP * sum(map(len, sent)):
                message = consumer.poll(0.5)
                if message is None:  # at the end it may have read all that there is before it is told to stop
                    silent_s += 0.5
                    assert silent_s < 20
                    continue
                silent_s = 0.0
                assert message.offset == len(read[message.partition])
                read[message.partition].append(message.text)

    def await_progress(what: str) -> None:
        goals = [(len(sent[p]) + 10, len(read[p]) + 10 * GROUP) for p in range(PARTITIONS)]
        until(
            lambda: all(len(sent[p]) >= goal and len(read[p]) >= seen for p, (goal, seen) in enumerate(goals)),
            within_s=30,
            what=f"all partitions go on {what}",
        )

    with ThreadPoolExecutor(2) as pool:
        producing, consuming = pool.submit(produce), pool.submit(consume)
        try:
            await_progress("at the start")
            cluster.kill(cluster.await_leader(topic_name, 0, within_s=10))
            await_progress("after a kill")
            hanging = cluster.await_leader(topic_name, 1, within_s=10)
            cluster.pause(hanging)
            await_progress("while a leader hangs")
            cluster.resume(hanging)
            await_progress("in the end")
        finally:
            stopping.set()
        producing.result(60)
        consuming.result(60)
    for partition in range(PARTITIONS):
        assert read[partition] == [value for values, _ in sent[partition] for value in values]
        for number, (_, deliveries) in enumerate(sent[partition]):
            assert sum(span.count for span in deliveries.result(0)) == GROUP
            assert deliveries.result(0)[0].base_offset == number * GROUP
