"""A consumer in a child process: told at once to open one of its own, and the parent does not notice."""

import gc
import multiprocessing
import os
import queue
import threading
from collections.abc import Callable
from multiprocessing.queues import Queue
from typing import Any

import pytest

from myqueue import Consumer, ForkedConsumer, RetryPolicy
from tests.unit.client.memory_cluster import MemoryCluster
from tests.unit.client.scripted_server import ScriptedServer
from tests.waiting import throughout, until

QUICK = RetryPolicy(deadline_s=2.0, first_pause_s=0.001, longest_pause_s=0.01)
POLL = "/v1/consumers/5/poll"
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def consumer(server: ScriptedServer, **settings: Any) -> Consumer:
    return Consumer(server.url, topic="orders", name="billing", start="earliest", **({"retry": QUICK} | settings))


def in_child(work: Callable[[], Any]) -> Any:
    """What the work returns in a child process, or the error that it raises."""
    context = multiprocessing.get_context("fork")
    results: Queue[Any] = context.Queue()

    def run() -> None:
        try:
            results.put(work())
        except Exception as error:  # noqa: BLE001 - the parent judges it
            results.put((type(error).__name__, str(error)))

    child = context.Process(target=run)
    child.start()
    try:
        return results.get(timeout=10)
    except queue.Empty:
        pytest.fail("the child hangs")
    finally:
        child.join(5)
        if child.is_alive():
            child.kill()


@pytest.mark.parametrize("use", ["poll", "poll_many", "fetch_arrow", "commit", "position", "size", "lag", "iter"])
def test_using_it_in_a_child_says_what_to_do(server: ScriptedServer, cluster: MemoryCluster, use: str) -> None:
    cluster.put(*"abc")
    with consumer(server) as reader:
        assert reader.poll(5) is not None  # two more are in hand
        kind, message = in_child(lambda: next(iter(reader)) if use == "iter" else getattr(reader, use)())
        assert kind == ForkedConsumer.__name__
        assert f"belongs to process {os.getpid()}" in message
        assert "open a consumer in this process" in message
        assert [m.text for m in (reader.poll(5) for _ in range(2)) if m] == ["b", "c"]


def test_an_iteration_ends_in_the_child_with_the_same_error(server: ScriptedServer, cluster: MemoryCluster) -> None:
    cluster.put(*"abc")
    with consumer(server) as reader:
        iteration = iter(reader)
        assert [next(iteration).text for _ in range(2)] == ["a", "b"]
        assert in_child(lambda: next(iteration))[0] == ForkedConsumer.__name__
        assert next(iteration).text == "c"


def test_a_child_that_closes_or_drops_it_does_not_disturb_the_parent(
    server: ScriptedServer, cluster: MemoryCluster
) -> None:
    cluster.can_wait = True
    cluster.put("a")
    held = [consumer(server)]
    assert held[0].poll(5) is not None

    def close() -> str:
        held[0].close()
        return "closed"

    def drop() -> str:
        held.clear()
        gc.collect()
        return "dropped"

    for work, answer in ((close, "closed"), (drop, "dropped")):
        assert in_child(work) == answer
        renewals = len(server.calls(POLL))
        throughout(lambda: len(held[0].position()) == 1, for_s=1.0, what="the lease is kept")
        assert len(server.calls(POLL)) > renewals
        timer = threading.Timer(0.1, cluster.put, ("b",))
        timer.start()
        message = held[0].poll(5)
        timer.join()
        assert message is not None
        assert message.text == "b"
    held[0].close()
    assert cluster.leases == {}


def test_a_child_opens_one_of_its_own(server: ScriptedServer, cluster: MemoryCluster) -> None:
    cluster.put("a", "b")
    with consumer(server, commit="manual") as reader:
        assert reader.poll(5) is not None

        def read() -> list[str]:
            with consumer(server, commit="manual", partition=0) as own:
                own.poll(0.2)  # the parent has the lease
                return [own.name, *(thread.name for thread in threading.enumerate() if "myqueue" in thread.name)]

        assert in_child(read) == ["billing", "myqueue-io"]
        until(lambda: reader.poll(5))
