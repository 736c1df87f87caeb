"""What clients and deliveries show of themselves."""

import asyncio
import os
import re

from myqueue import Admin, Consumer, Deliveries, Delivery, MyQueueError, Producer, Reader
from myqueue.aio import AsyncConsumer, AsyncProducer
from myqueue.delivery import BatchResult
from myqueue.worker import Worker
from tests.unit.client.failing_appends import QUICK
from tests.unit.client.memory_cluster import MemoryCluster, SeveralTopics
from tests.unit.client.scripted_server import ScriptedServer


def test_a_producer(server: ScriptedServer) -> None:
    server.answer = SeveralTopics(MemoryCluster(), MemoryCluster(topic="bills", consumer_id=6))
    producer = Producer(server.url, "orders", name="till-1", retry=QUICK)
    assert repr(producer) == f"<Producer topic='orders' name='till-1' url='{server.url}' open>"
    producer.send("a", topic="bills").result(5)
    assert "topic='orders' other_topics=['bills'] name='till-1'" in repr(producer)
    newer = Producer(server.url, "orders", name="till-1", retry=QUICK)
    newer.send("b").result(5)
    producer.send("c").exception(5)
    assert repr(producer).endswith(" fenced>")
    producer.close()
    assert repr(producer).endswith(" closed>")
    newer.close()


def test_a_producer_without_a_topic_and_that_of_another_process(server: ScriptedServer) -> None:
    with Producer(server.url, name="till-1", retry=QUICK) as producer:
        assert repr(producer) == f"<Producer name='till-1' url='{server.url}' opens with the first message>"
        producer._topics.process_id = 4711
        assert repr(producer).endswith(" of process 4711>")
        producer._topics.process_id = os.getpid()


def test_a_delivery() -> None:
    result = BatchResult("orders")
    result.count = 3
    delivery, many = Delivery(result, 2), Deliveries([(result, 0, 3)])
    assert repr(delivery) == "<Delivery topic='orders' not decided yet>"
    assert repr(many) == "<Deliveries topic='orders' messages=3 not decided yet>"
    result.stored(1, 40)
    assert repr(delivery) == "<Delivery topic='orders' partition=1 offset=42 stored>"
    assert repr(many) == "<Deliveries topic='orders' messages=3 stored>"
    failed = BatchResult("orders")
    failed.failed(MyQueueError("no"))
    assert repr(Delivery(failed, 0)) == "<Delivery topic='orders' failed: MyQueueError('no')>"
    assert repr(Deliveries([(failed, 0, 1)])).endswith(" failed: MyQueueError('no')>")
    assert repr(Deliveries([])) == "<Deliveries messages=0 stored>"


def test_a_consumer(server: ScriptedServer) -> None:
    server.answer = cluster = MemoryCluster(partitions=2)
    cluster.put("a")
    consumer = Consumer(server.url, "orders", "billing", start="earliest", retry=QUICK)
    assert repr(consumer) == f"<Consumer topic='orders' name='billing' url='{server.url}' open>"
    consumer.poll(5)
    assert "name='billing' partitions=[0, 1] url=" in repr(consumer)
    consumer.close()
    assert repr(consumer) == f"<Consumer topic='orders' name='billing' url='{server.url}' closed>"


def test_a_reader_an_admin_and_a_worker(server: ScriptedServer, cluster: MemoryCluster) -> None:
    with Reader(server.url, "orders", {0: 0}, retry=QUICK) as reader:
        assert repr(reader) == f"<Reader topic='orders' position={{0: 0}} url='{server.url}' open>"
    assert repr(reader).endswith(" closed>")
    with Admin(server.url) as admin:
        assert repr(admin) == f"<Admin url='{server.url}' open>"
    assert repr(admin) == f"<Admin url='{server.url}' closed>"
    worker = Worker(print, server.url, topic="orders", name="billing")
    assert repr(worker) == f"<Worker topic='orders' name='billing' url='{server.url}' not started>"


def test_async_clients(server: ScriptedServer, cluster: MemoryCluster) -> None:
    async def use() -> None:
        producer = AsyncProducer(server.url, "orders", name="till-1", retry=QUICK)
        assert repr(producer).endswith(" opens with the first message>")
        async with producer:
            assert repr(producer) == f"<AsyncProducer topic='orders' name='till-1' url='{server.url}' open>"
        consumer = AsyncConsumer(server.url, "orders", retry=QUICK)
        assert re.match(r"<AsyncConsumer topic='orders' name='consumer-\w+' url=.* not open yet>", repr(consumer))
        async with consumer:
            assert repr(consumer).endswith(" open>")

    asyncio.run(use())
