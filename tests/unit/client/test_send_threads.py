"""The threads of all producers of a process: shared, bounded, taking turns, and more while brokers do not answer."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from math import inf

import pytest

from myqueue import Producer
from myqueue.send_threads import BASE_THREADS, MAX_THREADS, SendThread
from tests.unit.client.failing_appends import QUICK, is_append
from tests.unit.client.memory_cluster import MemoryCluster, SeveralTopics
from tests.unit.client.scripted_server import ScriptedServer, Seen, Step
from tests.waiting import until


def send_threads() -> int:
    return sum(isinstance(thread, SendThread) and thread.is_alive() for thread in threading.enumerate())


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    assert send_threads() == 0
    yield
    until(lambda: send_threads() == 0, within_s=5, what="closing ends the threads")


def test_producers_that_take_turns_need_one_thread(server: ScriptedServer, cluster: MemoryCluster) -> None:
    with ExitStack() as stack:
        producers = [stack.enter_context(Producer(server.url, topic="orders", retry=QUICK)) for _ in range(10)]
        for number, producer in enumerate(producers * 3):
            producer.send(str(number)).result(5)
        assert send_threads() <= 2  # one may be chosen before the one that sent is idle again
    assert len(cluster.messages) == 30


def test_many_busy_producers_share_few_threads(server: ScriptedServer, cluster: MemoryCluster) -> None:
    with ExitStack() as stack:
        producers = [
            stack.enter_context(Producer(server.url, topic="orders", retry=QUICK, batch_bytes=100)) for _ in range(12)
        ]
        deliveries = [producer.send("x" * 80) for _ in range(20) for producer in producers]
        most = 0
        for delivery in deliveries:
            delivery.result(30)
            most = max(most, send_threads())
        assert most <= 16  # one for each, and up to four on a slow machine
        until(lambda: send_threads() <= BASE_THREADS, within_s=20, what="the spare ones end")
    assert len(cluster.messages) == 240


def test_a_producer_whose_broker_does_not_answer_does_not_hold_up_others(server: ScriptedServer) -> None:
    stuck, orders = MemoryCluster(topic="stuck", partitions=4, consumer_id=8), MemoryCluster()
    answer = SeveralTopics(stuck, orders)
    gate = threading.Event()

    def gated(seen: Seen) -> Step:
        if is_append(seen) and str(stuck.topic_id) in seen.path:
            gate.wait(20)
        return answer(seen)

    server.answer = gated
    with ExitStack() as stack:
        waiting = [stack.enter_context(Producer(server.url, topic="stuck", retry=QUICK)) for _ in range(6)]
        for producer in waiting:
            for partition in range(4):
                producer.send("x", partition=partition)
        until(lambda: send_threads() >= BASE_THREADS, within_s=5, what="all threads are taken")
        try:
            with Producer(server.url, topic="orders", retry=QUICK) as producer:
                for number in range(5):
                    assert producer.send(str(number)).result(2).offset == number
            assert send_threads() <= MAX_THREADS
        finally:
            gate.set()


def test_a_lingering_batch_leaves_in_time_while_all_threads_wait(server: ScriptedServer) -> None:
    stuck, orders = MemoryCluster(topic="stuck", partitions=8, consumer_id=8), MemoryCluster()
    answer = SeveralTopics(stuck, orders)
    gate = threading.Event()

    def gated(seen: Seen) -> Step:
        if is_append(seen) and str(stuck.topic_id) in seen.path:
            gate.wait(20)
        return answer(seen)

    server.answer = gated
    with (
        Producer(server.url, topic="stuck", retry=QUICK, max_in_flight=BASE_THREADS) as first,
        Producer(server.url, topic="orders", retry=QUICK, linger_ms=100) as second,
    ):
        for partition in range(8):
            first.send("x", partition=partition)
        until(lambda: send_threads() >= BASE_THREADS, within_s=5, what="all threads are taken")
        try:
            until(second.send("a").done, within_s=2, what="it is sent")
        finally:
            gate.set()


def test_senders_take_turns(server: ScriptedServer) -> None:
    """One that always has more to send does not keep its threads for itself."""
    busy, orders = MemoryCluster(topic="busy", consumer_id=8), MemoryCluster()
    server.answer = SeveralTopics(busy, orders)
    with (
        Producer(server.url, topic="busy", retry=QUICK, batch_bytes=100, max_in_flight=64) as first,
        Producer(server.url, topic="orders", retry=QUICK) as second,
    ):
        deliveries = [first.send("x" * 80) for _ in range(2000)]
        second.send("a").result(10)
        assert not deliveries[-1].done()
        first.flush(60)


def test_a_lingering_batch_leaves_in_time_though_its_thread_got_other_work(server: ScriptedServer) -> None:
    """The thread that waits for the time is chosen for a batch whose broker does not answer; others are idle."""
    stuck, orders = MemoryCluster(topic="stuck", partitions=2, consumer_id=8), MemoryCluster()
    answer = SeveralTopics(stuck, orders)
    gate = threading.Event()
    gate.set()

    def gated(seen: Seen) -> Step:
        if is_append(seen) and str(stuck.topic_id) in seen.path:
            gate.wait(20)
        return answer(seen)

    server.answer = gated
    with (
        Producer(server.url, topic="stuck", retry=QUICK) as first,
        Producer(server.url, topic="orders", retry=QUICK, linger_ms=300) as second,
    ):
        for partition in range(2):
            first.send("x", partition=partition)
        first.flush(5)
        gate.clear()
        pool = second._topics._pool
        assert pool is not None
        until(lambda: len(pool._idle) == pool.thread_count, within_s=5, what="all are idle", pause_s=0.001)
        delivery = second.send("a")
        until(lambda: pool._idle[-1].until != inf, within_s=5, what="one waits for the time", pause_s=0.001)
        first.send("y", partition=0)
        try:
            until(delivery.done, within_s=2, what="it is sent")
        finally:
            gate.set()


def test_without_more_threads_those_that_there_are_send(
    server: ScriptedServer, cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container with a limit. An error would be of a message that is in the buffer, and leaves all the same."""
    gate = threading.Event()

    def gated(seen: Seen) -> Step:
        if is_append(seen):
            gate.wait(20)
        return cluster(seen)

    def refused(_: SendThread) -> None:
        raise RuntimeError("can't start new thread")

    server.answer = gated
    with (
        Producer(server.url, topic="orders", retry=QUICK) as first,
        Producer(server.url, topic="orders", retry=QUICK, linger_ms=1) as second,
    ):
        first.send("a")
        monkeypatch.setattr(SendThread, "start", refused)
        try:
            deliveries = [second.send("b"), second.send("c", idempotency_key="c")]
        finally:
            gate.set()
        for delivery in deliveries:
            delivery.result(30)
        assert send_threads() == 1
    assert sorted(cluster.messages) == ["a", "b", "c"]
