"""One producer and many topics: opened on first use, flushed and closed together, under one limit of the buffer."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from myqueue import (
    DeliveryTimeout,
    InvalidRequest,
    Producer,
    ProducerClosed,
    Receipt,
    SerializationError,
    TopicNotFound,
    json_serializer,
    table_of,
)
from tests.unit.client.failing_appends import QUICK, is_append
from tests.unit.client.memory_cluster import MemoryCluster, SeveralTopics
from tests.unit.client.scripted_server import Reply, ScriptedServer, Seen, Step, failure
from tests.waiting import throughout, until


@pytest.fixture
def bills(server: ScriptedServer, cluster: MemoryCluster) -> MemoryCluster:
    bills = MemoryCluster(topic="bills", consumer_id=8)
    server.answer = SeveralTopics(cluster, bills)
    return bills


def opened(server: ScriptedServer) -> list[str]:
    return [seen.path.split("/")[3] for seen in server.seen if seen.path.endswith("/producers")]


def test_topics_are_opened_on_first_use(server: ScriptedServer, cluster: MemoryCluster, bills: MemoryCluster) -> None:
    with Producer(server.url, name="till", retry=QUICK) as producer:
        assert server.seen == []
        assert producer.send("a", topic="orders").result(5) == Receipt("orders", 0, 0)
        assert producer.send("1", topic="bills").result(5) == Receipt("bills", 0, 0)
        producer.send_many(["b", "c"], topic="orders")
        producer.send("2", topic="bills", idempotency_key="two")
        producer.flush(5)
    assert opened(server) == ["orders", "bills"]
    assert all(seen.body == {"name": "till"} for seen in server.seen if seen.path.endswith("/producers"))
    assert cluster.messages == ["a", "b", "c"]
    assert bills.messages == ["1", "2"]


def test_a_topic_of_its_own_is_the_default(
    server: ScriptedServer, cluster: MemoryCluster, bills: MemoryCluster
) -> None:
    with Producer(server.url, topic="orders", retry=QUICK) as producer:
        producer.send("a")
        producer.send("1", topic="bills")
    assert (cluster.messages, bills.messages) == (["a"], ["1"])


def test_without_any_topic_it_says_what_is_missing(server: ScriptedServer) -> None:
    with Producer(server.url) as producer:
        for send in (lambda: producer.send("a"), lambda: producer.send_many(["a"])):
            with pytest.raises(InvalidRequest, match="no topic of its own"):
                send()
        with pytest.raises(InvalidRequest, match="topic must not be empty"):
            producer.send("a", topic="")
        with pytest.raises(TypeError, match="topic must be a str"):
            producer.send("a", topic=5)  # type: ignore[arg-type]


def test_the_buffer_is_one_for_all_topics(server: ScriptedServer, cluster: MemoryCluster, bills: MemoryCluster) -> None:
    gate = threading.Event()
    answer = server.answer

    def gated(seen: Seen) -> Step:
        if is_append(seen):
            gate.wait(10)
        return answer(seen)

    server.answer = gated
    with Producer(server.url, buffer_bytes=150, retry=QUICK) as producer:
        producer.send("x" * 100, topic="orders")
        blocked = threading.Thread(target=lambda: producer.send("y" * 100, topic="bills"))
        blocked.start()
        blocked.join(0.3)
        assert blocked.is_alive()
        with pytest.raises(DeliveryTimeout, match="1 messages"):
            producer.flush(0.05)
        gate.set()
        blocked.join(5)
        assert not blocked.is_alive()
        producer.flush(5)
        assert producer._topics.buffer.used == 0


def test_flush_names_the_topics_that_failed(
    server: ScriptedServer, cluster: MemoryCluster, bills: MemoryCluster
) -> None:
    answer = server.answer
    refused = Reply(400, failure(400, 40001, "refused", outcome="not_written"))
    server.answer = lambda seen: refused if is_append(seen) and str(bills.topic_id) in seen.path else answer(seen)
    with Producer(server.url, retry=QUICK) as producer:
        producer.send("a", topic="orders")
        producer.send_many(["1", "2"], topic="bills")
        with pytest.raises(InvalidRequest) as caught:
            producer.flush(5)
    assert caught.value.__notes__ == ["2 of the messages sent to 'bills' failed"]
    assert cluster.messages == ["a"]


def test_topics_are_opened_once_by_many_threads(
    server: ScriptedServer, cluster: MemoryCluster, bills: MemoryCluster
) -> None:
    with Producer(server.url, retry=QUICK) as producer:
        threads = [threading.Thread(target=lambda: producer.send("1", topic="bills")) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert opened(server) == ["bills"]
    assert len(bills.messages) == 8


def test_a_missing_topic_is_an_error_if_none_shall_be_created(server: ScriptedServer) -> None:
    missing = Reply(404, failure(404, 40401, "topic not found"))
    server.answer = lambda seen: missing
    with pytest.raises(TopicNotFound):
        Producer(server.url, topic="ordres", create=False)
    assert server.seen[0].body["create"] is False
    with Producer(server.url, create=False) as producer, pytest.raises(TopicNotFound):
        producer.send("a", topic="ordres")


def test_a_producer_that_closes_while_it_opens_a_topic_sends_nothing(
    server: ScriptedServer, cluster: MemoryCluster
) -> None:
    gate = threading.Event()

    def gated(seen: Seen) -> Step:
        gate.wait(10)
        return cluster(seen)

    server.answer = gated
    producer = Producer(server.url, retry=QUICK)
    errors: list[Exception] = []

    def send() -> None:
        try:
            producer.send("a", topic="orders")
        except ProducerClosed as error:
            errors.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    until(lambda: server.seen, within_s=5, what="it is being opened")
    closing = threading.Thread(target=producer.close)
    closing.start()
    until(lambda: producer._topics.closed, within_s=5, what="it closes")
    gate.set()
    thread.join(5)
    closing.join(5)
    assert not closing.is_alive()
    assert len(errors) == 1
    assert cluster.messages == []


def test_values_are_serialized(server: ScriptedServer, cluster: MemoryCluster) -> None:
    with Producer(server.url, topic="orders", value_serializer=json_serializer, retry=QUICK) as producer:
        producer.send({"a": 1})
        producer.send_many([[1], "two"])
        producer.send(b"raw", serialized=True)
        with pytest.raises(SerializationError, match="type object"):
            producer.send(object())
        with pytest.raises(SerializationError, match="type object"):
            producer.send_many([1, object()])
    assert cluster.messages == ['{"a":1}', "[1]", '"two"', "raw"]


def test_a_table_goes_into_a_topic_and_out_of_it(server: ScriptedServer, cluster: MemoryCluster) -> None:
    table = pa.table({"n": list(range(200_000)), "text": [f"{number:010}" for number in range(200_000)]})
    with Producer(server.url, topic="orders", value_serializer=json_serializer, retry=QUICK) as producer:
        deliveries = producer.send_table(table, key="k")
        assert len(deliveries) > 1
        deliveries.result(20)
        with pytest.raises(SerializationError, match="type list is not a table"):
            producer.send_table([1])
    assert all(message.key == b"k" for message in cluster.stored(0))
    assert table_of(message.value for message in cluster.stored(0)).equals(table)


def test_a_topic_that_waits_to_be_opened_is_not_opened_by_a_closed_producer(
    server: ScriptedServer, cluster: MemoryCluster, bills: MemoryCluster
) -> None:
    producer = Producer(server.url, retry=QUICK)
    with ThreadPoolExecutor(1) as pool:
        with producer._topics._opening:  # as while another topic is opened
            sending = pool.submit(producer.send, "1", topic="bills")
            until(sending.running)
            throughout(lambda: not sending.done(), for_s=0.1, what="it waits")
            assert producer._topics.begin_close()
        with pytest.raises(ProducerClosed):
            sending.result(5)
    producer._topics.stop()
    assert opened(server) == []
