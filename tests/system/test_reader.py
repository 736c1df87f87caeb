"""Reading by offsets, without a name."""

import threading

import pytest

from myqueue import Admin, PartitionNotFound, Producer, Reader, ReaderClosed, RetryPolicy, TopicNotFound


def test_a_reader_starts_where_it_is_told_and_keeps_the_order(url: str, topic_name: str) -> None:
    with Producer(url, topic_name, batch_bytes=2000, compression="lz4") as producer:
        for partition in (0, 1, 3):
            producer.send_many([f"{partition}-{number}" for number in range(1000)], partition=partition)
        producer.flush(30)
        with Reader(url, topic_name, {0: 990, 1: 0, 2: 0}) as reader:
            messages = [message for message in (reader.poll(30) for _ in range(1010)) if message is not None]
            assert len(messages) == 1010
            assert reader.position() == {0: 1000, 1: 1000, 2: 0}
            assert reader.poll(0) is None
            assert [m.text for m in messages if m.partition == 0] == [f"0-{n}" for n in range(990, 1000)]
            assert [m.text for m in messages if m.partition == 1] == [f"1-{n}" for n in range(1000)]
            producer.send("late", partition=2).result(30)
            late = reader.poll(30)
            assert late is not None
            assert (late.text, late.partition, late.offset, late.topic) == ("late", 2, 0, topic_name)
    with Admin(url) as admin:
        assert admin.consumers(topic_name) == []


def test_closing_ends_a_reader_that_waits_and_a_lost_topic_is_told(url: str, topic_name: str) -> None:
    with Admin(url) as admin:
        with pytest.raises(TopicNotFound):
            Reader(url, topic_name, {0: 0}, retry=RetryPolicy(deadline_s=5))
        admin.create_topic(topic_name, partitions=1)
        reader = Reader(url, topic_name, {0: 0})
        threading.Timer(0.2, reader.close).start()
        assert reader.poll(30) is None
        reader.close()
        with pytest.raises(ReaderClosed):
            reader.poll()
        with Reader(url, topic_name, {0: 0}, retry=RetryPolicy(deadline_s=5)) as left:
            admin.delete_topic(topic_name)
            with pytest.raises((TopicNotFound, PartitionNotFound)):
                left.poll(30)
