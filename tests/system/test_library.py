"""The library against the whole stack, through the load balancer."""

import itertools
import re
import subprocess
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from myqueue import (
    Admin,
    ApiHandler,
    Consumer,
    ConsumerNotFound,
    IdempotencyConflict,
    Message,
    MyConsumer,
    MyProducer,
    PartitionNotFound,
    PastEnd,
    Producer,
    ProducerFenced,
    ProducerRecord,
    Properties,
    RegistrationConflict,
    StaleCommit,
    TopicExists,
    TopicNotFound,
)
from myqueue.producer import Compression
from tests.cluster import Cluster
from tests.waiting import let_pass, throughout, until

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "client.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE)


def read_all(consumer: Consumer) -> list[str]:
    return [message.text for message in iter(consumer.get_message, None)]


def read(consumer: Consumer, count: int) -> list[Message]:
    messages = [message for message in (consumer.poll(20) for _ in range(count)) if message is not None]
    assert len(messages) == count
    return messages


def test_any_value_comes_back_as_it_was_sent(url: str, topic_name: str) -> None:
    values = [b"", b"text", "Größe 高木".encode(), b"\x00", b"\xff\xfe\x00", bytes(range(256)) * 1000]
    with Producer(url, topic_name) as producer:
        for value in values:
            producer.send(value, key=value[:100] or None, partition=1, headers={"of": value[:3], "none": None})
        last = producer.send("the end", partition=1, timestamp=17).result(20)
    assert (last.partition, last.offset) == (1, len(values))
    with Consumer(url, topic_name, start="earliest") as consumer:
        messages = read(consumer, len(values))
        assert consumer.size() == 1
        end = consumer.get_message()
    assert [message.value for message in messages] == values
    for offset, (message, value) in enumerate(zip(messages, values, strict=True)):
        assert (message.topic, message.partition, message.offset) == (topic_name, 1, offset)
        assert message.key == (value[:100] or None)
        assert message.headers == (("of", value[:3]), ("none", None))
        assert message.producer_id == producer.producer_id
        assert abs(message.timestamp - time.time() * 1000) < 60_000
    assert end is not None
    assert (end.timestamp, end.headers) == (17, ())


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_fifty_thousand_in_order_by_every_way_of_reading(url: str, topic_name: str, compression: Compression) -> None:
    values = [f"{number:0100d}" for number in range(50_000)]
    with Producer(url, topic_name, compression=compression, batch_bytes=256 << 10) as producer:
        spans = producer.send_many(values[:25_000]).result(60)
        deliveries = [producer.send(value) for value in values[25_000:]]
    place = {}
    for span, start in zip(spans, itertools.accumulate((span.count for span in spans), initial=0), strict=False):
        for number in range(span.count):
            place[span.partition, span.base_offset + number] = values[start + number].encode()
    for value, delivery in zip(values[25_000:], deliveries, strict=True):
        receipt = delivery.result(0)
        place[receipt.partition, receipt.offset] = value.encode()
    assert len(place) == len(values)
    assert len({partition for partition, _ in place}) == 4
    with Consumer(url, topic_name, start="earliest") as consumer:
        messages = read(consumer, len(values))
        assert consumer.get_message() is None
    assert {(message.partition, message.offset): message.value for message in messages} == place
    with Consumer(url, topic_name, start="earliest") as consumer:
        tables: list[pa.Table] = []
        while sum(table.num_rows for table in tables) < len(values):
            tables.append(consumer.fetch_arrow(max_messages=7_000, timeout=20))
            assert 0 < tables[-1].num_rows <= 7_000
    table = pa.concat_tables(tables)
    rows = list(zip(*(table.column(name).to_pylist() for name in ("partition", "offset", "value")), strict=True))
    assert {(partition, offset): value for partition, offset, value in rows} == place
    for read_back in ([(m.partition, m.offset) for m in messages], [(row[0], row[1]) for row in rows]):
        for partition in range(4):
            offsets = [offset for where, offset in read_back if where == partition]
            assert offsets == list(range(len(offsets)))


def test_a_key_stays_in_its_partition_and_in_order(url: str, topic_name: str) -> None:
    with Producer(url, topic_name) as producer:
        deliveries = {
            key: [producer.send(f"{key}{number}", key=key) for number in range(10)] for key in ("a", "b", "c", "d")
        }
    for sent in deliveries.values():
        receipts = [delivery.result(0) for delivery in sent]
        assert len({receipt.partition for receipt in receipts}) == 1
        assert [receipt.offset for receipt in receipts] == sorted(receipt.offset for receipt in receipts)


def test_consumers_of_one_name_share_the_partitions_and_others_see_all(url: str, topic_name: str) -> None:
    """A consumer that joins gets its share; then each partition's messages go to one of the two."""
    sent = [f"m{number}" for number in range(400)]
    shares: list[dict[str, int]] = [{}, {}]  # partition by text
    enough = threading.Event()

    def work(share: dict[str, int]) -> None:
        with Consumer(url, topic_name, name="shared", start="earliest") as consumer:
            while not enough.is_set():
                message = consumer.poll(0.2)
                if message is not None:
                    share[message.text] = message.partition

    with Producer(url, topic_name) as producer, ThreadPoolExecutor(2) as pool:

        def both_have_two() -> bool:
            for share in shares:
                share.clear()
            probes = {f"probe-{uuid.uuid4().hex}": partition for partition in range(4)}
            for text, partition in probes.items():
                producer.send(text, partition=partition)
            until(lambda: (shares[0] | shares[1]).keys() >= probes.keys(), within_s=10, what="the probes are read")
            return all(len(probes.keys() & share.keys()) == 2 for share in shares)

        running = [pool.submit(work, share) for share in shares]
        try:
            until(both_have_two, within_s=20, what="each has two partitions")
            for number, value in enumerate(sent):
                producer.send(value, partition=number % 4)
            until(lambda: (shares[0] | shares[1]).keys() >= set(sent), within_s=20, what="all is read")
        finally:
            enough.set()
        for future in running:
            future.result(20)
    of_each = [{partition for value, partition in share.items() if value in sent} for share in shares]
    assert of_each[0].isdisjoint(of_each[1])
    with Consumer(url, topic_name, name="alone", start="earliest") as consumer:
        assert sorted(value for value in read_all(consumer) if not value.startswith("probe")) == sorted(sent)


def test_what_a_dead_process_did_not_commit_is_delivered_again(url: str, topic_name: str) -> None:
    with Producer(url, topic_name) as producer:
        producer.send_many([str(number) for number in range(10)], partition=0)
    code = (
        "import os; from myqueue import Consumer; "
        f"consumer = Consumer({url!r}, {topic_name!r}, name='worker', start='earliest', commit='manual'); "
        "messages = [consumer.poll(20) for _ in range(6)]; "
        "consumer.commit(messages[:3]); os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 9
    started = time.monotonic()
    with Consumer(url, topic_name, name="worker", commit="manual") as consumer:
        messages = read(consumer, 7)
        assert time.monotonic() - started < 15
        assert [message.offset for message in messages] == list(range(3, 10))
        assert consumer.lag().messages == 7
        assert consumer.commit() == {partition: 10 if partition == 0 else 0 for partition in consumer.position()}
        assert consumer.lag().messages == 0
        consumer.seek(0, to=4)
        with pytest.raises(PastEnd):
            consumer.commit({0: 11})
        with pytest.raises(StaleCommit):
            consumer.commit({0: 3})


def test_where_a_consumer_starts_and_seeks(url: str, topic_name: str) -> None:
    with Producer(url, topic_name) as producer:
        for value in ("old", "older"):
            producer.send(value, partition=0).result(20)
        let_pass(0.01)
        between = int(time.time() * 1000)
        let_pass(0.01)
        latest = Consumer(url, topic_name)
        producer.send("new", partition=0).result(20)
        consumers = {
            "latest": latest,
            "earliest": Consumer(url, topic_name, start="earliest"),
            "offset": Consumer(url, topic_name, partition=0, start={"offset": 1}),
            "timestamp": Consumer(url, topic_name, start={"timestamp": between}),
        }
        found = {start: read_all(consumer) for start, consumer in consumers.items()}
        whole = consumers["earliest"]
        assert whole.seek(to={"timestamp": between}) == {0: 2, 1: 0, 2: 0, 3: 0}
        assert read_all(whole) == ["new"]
        whole.seek(0, to=1)
        assert read_all(whole) == ["older", "new"]
        whole.seek(to="earliest")
        assert read_all(whole) == ["old", "older", "new"]
        for consumer in consumers.values():
            consumer.close()
    assert found == {
        "latest": ["new"],
        "earliest": ["old", "older", "new"],
        "offset": ["older", "new"],
        "timestamp": ["new"],
    }


def test_a_name_goes_on_where_it_was(url: str, topic_name: str) -> None:
    with Producer(url, topic_name, name="p") as producer:
        producer.send_many(["a", "b", "c"])
        first_id = producer.producer_id
    with Producer(url, topic_name, name="p") as producer:
        assert producer.producer_id == first_id
        producer.send("d").result(20)
    with Consumer(url, topic_name, name="c", start="earliest") as consumer:
        first = read(consumer, 1)[0]
    with Consumer(url, topic_name, name="c", start="earliest") as consumer:
        rest = read_all(consumer)
    assert sorted([first.text, *rest]) == ["a", "b", "c", "d"]


def test_a_newer_producer_of_the_same_name_takes_over(url: str, topic_name: str) -> None:
    old = Producer(url, topic_name, name="till")
    old.send("a", partition=0).result(20)
    with Producer(url, topic_name, name="till") as new:
        new.send("b", partition=0).result(20)
        assert isinstance(old.send("c", partition=0).exception(20), ProducerFenced)
        old.close()
    with Consumer(url, topic_name, start="earliest") as consumer:
        assert read_all(consumer) == ["a", "b"]


def test_the_same_idempotency_key_stores_once(url: str, topic_name: str) -> None:
    with Producer(url, topic_name, name="one") as first, Producer(url, topic_name, name="one") as second:
        receipt = first.send("order 7", idempotency_key="order-7").result(20)
        assert second.send("order 7", idempotency_key="order-7").result(20) == receipt
        assert isinstance(second.send("order 8", idempotency_key="order-7").exception(20), IdempotencyConflict)
    with Consumer(url, topic_name, start="earliest") as consumer:
        assert read_all(consumer) == ["order 7"]


def test_an_iteration_waits_and_ends_by_close(url: str, topic_name: str) -> None:
    with Producer(url, topic_name) as producer:
        consumer = Consumer(url, topic_name, start="earliest")
        texts: list[str] = []
        got_one = threading.Event()

        def run() -> None:
            for message in consumer:
                texts.append(message.text)
                got_one.set()

        thread = threading.Thread(target=run)
        thread.start()
        throughout(lambda: not got_one.is_set(), for_s=0.3, what="it waits at the brokers")
        started = time.monotonic()
        producer.send("awaited").result(20)
        assert got_one.wait(10)
        assert time.monotonic() - started < 5
        consumer.close()
        thread.join(10)
        assert not thread.is_alive()
    assert texts == ["awaited"]


def test_errors_have_their_classes(url: str, topic_name: str) -> None:
    with Admin(url) as admin:
        with pytest.raises(TopicNotFound) as caught:
            Consumer(url, topic_name)
        assert caught.value.request_id
        assert admin.create_topic(topic_name, partitions=2) == [0, 1]
        with pytest.raises(TopicExists):
            admin.create_topic(topic_name, partitions=2)
        with pytest.raises(PartitionNotFound):
            Consumer(url, topic_name, partition=2)
        with pytest.raises(ConsumerNotFound):
            admin.size(topic_name, 1_000_000)
        admin.register_consumer(topic_name, name="c", partition=1)
        with pytest.raises(RegistrationConflict):
            admin.register_consumer(topic_name, name="c", partition=0)
        with Producer(url, topic_name) as producer:
            with pytest.raises(PartitionNotFound):
                producer.send("x", partition=2)
            missing = producer.send("x", partition=2, idempotency_key="k").exception(20)
            assert isinstance(missing, PartitionNotFound)


def test_what_was_written_is_read_at_once(url: str, topic_name: str) -> None:
    with Admin(url) as admin:
        for number in range(10):
            name = f"{topic_name}-{number}"
            admin.create_topic(name, partitions=1)
            assert name in admin.list_topics()
            consumer_id = admin.register_consumer(name, start="earliest")
            assert admin.size(name, consumer_id) == 0
            assert [partition.replicas for partition in admin.partitions(name)]


def test_health(url: str) -> None:
    with Admin(url) as admin:
        assert admin.ready().ready
        assert admin.health()["status"] == "success"


def test_the_earlier_names(url: str, topic_name: str) -> None:
    other = f"{topic_name}-other"
    with (
        MyProducer(Properties(url, id=1234, topic=topic_name)) as producer,
        MyProducer([topic_name, other], url) as second,
    ):
        producer.register()
        second.register()
        with MyConsumer([topic_name, other], url) as consumer:
            consumer.register()
            producer.send(ProducerRecord(topic_name, "one coffee"))
            producer.send(ProducerRecord(other, b"3.20"))
            messages = [consumer.get_message() for _ in range(3)]
    assert [message and message.text for message in messages] == ["one coffee", "3.20", None]
    with ApiHandler(url) as api:
        consumer_id = api.register_consumer(topic_name, start="earliest")["consumer_id"]
        answer = api.consume(topic_name, consumer_id)
        assert answer is not None
        assert answer["message"] == "one coffee"
        assert api.consume(topic_name, consumer_id) is None
        assert topic_name in api.list_topics()["topics"]
        assert len(api.list_partitions(topic_name)["partitions"]) == 4


@pytest.mark.slow
def test_a_killed_read_manager_is_not_noticed(stack: Cluster, topic_name: str) -> None:
    sent = [f"m{number}" for number in range(120)]
    with Producer(stack.url, topic_name) as producer:
        producer.send_many(sent)
    with Consumer(stack.url, topic_name, start="earliest") as consumer:
        texts = [message.text for message in read(consumer, 40)]
        stack.kill("read-manager-1")
        texts += read_all(consumer)
    assert sorted(texts) == sorted(sent)
    stack.heal()


def test_the_example_of_exactly_once_adds_up(url: str) -> None:
    command = [sys.executable, "-m", "examples.exactly_once", "--url", url, "--payments", "3000", "--kills", "1"]
    done = subprocess.run(command, cwd=DOCUMENT.parents[1], capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "worker 1: " in done.stdout
    assert "It adds up: 3000 payments" in done.stdout


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_the_examples_of_the_documentation_run(url: str, number: int) -> None:
    """Each by itself, on topics of its own."""
    unique = uuid.uuid4().hex[:8]
    code = EXAMPLES[number].replace("http://localhost", url).replace('"localhost"', f'"{url}"')
    code = re.sub(r'"(orders|bills|clicks)"', rf'"\1-{unique}"', code)
    assert url in code
    exec(compile(code, f"{DOCUMENT.name}[{number}]", "exec"), {"__name__": "example"})
