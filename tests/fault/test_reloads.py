"""nginx reloaded many times under load, as for new certificates or other addresses: no request fails."""

import os
import signal
from collections import Counter
from contextlib import ExitStack

import psutil
import pytest

from tests.calls import Calls
from tests.cluster import Cluster
from tests.fault.library_clients import LibraryClients
from tests.fault.request_loops import RequestLoops
from tests.waiting import let_pass, until

pytestmark = pytest.mark.timeout(240)

RELOADS = 50
SPACING_S = 0.5
CLIENTS = 4  # of each kind, each with a connection that it keeps


def workers(cluster: Cluster) -> set[int]:
    return {child.pid for child in psutil.Process(cluster.local.pid("nginx")).children()}


@pytest.mark.slow
def test_reloads_under_load(cluster: Cluster, calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name, partitions=3)
    calls.topic(f"{topic_name}-library", partitions=3)
    producer, consumer = calls.producer(topic_name), calls.consumer(topic_name)
    message = {"topic": topic_name, "producer_id": producer, "message": "m"}
    read = {"topic": topic_name, "consumer_id": consumer}
    loops = RequestLoops(
        {
            f"{kind} {number}": send
            for number in range(CLIENTS)
            for kind, send in {
                "produce": lambda session: session.post(calls.url + "/producer/produce", json=message, timeout=15),
                "consume": lambda session: session.get(calls.url + "/consumer/consume", params=read, timeout=15),
                "topics": lambda session: session.get(calls.url + "/topics", timeout=15),
            }.items()
        },
        pause_s=0.01,
    )
    library = LibraryClients(cluster.url, f"{topic_name}-library", commits=True)
    with ExitStack() as stack:
        stack.enter_context(loops.running())
        stack.enter_context(library.running())
        until(lambda: len(library.read) > 20, within_s=20, what="everything is under way")
        for _ in range(RELOADS):
            before = workers(cluster)
            os.kill(cluster.local.pid("nginx"), signal.SIGHUP)
            until(lambda before=before: workers(cluster) - before, within_s=10, what="new workers")  # type: ignore[misc]
            let_pass(SPACING_S)
        library.assert_nothing_lost()
    answers = [(name.split()[0], each) for name in loops.names for each in loops.all(name)]
    print(Counter((kind, each.status) for kind, each in answers))
    assert [(kind, each) for kind, each in answers if each.status not in (200, 204)] == []
    assert min(Counter(kind for kind, _ in answers).values()) > 10 * RELOADS
