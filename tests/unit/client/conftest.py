from collections.abc import Iterator

import pytest

from myqueue import Producer
from tests.unit.client.failing_appends import QUICK
from tests.unit.client.memory_cluster import MemoryCluster
from tests.unit.client.scripted_server import ScriptedServer


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    scripted = ScriptedServer()
    yield scripted
    scripted.close()


@pytest.fixture
def cluster(server: ScriptedServer) -> MemoryCluster:
    server.answer = cluster = MemoryCluster()
    return cluster


@pytest.fixture
def producer(server: ScriptedServer, cluster: MemoryCluster) -> Iterator[Producer]:
    with Producer(server.url, topic="orders", retry=QUICK) as producer:
        yield producer
