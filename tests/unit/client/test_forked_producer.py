"""A producer that was opened before a fork: in the child it opens itself anew, or says why it cannot; nothing hangs.

`multiprocessing` forks a process that uses its producer in other threads, and `PreForkingParent` does what an
application server does that loads the application once and forks its workers afterwards.
"""

import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from myqueue import Deliveries, Delivery, ForkedProducer, Producer, Unavailable
from tests.unit.client.failing_appends import QUICK, is_append
from tests.unit.client.memory_cluster import MemoryCluster
from tests.unit.client.scripted_server import ScriptedServer, Seen, Step
from tests.waiting import until

CHILD_S = 20


def in_child(function: Callable[[], Any]) -> Any:
    """What the function returns in a forked process; an exception as its text. Fails if the child hangs."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def run() -> None:
        try:
            sender.send(function())
        except Exception as error:  # noqa: BLE001 - the parent judges it
            sender.send(f"{type(error).__name__}: {error}")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of 3.12: this process has threads, which is the point
        child = context.Process(target=run)
        child.start()
    try:
        assert receiver.poll(CHILD_S), "the child hangs"
        result = receiver.recv()
        child.join(CHILD_S)
        assert child.exitcode == 0
        return result
    finally:
        if child.is_alive():
            child.kill()
            child.join(CHILD_S)


def test_a_producer_without_a_name_opens_itself_anew(server: ScriptedServer, cluster: MemoryCluster) -> None:
    with Producer(server.url, topic="orders", retry=QUICK) as producer:
        producer.send("parent").result(5)
        name = producer.name

        offset, child_name = in_child(lambda: send_and_name(producer))
        assert offset == 1
        assert child_name != name == producer.name
        assert producer.send("parent again").result(5).offset == 2
    assert cluster.messages == ["parent", "child", "parent again"]
    assert len({header.producer_id for header, _ in cluster.logs[0].entries}) == 2


def send_and_name(producer: Producer) -> tuple[int, str]:
    offset = producer.send("child").result(5).offset
    producer.flush(5)
    name = producer.name
    producer.close()
    return offset, name


def test_a_producer_with_a_name_says_what_to_do(server: ScriptedServer, cluster: MemoryCluster) -> None:
    with Producer(server.url, topic="orders", name="till-1", retry=QUICK) as producer:
        producer.send("parent").result(5)
        for use in (
            lambda: producer.send("child"),
            lambda: producer.send_many(["child"]),
            lambda: producer.send("child", topic="bills"),
            lambda: producer.send("child", idempotency_key="k"),
            lambda: producer.flush(5),
        ):
            text = in_child(use)
            assert text.startswith(ForkedProducer.__name__)
            assert "'till-1'" in text
            assert "Open a Producer in the child" in text
        assert in_child(lambda: producer.close()) is None
        assert producer.send("parent").result(5).offset == 1


@pytest.mark.parametrize("name", [None, "till-1"])
def test_what_the_parent_has_sent_stays_its_own(
    server: ScriptedServer, cluster: MemoryCluster, name: str | None
) -> None:
    gate = threading.Event()

    def gated(seen: Seen) -> Step:
        if is_append(seen):
            gate.wait(10)
        return cluster(seen)

    server.answer = gated
    called: list[Delivery | Deliveries] = []
    with Producer(server.url, topic="orders", name=name, retry=QUICK, on_delivery=called.append) as producer:
        delivery, many = producer.send("a"), producer.send_many(["b", "c"])
        alone = producer.send("d", idempotency_key="d")

        def outcomes() -> list[tuple[str, str | None, str]]:
            errors = [future.exception(CHILD_S) for future in (delivery, many, alone)]
            producer.close()
            return [(type(error).__name__, error.outcome, str(error)) for error in errors if error is not None]

        failed = in_child(outcomes)
        gate.set()
        assert delivery.result(5).offset >= 0
        assert many.result(5)
        producer.flush(5)
    assert [kind for kind, _, _ in failed] == [Unavailable.__name__] * 3
    assert all(outcome == "unknown" for _, outcome, _ in failed)
    assert all(f"process {os.getpid()}" in text for _, _, text in failed)
    assert sorted(cluster.messages) == ["a", "b", "c", "d"]
    assert len(called) == 3


@contextmanager
def held(lock: threading.Lock) -> Iterator[None]:
    """By another thread, which a child does not have."""
    has, release = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            has.set()
            release.wait(CHILD_S)

    thread = threading.Thread(target=hold)
    thread.start()
    has.wait(5)
    yield
    release.set()
    thread.join()


def test_locks_that_another_thread_holds_do_not_stop_the_child(server: ScriptedServer, cluster: MemoryCluster) -> None:
    from myqueue.send_threads import send_thread_pools

    with Producer(server.url, topic="orders", retry=QUICK) as producer:
        producer.send("parent").result(5)
        topics = producer._topics
        pool = topics._pool
        assert pool is not None
        for lock in (topics.buffer.lock, topics._opening, pool._lock, topics.transport.token._lock):
            with held(lock):
                assert isinstance(in_child(lambda: send_and_name(producer)), tuple)
        with held(send_thread_pools._lock):
            assert isinstance(in_child(lambda: send_and_name(producer)), tuple)
    assert cluster.messages == ["parent", *["child"] * 5]


def test_forks_while_threads_send(server: ScriptedServer, cluster: MemoryCluster) -> None:
    stop = threading.Event()
    sent = [0] * 3
    with Producer(server.url, topic="orders", retry=QUICK) as producer:

        def keep_sending(number: int) -> None:
            while not stop.is_set():
                producer.send(f"parent-{number}-{sent[number]}").result(10)
                sent[number] += 1

        threads = [threading.Thread(target=keep_sending, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(10):
                assert isinstance(in_child(lambda: send_and_name(producer)), tuple)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        producer.flush(5)
    assert cluster.messages.count("child") == 10
    assert len(cluster.messages) == len(set(cluster.messages)) + 9 == sum(sent) + 10


class PreForkingParent:
    """Loads the application, then forks workers that serve until they get SIGTERM; starts one anew that dies."""

    def __init__(self, application: Callable[[int], object], workers: int) -> None:
        self._application = application
        self._wanted = workers
        self.workers: list[int] = []
        self.supervise()

    def supervise(self) -> None:
        self.workers = [worker for worker in self.workers if os.waitpid(worker, os.WNOHANG)[0] == 0]
        while len(self.workers) < self._wanted:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                worker = os.fork()
            if worker == 0:
                self._serve()
            self.workers.append(worker)

    def _serve(self) -> None:
        status = 1
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            self._application(os.getpid())
            signal.sigwait({signal.SIGTERM})
            status = 0
        finally:
            os._exit(status)

    def stop(self) -> list[int]:
        """The exit codes."""
        for worker in self.workers:
            os.kill(worker, signal.SIGTERM)
        return [os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) for worker in self.workers]


@pytest.mark.timeout(60)
def test_workers_of_a_pre_forking_parent(server: ScriptedServer, cluster: MemoryCluster) -> None:
    producer = Producer(server.url, topic="orders", retry=QUICK)  # when the application is loaded
    parent = PreForkingParent(lambda worker: producer.send(f"from {worker}").result(10), workers=3)
    try:
        until(lambda: len(cluster.messages) == 3, within_s=10, what="every worker has sent")
        os.kill(parent.workers[0], signal.SIGKILL)

        def replaced() -> bool:
            parent.supervise()
            return len(cluster.messages) == 4

        until(replaced, within_s=10, what="the new worker has sent")
    finally:
        codes = parent.stop()
        producer.close()
    assert codes == [0, 0, 0]
    assert len(set(cluster.messages)) == 4
    assert len({header.producer_id for header, _ in cluster.logs[0].entries}) == 4
