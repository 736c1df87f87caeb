"""Several batches of a partition in flight, over connections that delay, reorder and drop."""

import threading
from collections.abc import Callable

import pytest

from myqueue import Deliveries, Delivery, MyQueueError, Producer, Receipt, RetryPolicy, Unavailable
from tests.unit.client.failing_appends import OPEN, QUICK, appends, is_append
from tests.unit.client.memory_cluster import MemoryCluster
from tests.unit.client.scripted_server import Reply, ScriptedServer, Seen, Step, failure
from tests.unreliable_proxy import UnreliableProxy

PATIENT = RetryPolicy(deadline_s=30.0, first_pause_s=0.001, longest_pause_s=0.02)


@pytest.mark.parametrize("partitions", [1, 3])
def test_order_is_kept_and_nothing_doubled_behind_a_bad_network(server: ScriptedServer, partitions: int) -> None:
    cluster = MemoryCluster(partitions)
    server.answer = cluster
    proxy = UnreliableProxy(server.url, seed=partitions, drop=0.0)
    called: list[list[int]] = [[] for _ in range(partitions)]

    def remember(delivery: Delivery | Deliveries) -> None:
        assert isinstance(delivery, Delivery)
        receipt = delivery.result(0)
        called[receipt.partition].append(receipt.offset)

    try:
        with Producer(
            proxy.url, topic="orders", batch_bytes=200, max_in_flight=8, retry=PATIENT, on_delivery=remember
        ) as producer:
            proxy.drop = 0.04
            sent: list[tuple[int, str]] = []
            receipts: list[Receipt] = []
            while proxy.dropped <= 3 or not sent:  # how many pieces pass depends on how they are timed
                more = [(number % partitions, f"{number:06d}") for number in range(len(sent), len(sent) + 600)]
                deliveries = [producer.send(value, partition=partition) for partition, value in more]
                receipts += [delivery.result(60) for delivery in deliveries]
                sent += more
            proxy.drop = 0.0
    finally:
        proxy.close()
    for partition in range(partitions):
        stored = cluster.values(partition)
        assert stored == [value for place, value in sent if place == partition]
        assert called[partition] == list(range(len(stored)))
    assert all(
        cluster.values(receipt.partition)[receipt.offset] == value
        for receipt, (_, value) in zip(receipts, sent, strict=True)
    )


class Meeting:
    """The cluster, but some batches are answered only when as many of them are there at once."""

    def __init__(self, cluster: MemoryCluster, parties: int) -> None:
        self.cluster = cluster
        self.barrier = threading.Barrier(parties)
        self.appends = 0

    def __call__(self, seen: Seen) -> Step:
        if is_append(seen):
            self.appends += 1
            if 1 < self.appends <= 1 + self.barrier.parties:
                self.barrier.wait(10)
        return self.cluster(seen)


def test_full_batches_are_in_flight_together(server: ScriptedServer, cluster: MemoryCluster) -> None:
    server.answer = Meeting(cluster, 4)
    with Producer(server.url, topic="orders", batch_bytes=100, max_in_flight=4, retry=QUICK) as producer:
        producer.send("first").result(5)
        values = [f"{number:04d}" + "." * 80 for number in range(12)]
        producer.send_many(values).result(20)
    assert cluster.values(0) == ["first", *values]


def failing_at(cluster: MemoryCluster, content: bytes, answer: Reply) -> Callable[[Seen], Step]:
    """The cluster, but not for batches with this content."""
    return lambda seen: answer if is_append(seen) and content in seen.body else cluster(seen)


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (Reply(413, failure(413, 41301, outcome="not_written"), after_s=0.05), "not_written"),
        (Reply(500, failure(500, 50001, outcome="unknown"), after_s=0.05), "unknown"),
    ],
)
def test_what_is_in_flight_behind_a_batch_that_failed_takes_a_new_epoch(
    server: ScriptedServer, cluster: MemoryCluster, answer: Reply, outcome: str
) -> None:
    """Their sequences leave a gap: they are sent again, in order."""
    server.answer = failing_at(cluster, b"0000", answer)
    with Producer(server.url, topic="orders", batch_bytes=100, max_in_flight=4, retry=QUICK) as producer:
        producer.send("first").result(5)
        values = [f"{number:04d}" + "." * 80 for number in range(6)]
        deliveries = [producer.send(value) for value in values]
        error = deliveries[0].exception(10)
        assert isinstance(error, MyQueueError)
        assert error.outcome == outcome
        for delivery in deliveries[1:]:
            delivery.result(10)
    assert cluster.values(0) == ["first", *values[1:]]
    assert len(server.calls(OPEN)) == 2


def test_a_refused_first_batch_of_an_epoch_leaves_its_sequence(server: ScriptedServer, cluster: MemoryCluster) -> None:
    server.answer = appends(cluster, Reply(400, failure(400, 40001, outcome="not_written")))
    with Producer(server.url, topic="orders", retry=QUICK) as producer:
        assert producer.send("a").exception(5) is not None
        producer.send("b").result(5)
    assert cluster.values(0) == ["b"]
    assert len(server.calls(OPEN)) == 1


def test_closing_fails_what_is_in_flight(server: ScriptedServer, cluster: MemoryCluster) -> None:
    stuck = threading.Event()

    def answer(seen: Seen) -> Step:
        if is_append(seen) and b"first" not in seen.body:
            stuck.wait(10)
        return cluster(seen)

    server.answer = answer
    producer = Producer(server.url, topic="orders", batch_bytes=100, max_in_flight=4, retry=QUICK)
    producer.send("first").result(5)
    deliveries = [producer.send(f"{number:04d}" + "." * 80) for number in range(6)]
    try:
        with pytest.raises(TimeoutError):
            producer.close(0.2)
    finally:
        stuck.set()
    outcomes = [delivery.exception(1) for delivery in deliveries]
    assert all(isinstance(error, Unavailable) for error in outcomes)
    assert [error.outcome for error in outcomes if error is not None] == ["unknown"] * 4 + ["not_written"] * 2
