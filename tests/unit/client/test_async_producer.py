"""AsyncProducer: backpressure is awaited, the loop is never blocked, and a cancelled send has sent nothing."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import pyarrow as pa
import pytest

from myqueue import (
    DeliveryTimeout,
    InvalidRequest,
    ProducerClosed,
    TopicNotFound,
    json_serializer,
    table_of,
)
from myqueue.aio import AsyncProducer
from tests.unit.client.failing_appends import QUICK, appends, is_append
from tests.unit.client.memory_cluster import MemoryCluster, SeveralTopics
from tests.unit.client.scripted_server import Reply, ScriptedServer, Seen, Step, failure


class Gate:
    def __init__(self, cluster: MemoryCluster) -> None:
        self.cluster = cluster
        self.open = threading.Event()

    def __call__(self, seen: Seen) -> Step:
        if is_append(seen):
            self.open.wait(10)
        return self.cluster(seen)


def run(main: Coroutine[Any, Any, None]) -> None:
    """Fails if it hangs, or if something blocks the loop for long."""

    async def watched() -> None:
        loop = asyncio.get_running_loop()
        longest = 0.0

        async def watch() -> None:
            nonlocal longest
            while True:
                before = loop.time()
                await asyncio.sleep(0.01)
                longest = max(longest, loop.time() - before)

        watching = asyncio.create_task(watch())
        try:
            await asyncio.wait_for(main, 30)
        finally:
            watching.cancel()
        assert longest < 2, "the loop was blocked"

    asyncio.run(watched())


def test_it_sends_and_flushes(server: ScriptedServer, cluster: MemoryCluster) -> None:
    async def main() -> None:
        async with AsyncProducer(server.url, "orders", "till-1", retry=QUICK) as producer:
            first = await producer.send("a", key="k", headers={"h": "v"})
            assert (await first).offset == 0
            await producer.send("b", idempotency_key="b")
            many = await producer.send_many(["c", "d"])
            await producer.flush(5)
            assert many.done()
            assert (producer.name, producer.topic) == ("till-1", "orders")
        await producer.close()  # twice is fine
        with pytest.raises(ProducerClosed, match="till-1"):
            await producer.send("e")

    run(main())
    assert sorted(cluster.messages) == ["a", "b", "c", "d"]


def test_a_full_buffer_is_awaited_in_turn(server: ScriptedServer, cluster: MemoryCluster) -> None:
    server.answer = gate = Gate(cluster)

    async def main() -> None:
        async with AsyncProducer(server.url, "orders", buffer_bytes=200, batch_bytes=25, retry=QUICK) as producer:
            tasks = [asyncio.create_task(producer.send(f"{number:04d}")) for number in range(100)]
            done, waiting = await asyncio.wait(tasks, timeout=0.2)
            assert 0 < len(done) < 20
            gate.open.set()
            await asyncio.gather(*waiting)
            assert len(await producer.send_many(["x" * 50] * 100)) == 100

    run(main())
    assert len(cluster.messages) == 200
    assert cluster.messages[:100] == [f"{number:04d}" for number in range(100)]


def test_a_cancelled_send_has_sent_nothing_and_wakes_the_next(server: ScriptedServer, cluster: MemoryCluster) -> None:
    server.answer = gate = Gate(cluster)

    async def main() -> None:
        async with AsyncProducer(server.url, "orders", buffer_bytes=30, retry=QUICK) as producer:
            await producer.send("first")
            tasks = [asyncio.create_task(producer.send(f"{number}")) for number in range(20)]
            await asyncio.sleep(0.05)
            for task in tasks[::2]:
                task.cancel()
            await asyncio.sleep(0)
            gate.open.set()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert [isinstance(result, asyncio.CancelledError) for result in results] == [True, False] * 10

    run(main())
    assert sorted(cluster.messages) == sorted(["first", *map(str, range(1, 20, 2))])


def test_a_cancelled_send_many_notes_what_is_sent(server: ScriptedServer, cluster: MemoryCluster) -> None:
    server.answer = gate = Gate(cluster)

    async def main() -> None:
        async with AsyncProducer(server.url, "orders", buffer_bytes=300, batch_bytes=100, retry=QUICK) as producer:
            task = asyncio.create_task(producer.send_many(["x" * 50] * 100))
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError) as cancelled:
                await task
            gate.open.set()
            await producer.flush(5)
            stored = len(cluster.messages)
            assert 0 < stored < 100
            notes = [note for note in getattr(cancelled.value, "__notes__", []) if "on their way" in note]
            assert notes == [f"the first {stored} of the 100 messages are on their way"]

    run(main())


def test_timeouts_are_errors_of_the_library(server: ScriptedServer, cluster: MemoryCluster) -> None:
    server.answer = gate = Gate(cluster)

    async def main() -> None:
        producer = AsyncProducer(server.url, "orders", buffer_bytes=10, delivery_timeout_s=0.3, retry=QUICK)
        first = await producer.send("a" * 100)
        with pytest.raises(DeliveryTimeout, match="still on their way"):
            await producer.flush(0.05)
        with pytest.raises(DeliveryTimeout):
            await producer.close(0.05)
        gate.open.set()
        with pytest.raises(Exception, match="closed before the answer"):
            await first

    run(main())


def test_a_cancelled_flush_leaves_what_was_sent(server: ScriptedServer, cluster: MemoryCluster) -> None:
    server.answer = gate = Gate(cluster)

    async def main() -> None:
        async with AsyncProducer(server.url, "orders", linger_ms=50, retry=QUICK) as producer:
            delivery = await producer.send("a")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(producer.flush(), 0.05)
            gate.open.set()
            assert (await delivery).offset == 0

    run(main())


def test_failures_do_not_stay_silent(server: ScriptedServer, cluster: MemoryCluster) -> None:
    server.answer = appends(cluster, Reply(400, failure(400, 40001, "refused", outcome="not_written")))

    async def main() -> None:
        with pytest.raises(InvalidRequest, match="refused"):
            async with AsyncProducer(server.url, "orders", retry=QUICK) as producer:
                await producer.send("a")

    run(main())


def test_many_topics_open_without_blocking_the_loop(server: ScriptedServer) -> None:
    orders, bills = MemoryCluster(), MemoryCluster(topic="bills", consumer_id=8)
    answer = SeveralTopics(orders, bills)

    def slow_to_open(seen: Seen) -> Step:
        reply = answer(seen)
        return Reply(reply.status, reply.body, after_s=2.5) if seen.path.endswith("/producers") else reply

    server.answer = slow_to_open

    async def main() -> None:
        async with AsyncProducer(server.url, retry=QUICK, value_serializer=json_serializer) as producer:
            with pytest.raises(InvalidRequest, match="topic"):
                await producer.send("a")
            sent = [producer.send({"n": n}, topic=topic) for n in range(3) for topic in ("orders", "bills")]
            await asyncio.gather(*sent)
            await producer.send_table(pa.table({"n": [1]}), topic="bills")
            await producer.flush(5)

    run(main())
    assert sorted(orders.messages) == ['{"n":0}', '{"n":1}', '{"n":2}']
    assert table_of([bills.stored(0)[-1].value]).to_pylist() == [{"n": 1}]
    assert len([seen for seen in server.seen if seen.path.endswith("/producers")]) == 2


def test_a_topic_that_cannot_be_opened_is_told_at_the_start(server: ScriptedServer) -> None:
    server.answer = lambda _: Reply(404, failure(404, 40401, "topic not found: 'ordres'"))

    async def main() -> None:
        with pytest.raises(TopicNotFound):
            async with AsyncProducer(server.url, "ordres", create=False, retry=QUICK):
                pass

    run(main())
    assert server.seen[0].body["create"] is False
