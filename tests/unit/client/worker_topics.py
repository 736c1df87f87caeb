"""A worker that runs beside the test, and the topics that it works on, in memory."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from myqueue import Message, Producer, RetryPolicy
from myqueue.protocol.batch import Message as StoredMessage
from myqueue.worker import Worker
from tests.unit.client.memory_cluster import MemoryCluster, SeveralTopics
from tests.unit.client.scripted_server import ScriptedServer

QUICK = RetryPolicy(deadline_s=2.0, first_pause_s=0.001, longest_pause_s=0.01)


class Topics:
    """The topic and its dead letters."""

    def __init__(self, server: ScriptedServer, partitions: int = 1) -> None:
        self.server = server
        self.orders = MemoryCluster(partitions)
        self.dead = MemoryCluster(1, "orders.dead", 77)
        server.answer = SeveralTopics(self.dead, self.orders)

    def send(self, *keyed: tuple[str | None, str], partition: int | None = None) -> None:
        with Producer(self.server.url, "orders", retry=QUICK) as producer:
            for key, value in keyed:
                producer.send(value, key=key, partition=partition)

    def letters(self) -> list[StoredMessage]:
        return self.dead.stored(0)


@contextmanager
def running(server: ScriptedServer, handle: Callable[[Message], object], **settings: Any) -> Iterator[Worker]:
    quick: dict[str, Any] = {
        "first_backoff_s": 0.01,
        "longest_backoff_s": 0.05,
        "commit_interval_s": 0.05,
        "retry": QUICK,
    }
    worker = Worker(handle, server.url, topic="orders", name="billing", **(quick | settings))
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(worker.run)
        try:
            yield worker
        finally:
            worker.stop()
            run.result(10)
