"""The library against the whole stack, through the load balancer."""

import re
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from myqueue import (
    Admin,
    ApiHandler,
    Consumer,
    ConsumerNotFound,
    IdempotencyConflict,
    MyConsumer,
    MyProducer,
    PartitionNotFound,
    Producer,
    ProducerRecord,
    Properties,
    RegistrationConflict,
    TopicExists,
    TopicNotFound,
)
from tests.cluster import Cluster

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "client.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE)


def read_all(consumer: Consumer) -> list[str]:
    return [message.text for message in iter(consumer.get_message, None)]


def test_any_value_comes_back_as_it_was_sent(stack: Cluster, topic_name: str) -> None:
    values = [b"", b"text", "Größe 高木".encode(), b"\x00", b"\xff\xfe\x00", bytes(range(256)) * 1000]
    with Producer(stack.url, topic_name) as producer:
        for value in values:
            producer.send(value, key=value[:100] or None, partition=1)
        last = producer.send("the end", partition=1).result(20)
    assert (last.partition, last.offset) == (1, len(values))
    with Consumer(stack.url, topic_name, start="earliest") as consumer:
        messages = [consumer.poll(10) for _ in values]
        assert consumer.size() == 1
    assert [message and message.value for message in messages] == values
    for offset, (message, value) in enumerate(zip(messages, values, strict=True)):
        assert message is not None
        assert (message.topic, message.partition, message.offset) == (topic_name, 1, offset)
        assert message.key == (value[:100] or None)
        assert message.producer_id == producer.producer_id
        assert abs(message.timestamp - time.time() * 1000) < 60_000


def test_a_key_stays_in_its_partition_and_in_order(stack: Cluster, topic_name: str) -> None:
    with Producer(stack.url, topic_name) as producer:
        deliveries = {
            key: [producer.send(f"{key}{number}", key=key) for number in range(10)] for key in ("a", "b", "c", "d")
        }
    for sent in deliveries.values():
        receipts = [delivery.result(0) for delivery in sent]
        assert len({receipt.partition for receipt in receipts}) == 1
        assert [receipt.offset for receipt in receipts] == sorted(receipt.offset for receipt in receipts)


def test_messages_without_a_key_use_all_partitions(stack: Cluster, topic_name: str) -> None:
    with Producer(stack.url, topic_name) as producer:
        deliveries = producer.send_many([str(number) for number in range(40)])
    assert {delivery.result(0).partition for delivery in deliveries} == {0, 1, 2, 3}


def test_consumers_of_one_name_split_the_messages_and_others_see_all(stack: Cluster, topic_name: str) -> None:
    sent = [f"m{number}" for number in range(60)]
    with Producer(stack.url, topic_name) as producer:
        producer.send_many(sent)

    def read(name: str) -> list[str]:
        with Consumer(stack.url, topic_name, name=name, start="earliest") as consumer:
            return read_all(consumer)

    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(read, ["shared", "shared", "shared", "alone"]))
    assert sorted(parts[0] + parts[1] + parts[2]) == sorted(sent)
    assert sorted(parts[3]) == sorted(sent)


def test_where_a_consumer_starts(stack: Cluster, topic_name: str) -> None:
    with Producer(stack.url, topic_name) as producer:
        for value in ("old", "older"):
            producer.send(value, partition=0).result(20)
        time.sleep(0.01)
        between = int(time.time() * 1000)
        time.sleep(0.01)
        latest = Consumer(stack.url, topic_name)
        producer.send("new", partition=0).result(20)
        consumers = {
            "latest": latest,
            "earliest": Consumer(stack.url, topic_name, start="earliest"),
            "offset": Consumer(stack.url, topic_name, partition=0, start={"offset": 1}),
            "timestamp": Consumer(stack.url, topic_name, start={"timestamp": between}),
        }
        read = {start: read_all(consumer) for start, consumer in consumers.items()}
        for consumer in consumers.values():
            consumer.close()
    assert read == {
        "latest": ["new"],
        "earliest": ["old", "older", "new"],
        "offset": ["older", "new"],
        "timestamp": ["new"],
    }


def test_a_name_goes_on_where_it_was(stack: Cluster, topic_name: str) -> None:
    with Producer(stack.url, topic_name, name="p") as producer:
        producer.send_many(["a", "b", "c"])
        first_id = producer.producer_id
    with Producer(stack.url, topic_name, name="p") as producer:
        assert producer.producer_id == first_id
    with Consumer(stack.url, topic_name, name="c", start="earliest") as consumer:
        first = consumer.poll(10)
    with Consumer(stack.url, topic_name, name="c", start="earliest") as consumer:
        rest = read_all(consumer)
    assert first is not None
    assert sorted([first.text, *rest]) == ["a", "b", "c"]


def test_the_same_idempotency_key_stores_once(stack: Cluster, topic_name: str) -> None:
    with Producer(stack.url, topic_name, name="one") as first, Producer(stack.url, topic_name, name="one") as second:
        receipt = first.send("order 7", idempotency_key="order-7").result(20)
        assert second.send("order 7", idempotency_key="order-7").result(20) == receipt
        assert isinstance(second.send("order 8", idempotency_key="order-7").exception(20), IdempotencyConflict)
    with Consumer(stack.url, topic_name, start="earliest") as consumer:
        assert read_all(consumer) == ["order 7"]


def test_an_iteration_waits_and_ends_by_close(stack: Cluster, topic_name: str) -> None:
    with Producer(stack.url, topic_name) as producer:
        consumer = Consumer(stack.url, topic_name, start="earliest", wait_s=1.0)
        read: list[str] = []
        got_one = threading.Event()

        def run() -> None:
            for message in consumer:
                read.append(message.text)
                got_one.set()

        thread = threading.Thread(target=run)
        thread.start()
        time.sleep(0.3)  # it waits at the server now
        started = time.monotonic()
        producer.send("awaited").result(20)
        assert got_one.wait(10)
        assert time.monotonic() - started < 5
        consumer.close()
        thread.join(10)
        assert not thread.is_alive()
    assert read == ["awaited"]


def test_errors_have_their_classes(stack: Cluster, topic_name: str) -> None:
    with Admin(stack.url) as admin:
        with pytest.raises(TopicNotFound) as caught:
            Consumer(stack.url, topic_name)
        assert caught.value.request_id
        assert admin.create_topic(topic_name, partitions=2) == [0, 1]
        with pytest.raises(TopicExists):
            admin.create_topic(topic_name, partitions=2)
        with pytest.raises(PartitionNotFound):
            Consumer(stack.url, topic_name, partition=2)
        with pytest.raises(ConsumerNotFound):
            admin.size(topic_name, 1_000_000)
        admin.register_consumer(topic_name, name="c", partition=1)
        with pytest.raises(RegistrationConflict):
            admin.register_consumer(topic_name, name="c", partition=0)
        with Producer(stack.url, topic_name) as producer:
            assert isinstance(producer.send("x", partition=2).exception(20), PartitionNotFound)


def test_what_was_written_is_read_at_once(stack: Cluster, topic_name: str) -> None:
    with Admin(stack.url) as admin:
        for number in range(10):
            name = f"{topic_name}-{number}"
            admin.create_topic(name, partitions=1)
            assert name in admin.list_topics()
            consumer_id = admin.register_consumer(name, start="earliest")
            assert admin.size(name, consumer_id) == 0
            assert [partition.replicas for partition in admin.partitions(name)]


def test_health(stack: Cluster) -> None:
    with Admin(stack.url) as admin:
        assert admin.ready().ready
        assert admin.health()["status"] == "success"


def test_the_earlier_names(stack: Cluster, topic_name: str) -> None:
    other = f"{topic_name}-other"
    with (
        MyProducer(Properties(stack.url, id=1234, topic=topic_name)) as producer,
        MyProducer([topic_name, other], stack.url) as second,
    ):
        producer.register()
        second.register()
        with MyConsumer([topic_name, other], stack.url) as consumer:
            consumer.register()
            producer.send(ProducerRecord(topic_name, "one coffee"))
            producer.send(ProducerRecord(other, b"3.20"))
            messages = [consumer.get_message() for _ in range(3)]
    assert [message and message.text for message in messages] == ["one coffee", "3.20", None]
    with ApiHandler(stack.url) as api:
        consumer_id = api.register_consumer(topic_name, start="earliest")["consumer_id"]
        answer = api.consume(topic_name, consumer_id)
        assert answer is not None
        assert answer["message"] == "one coffee"
        assert api.consume(topic_name, consumer_id) is None
        assert topic_name in api.list_topics()["topics"]
        assert len(api.list_partitions(topic_name)["partitions"]) == 4


def test_a_killed_read_manager_is_not_noticed(stack: Cluster, topic_name: str) -> None:
    sent = [f"m{number}" for number in range(120)]
    with Producer(stack.url, topic_name) as producer:
        producer.send_many(sent)
    with Consumer(stack.url, topic_name, start="earliest") as consumer:
        read = [message.text for message in (consumer.poll(10) for _ in range(40)) if message]
        stack.kill("read-manager-1")
        read += read_all(consumer)
    assert sorted(read) == sorted(sent)
    stack.heal()


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_the_examples_of_the_documentation_run(stack: Cluster, number: int) -> None:
    """Each by itself, on topics of its own."""
    unique = uuid.uuid4().hex[:8]
    code = EXAMPLES[number].replace("http://localhost", stack.url).replace('"localhost"', f'"{stack.url}"')
    code = re.sub(r'"(orders|bills|clicks)"', rf'"\1-{unique}"', code)
    assert stack.url in code
    exec(compile(code, f"{DOCUMENT.name}[{number}]", "exec"), {"__name__": "example"})
