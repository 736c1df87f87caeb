"""A consumer that nobody closes: its partitions go to others, and somebody is told."""

import asyncio
import gc
import logging
import threading
from typing import Any

import pytest

from myqueue import Consumer
from myqueue.aio import AsyncConsumer
from tests.unit.client.memory_cluster import MemoryCluster
from tests.unit.client.scripted_server import ScriptedServer
from tests.waiting import until

NAMED: Any = {"topic": "orders", "name": "billing", "start": "earliest"}
TOLD = "consumer 'billing' of topic 'orders' was dropped without being closed"


def read_and_drop(server: ScriptedServer, **more: Any) -> None:
    reader = Consumer(server.url, **NAMED, **more)
    assert [reader.poll(5), reader.poll(5)] != [None, None]
    del reader
    gc.collect()


def await_release(cluster: MemoryCluster) -> None:
    until(lambda: cluster.leases == {}, what="leases given back")


def test_it_gives_its_partitions_back_and_keeps_the_message_in_hand(
    server: ScriptedServer, cluster: MemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.put("a", "b", "c")
    with caplog.at_level(logging.WARNING, "myqueue"), pytest.warns(ResourceWarning, match=TOLD):
        read_and_drop(server)
    await_release(cluster)
    assert cluster.cursors == [1]
    assert TOLD in caplog.text
    with Consumer(server.url, **NAMED) as again:
        message = again.poll(5)
        assert message is not None
        assert message.text == "b"


def test_one_that_has_never_read_needs_no_thread_any_more(server: ScriptedServer, cluster: MemoryCluster) -> None:
    before = set(threading.enumerate())
    reader = Consumer(server.url, **NAMED)
    [background] = [thread for thread in set(threading.enumerate()) - before if thread.name == "myqueue-io"]
    del reader
    gc.collect()
    until(lambda: not background.is_alive(), what="its thread ends")
    assert cluster.leases == {}


def test_its_callbacks_are_not_called_in_the_background_thread(server: ScriptedServer, cluster: MemoryCluster) -> None:
    cluster.put("a", "b", "c")
    revoked: list[object] = []
    with pytest.warns(ResourceWarning, match=TOLD):
        read_and_drop(server, on_revoke=revoked.append)
    await_release(cluster)
    assert revoked == []


def test_so_does_that_of_an_event_loop(server: ScriptedServer, cluster: MemoryCluster) -> None:
    cluster.put("a", "b")

    async def main() -> None:
        reader = AsyncConsumer(server.url, **NAMED)
        await reader.open()
        assert await reader.poll(5) is not None
        del reader
        gc.collect()

    with pytest.warns(ResourceWarning, match=TOLD):
        asyncio.run(main())
    await_release(cluster)
    assert cluster.cursors == [0]


@pytest.mark.filterwarnings("error::ResourceWarning")
def test_one_that_is_closed_or_has_no_partitions_says_nothing(
    server: ScriptedServer, cluster: MemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.put("a")
    with Consumer(server.url, **NAMED) as reader:
        reader.poll(5)
    del reader
    assert Consumer(server.url, **NAMED).size() == 0
    with pytest.raises(TypeError):
        Consumer(server.url)
    gc.collect()
    assert "dropped" not in caplog.text
