"""Producers against the whole stack: many topics, event loops, forks, tables, and who fenced whom."""

import asyncio
import multiprocessing
import threading
import warnings

import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pytest

from myqueue import (
    Admin,
    Consumer,
    Producer,
    ProducerFenced,
    TopicNotFound,
    json_deserializer,
    json_serializer,
    table_of,
)
from myqueue.aio import AsyncProducer
from myqueue.send_threads import BASE_THREADS, SendThread


def values_of(url: str, topic: str, count: int) -> list[bytes]:
    with Consumer(url, topic=topic, start="earliest", name="reader") as consumer:
        messages = [consumer.poll(20) for _ in range(count)]
        assert consumer.get_message() is None
    return [message.value for message in messages if message is not None]


def test_one_producer_sends_to_many_topics_with_few_threads(url: str, topic_name: str) -> None:
    topics = [f"{topic_name}-{number}" for number in range(5)]
    with Producer(url) as producer:
        deliveries = [producer.send(f"{number}", topic=topics[number % 5]) for number in range(500)]
        many = [producer.send_many(["x"] * 100, topic=topic) for topic in topics]
        producer.flush(60)
        assert all(delivery.done() for delivery in deliveries)
        assert all(delivery.done() for delivery in many)
        threads = [thread for thread in threading.enumerate() if isinstance(thread, SendThread)]
        assert 0 < len(threads) <= BASE_THREADS + 5  # a few more while the machine is slow
    with Admin(url) as admin:
        for topic in topics:
            assert sum(bounds.end_offset for bounds in admin.offsets(topic).values()) == 200


def test_a_missing_topic_is_created_only_if_it_shall_be(url: str, topic_name: str) -> None:
    with pytest.raises(TopicNotFound):
        Producer(url, topic=topic_name, create=False)
    with Admin(url) as admin:
        assert topic_name not in admin.list_topics()
    with Producer(url, topic=topic_name) as producer:
        producer.send("a").result(20)
    with Producer(url, topic=topic_name, create=False) as producer:
        producer.send("b").result(20)
    assert sorted(values_of(url, topic_name, 2)) == [b"a", b"b"]


def test_many_keyed_messages_are_read_as_they_were_sent(url: str, topic_name: str) -> None:
    """As columns and one by one, in turn: each key keeps the order of all of them."""
    keys = [f"key {number % 50}" if number % 7 else None for number in range(3000)]
    with Producer(url, topic=topic_name, batch_bytes=20_000) as producer:
        for start in range(0, 3000, 1000):
            numbers = range(start, start + 999)
            headers = [{"number": f"{number}"} for number in numbers]
            timestamps = [1_700_000_000_000 + number for number in numbers]
            producer.send_many(
                [f"{n}" for n in numbers], keys=keys[start:][:999], headers=headers, timestamps=timestamps
            )
            producer.send(f"{start + 999}", key=keys[start + 999])
        producer.flush(60)
    with Consumer(url, topic=topic_name, start="earliest", name="reader") as consumer:
        read = [message for message in (consumer.poll(20) for _ in range(3000)) if message is not None]
    assert sorted(int(message.value) for message in read) == list(range(3000))
    for key in {*keys} - {None}:
        found = [message for message in read if message.key == str(key).encode()]
        assert [int(message.value) for message in found] == [n for n, its_key in enumerate(keys) if its_key == key]
        assert len({message.partition for message in found}) == 1
    for message in read:
        if int(message.value) % 1000 != 999:
            assert message.headers == (("number", message.value),)
            assert message.timestamp == 1_700_000_000_000 + int(message.value)


def test_an_event_loop_sends(url: str, topic_name: str) -> None:
    async def main() -> None:
        async with AsyncProducer(url, topic_name, value_serializer=json_serializer, buffer_bytes=20_000) as producer:
            single = await producer.send({"n": 0})
            assert (await single).topic == topic_name
            sent = await asyncio.gather(*[producer.send({"n": n}) for n in range(1, 500)])
            await asyncio.gather(*sent)
            await (await producer.send_many([{"n": n} for n in range(500, 1000)]))

    asyncio.run(asyncio.wait_for(main(), 60))
    read = [json_deserializer(value)["n"] for value in values_of(url, topic_name, 1000)]
    assert sorted(read) == list(range(1000))


def test_a_fenced_producer_is_told_by_whom(url: str, topic_name: str) -> None:
    with Producer(url, topic=topic_name, name="till") as old, Producer(url, topic=topic_name, name="till") as new:
        new.send("new", partition=0).result(20)
        with pytest.raises(ProducerFenced, match=f"producer 'till' of topic '{topic_name}' .* name of its own"):
            old.send("old", partition=0).result(20)


def test_a_data_frame_goes_in_and_comes_out(url: str, topic_name: str) -> None:
    frame = pd.DataFrame({"item": [f"item {n}" for n in range(50_000)], "price": [n / 100 for n in range(50_000)]})
    with Producer(url, topic=topic_name) as producer:
        producer.send_table(frame, partition=1).result(60)
    with Consumer(url, topic=topic_name, start="earliest", name="reader") as consumer:
        parts: list[pa.Table] = []
        while sum(part.num_rows for part in parts) < len(frame):
            parts.append(table_of(consumer.fetch_arrow(timeout=20)))
    pd.testing.assert_frame_equal(pd.concat([part.to_pandas() for part in parts], ignore_index=True), frame)


def test_a_child_process_sends_with_its_parents_producer(url: str, topic_name: str) -> None:
    context = multiprocessing.get_context("fork")
    with Producer(url, topic=topic_name) as producer:
        producer.send("parent").result(20)

        def send() -> None:
            with producer:
                producer.send("child").result(20)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of 3.12: this process has threads
            children = [context.Process(target=send) for _ in range(3)]
            for child in children:
                child.start()
        for child in children:
            child.join(60)
        assert [child.exitcode for child in children] == [0, 0, 0]
        producer.send("parent").result(20)
    assert sorted(values_of(url, topic_name, 5)) == [b"child"] * 3 + [b"parent"] * 2
