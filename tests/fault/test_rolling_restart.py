"""Brokers restarted one after the other, as for an upgrade: clients of the library notice nothing but a short wait."""

import itertools
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from myqueue import Consumer, Producer
from tests.calls import Calls
from tests.cluster import BROKERS, Cluster
from tests.waiting import until

pytestmark = pytest.mark.timeout(120)

PARTITIONS = 3
LONGEST_GAP_S = 5.0
PAUSE_S = 0.05  # no more than the consumer can read


@dataclass
class Pipeline:
    """A producer for each partition and one consumer; whatever the library raises ends up in the test."""

    url: str
    topic: str
    stopping: threading.Event = field(default_factory=threading.Event)
    sent_all: threading.Event = field(default_factory=threading.Event)  # and nothing is in flight any more
    delivered: dict[int, list[tuple[float, str, int]]] = field(default_factory=dict)  # by partition: when, what, where
    read: list[str] = field(default_factory=list)

    def produce(self, partition: int) -> None:
        delivered = self.delivered.setdefault(partition, [])
        with Producer(self.url, self.topic) as producer:
            for number in itertools.count():
                if self.stopping.wait(PAUSE_S):
                    return
                value = f"{partition}-{number}"
                receipt = producer.send(value, partition=partition).result(30)
                delivered.append((time.monotonic(), value, receipt.offset))

    def consume(self, consumer: Consumer) -> None:
        while (message := consumer.poll(0.2)) is not None or not self.sent_all.is_set():
            if message is not None:
                self.read.append(message.value.decode())

    def has_read_all(self) -> bool:
        return len(self.read) >= sum(map(len, self.delivered.values()))

    def await_progress(self, more: int) -> None:
        goals = {partition: len(delivered) + more for partition, delivered in self.delivered.items()}
        assert len(goals) == PARTITIONS
        until(
            lambda: all(len(self.delivered[partition]) >= goal for partition, goal in goals.items()),
            within_s=20,
            what=f"{more} more messages in every partition",
        )

    def longest_gap_s(self, since_s: float) -> float:
        """Between two acknowledged messages of one partition."""
        return max(
            later - earlier
            for delivered in self.delivered.values()
            for (earlier, *_), (later, *_) in itertools.pairwise(delivered)
            if later >= since_s
        )


@contextmanager
def running_pipeline(url: str, topic: str) -> Iterator[Pipeline]:
    pipeline = Pipeline(url, topic)
    with Consumer(url, topic, name="reader", start="earliest") as consumer, ThreadPoolExecutor(PARTITIONS + 1) as pool:
        running = [pool.submit(pipeline.produce, partition) for partition in range(PARTITIONS)]
        reading = pool.submit(pipeline.consume, consumer)
        try:
            until(lambda: len(pipeline.delivered) == PARTITIONS, within_s=10, what="all producers are at work")
            yield pipeline
            pipeline.stopping.set()
            for future in running:
                future.result(60)
            until(lambda: reading.done() or pipeline.has_read_all(), within_s=30, what="all that was sent is read")
        finally:
            pipeline.stopping.set()
            pipeline.sent_all.set()
        reading.result(60)


def test_rolling_restart(cluster: Cluster, calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name, partitions=PARTITIONS)
    gaps_s = []
    with running_pipeline(cluster.url, topic_name) as pipeline:
        for name in BROKERS:
            pipeline.await_progress(20)
            started_s = time.monotonic()
            cluster.stop(name)
            pipeline.await_progress(20)
            cluster.start(name)
            cluster.await_healthy(within_s=20)
            for partition_id in range(PARTITIONS):
                cluster.await_voter(name, topic_name, partition_id, within_s=10)
            pipeline.await_progress(20)
            gaps_s.append(pipeline.longest_gap_s(started_s))
    print("longest gap of a partition in each step:", ", ".join(f"{gap_s:.2f} s" for gap_s in gaps_s))
    assert max(gaps_s) <= LONGEST_GAP_S
    for delivered in pipeline.delivered.values():
        assert [offset for *_, offset in delivered] == list(range(len(delivered))), "every message once, in order"
    sent = sorted(value for delivered in pipeline.delivered.values() for _, value, _ in delivered)
    assert sorted(pipeline.read) == sent
