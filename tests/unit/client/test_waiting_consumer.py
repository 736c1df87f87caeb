"""A consumer that waits: its own thread receives, the background thread fetches ahead, and both can be disturbed."""

import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from myqueue import Consumer, Reader, RetryPolicy, fetch_requests, fetch_scheduler
from myqueue.decoding import chunks_in
from myqueue.fetch_requests import FetchRequest
from myqueue.io_thread import MAX_CALLS
from tests.unit.client.memory_cluster import MemoryCluster
from tests.unit.client.scripted_server import Reset, ScriptedServer, Seen, Step
from tests.waiting import let_pass, until

QUICK = RetryPolicy(deadline_s=5.0, first_pause_s=0.001, longest_pause_s=0.01)


def consumer(server: ScriptedServer, **settings: Any) -> Consumer:
    return Consumer(server.url, topic="orders", name="billing", start="earliest", **({"retry": QUICK} | settings))


def fetches(server: ScriptedServer, offset: int) -> int:
    return sum(seen.query.get("offset") == str(offset) for seen in list(server.seen))


def soon(what: Callable[[], object], after_s: float = 0.1) -> threading.Timer:
    timer = threading.Timer(after_s, what)
    timer.start()
    return timer


def test_the_waiting_thread_receives_the_message_itself(
    server: ScriptedServer, cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []

    def recorded(*arguments: Any) -> Any:
        found = list(chunks_in(*arguments))
        threads.extend([threading.get_ident()] * len(found))
        return found

    monkeypatch.setattr(fetch_requests, "chunks_in", recorded)
    with consumer(server) as reader:
        assert reader.poll(0) is None
        for number in range(3):
            timer = soon(partial(cluster.put, str(number)))
            message = reader.poll(5)
            assert message is not None
            assert message.text == str(number)
            timer.join()
    assert threads == [threading.get_ident()] * 3


def test_messages_are_fetched_ahead_while_the_application_works(server: ScriptedServer, cluster: MemoryCluster) -> None:
    cluster.put("a")
    with consumer(server) as reader:
        assert reader.poll(5) is not None
        cluster.put("b")
        until(lambda: fetches(server, 2), what="b was fetched, without a poll")
        message = reader.poll(5)
        assert message is not None
        assert message.text == "b"


def test_a_reader_that_never_waits_gets_what_was_fetched_ahead(server: ScriptedServer, cluster: MemoryCluster) -> None:
    with Reader(server.url, "orders", {0: 0}, retry=QUICK) as reader:
        assert reader.poll(0) is None
        cluster.put("a")
        message = until(lambda: reader.poll(0))
        assert message is not None
        assert message.text == "a"


def test_no_more_is_fetched_ahead_than_allowed(server: ScriptedServer, cluster: MemoryCluster) -> None:
    cluster.put("a")
    cluster.put(b"x" * 5000)
    with consumer(server, prefetch_bytes=1000) as reader:
        assert reader.poll(5) is not None
        let_pass(0.2)
        assert fetches(server, 2) == 0
        assert reader.poll(5) is not None
        until(lambda: fetches(server, 2))


@pytest.mark.parametrize("wait", ["poll", "fetch_arrow"])
def test_close_from_another_thread_ends_the_wait(server: ScriptedServer, cluster: MemoryCluster, wait: str) -> None:
    before = set(threading.enumerate())  # of consumers of other tests
    reader = consumer(server)
    assert reader.poll(0) is None
    [background] = [thread for thread in set(threading.enumerate()) - before if thread.name == "myqueue-io"]
    timer = soon(reader.close)
    found = getattr(reader, wait)()
    timer.join()
    assert not found
    until(lambda: not background.is_alive(), what="its thread ends")


def test_a_partition_that_is_leased_during_the_wait_is_read(server: ScriptedServer) -> None:
    server.answer = cluster = MemoryCluster(partitions=2)
    cluster.lease(1, "another")
    with consumer(server) as reader:
        assert reader.poll(0) is None
        cluster.put("moved", partition=1)

        def move() -> None:
            with cluster.lock:
                cluster.lease(1, reader.member)

        timer = soon(move)
        message = reader.poll(5)
        timer.join()
        assert message is not None
        assert (message.partition, message.text) == (1, "moved")


def test_a_partition_that_is_lost_during_the_wait_is_not_read(server: ScriptedServer) -> None:
    server.answer = cluster = MemoryCluster(partitions=2)
    with consumer(server) as reader:
        assert reader.poll(0) is None

        def move() -> None:
            with cluster.lock:
                cluster.lease(1, "another")
            until(lambda: list(reader.position()) == [0])
            cluster.put("not mine", partition=1)
            cluster.put("mine", partition=0)

        timer = soon(move)
        message = reader.poll(5)
        timer.join()
        assert message is not None
        assert message.text == "mine"
        assert reader.poll(0.3) is None


def test_a_seek_during_the_wait_is_followed(server: ScriptedServer, cluster: MemoryCluster) -> None:
    cluster.put("a")
    with consumer(server) as reader:
        assert reader.poll(5) is not None
        timer = soon(lambda: reader.seek(to="earliest"))
        message = reader.poll(5)
        timer.join()
        assert message is not None
        assert message.text == "a"


def test_a_routing_that_takes_long_does_not_hold_up_other_partitions(server: ScriptedServer) -> None:
    server.answer = cluster = MemoryCluster(partitions=2)
    asked, goes_on = threading.Event(), threading.Event()

    def answer(seen: Seen) -> Step:
        if seen.path.endswith("/partitions/1/batches"):
            return Reset()
        if seen.path == "/v1/routing/orders" and len(server.calls(seen.path)) > 1:
            asked.set()
            goes_on.wait(5)
        return cluster(seen)

    server.answer = answer
    with consumer(server) as reader:

        def put() -> None:
            asked.wait(5)
            cluster.put("a", partition=0)

        timer = soon(put)
        message = reader.poll(5)
        timer.join()
        goes_on.set()
        assert message is not None
        assert asked.is_set()
        server.answer = cluster
        cluster.put("b", partition=1)
        message = reader.poll(5)
        assert message is not None
        assert message.text == "b"


def test_a_response_that_stalls_does_not_hold_up_the_poll(server: ScriptedServer, cluster: MemoryCluster) -> None:
    """What has begun to arrive is not waited for beyond the time that the application gave."""
    cluster.put("a")
    stalled, goes_on = threading.Event(), threading.Event()

    def answer(seen: Seen) -> Step:
        reply = cluster(seen)
        if "/brokers/" in seen.path and not goes_on.is_set():
            stalled.set()
            return replace(reply, stall=goes_on)
        return reply

    server.answer = answer
    with consumer(server) as reader:
        assert reader.poll(1.0) is None
        assert stalled.is_set()
        goes_on.set()
        message = reader.poll(5)
        assert message is not None
        assert message.text == "a"


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs signals to a thread")
def test_an_interrupted_wait_loses_and_repeats_nothing(server: ScriptedServer, cluster: MemoryCluster) -> None:
    main = threading.main_thread().ident
    assert main == threading.get_ident()
    with consumer(server) as reader:
        assert reader.poll(0) is None
        for number in range(3):
            timer = soon(lambda: signal.pthread_kill(main, signal.SIGINT))
            with pytest.raises(KeyboardInterrupt):
                reader.poll(5)
            timer.join()
            cluster.put(str(number))
            message = reader.poll(5)
            assert message is not None
            assert message.text == str(number)


def test_an_interruption_before_a_request_is_in_flight(
    server: ScriptedServer, cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.put("a")
    interrupted: list[int] = []

    def interrupting(*arguments: Any) -> FetchRequest:
        if threading.current_thread() is threading.main_thread() and not interrupted:
            interrupted.append(1)
            raise KeyboardInterrupt
        return FetchRequest(*arguments)

    with consumer(server) as reader:
        assert reader.poll(5) is not None
        monkeypatch.setattr(fetch_scheduler, "FetchRequest", interrupting)
        with pytest.raises(KeyboardInterrupt):
            until(lambda: reader.poll(0.1), within_s=10)
        cluster.put("b")
        message = reader.poll(5)
        assert message is not None
        assert message.text == "b"


def test_more_partitions_than_connections_are_read_in_turn(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("myqueue.fetch_scheduler.MAX_IN_FLIGHT", 2)
    server.answer = cluster = MemoryCluster(partitions=5)
    for partition in range(5):
        cluster.put(f"p{partition}", partition=partition)
    with consumer(server) as reader:
        read = [message.text for message in (reader.poll(5) for _ in range(5)) if message]
        assert sorted(read) == [f"p{partition}" for partition in range(5)]
        cluster.put("last", partition=3)
        message = reader.poll(5)
        assert message is not None
        assert message.text == "last"


def test_calls_without_an_answer_do_not_keep_leases_from_being_renewed(
    server: ScriptedServer, cluster: MemoryCluster
) -> None:
    """All consumers of a process share the connections of calls, and have one of their own for renewals."""
    cluster.put("a")
    gate = threading.Event()

    def answer(seen: Seen) -> Step:
        if seen.path.endswith("/lag"):
            gate.wait(20)
        return cluster(seen)

    def renewals() -> int:
        return len(server.calls("/v1/consumers/5/poll"))

    server.answer = answer
    with consumer(server) as reader, ThreadPoolExecutor(MAX_CALLS) as pool:
        assert reader.poll(5) is not None
        asking = [pool.submit(reader.lag) for _ in range(MAX_CALLS)]
        try:
            until(lambda: len(server.calls("/v1/consumers/5/lag")) == MAX_CALLS)
            before = renewals()
            until(lambda: renewals() >= before + 5, within_s=10, what="the leases are renewed")
        finally:
            gate.set()
        for each in asking:
            each.result(5)
