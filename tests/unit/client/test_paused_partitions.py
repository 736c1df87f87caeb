"""A consumer that pauses some of its partitions, and resumes them."""

import threading

from myqueue import Consumer, RetryPolicy
from tests.unit.client.memory_cluster import MemoryCluster
from tests.unit.client.scripted_server import ScriptedServer
from tests.waiting import until

QUICK = RetryPolicy(deadline_s=2.0, first_pause_s=0.001, longest_pause_s=0.01)


def consumer(server: ScriptedServer) -> Consumer:
    return Consumer(server.url, topic="orders", name="billing", start="earliest", commit="manual", retry=QUICK)


def read(reader: Consumer, timeout_s: float = 0.3) -> list[str]:
    """Until nothing comes any more."""
    return [message.text for message in iter(lambda: reader.poll(timeout_s), None)]


def test_a_paused_partition_is_not_handed_out_and_nothing_of_it_is_skipped(server: ScriptedServer) -> None:
    server.answer = cluster = MemoryCluster(partitions=2)
    cluster.put("a", "b", "c", partition=0)
    with consumer(server) as reader:
        first = reader.poll(5)
        assert first is not None
        assert first.text == "a"
        reader.pause([0])
        cluster.put("x", "y", partition=1)
        assert read(reader) == ["x", "y"]
        assert reader.get_message() is None, "it does not wait for what is paused"
        assert reader.position() == {0: 1, 1: 2}
        threading.Timer(0.2, reader.resume, [[0]]).start()
        second = reader.poll(5)
        assert second is not None
        assert [second.text, *read(reader)] == ["b", "c"], "resuming ends the wait"


def test_a_partition_that_went_away_comes_back_unpaused(server: ScriptedServer, cluster: MemoryCluster) -> None:
    cluster.put("a")
    with consumer(server) as reader:
        until(lambda: reader.get_message())
        reader.pause([0])
        with cluster.lock:
            cluster.lease(0, "another")
        until(lambda: reader.position() == {})
        with cluster.lock:
            cluster.leases.clear()
            cluster.put("b")
        message = reader.poll(5)
        assert message is not None
