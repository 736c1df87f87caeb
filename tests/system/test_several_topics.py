"""Consumers of several topics on a whole stack: shared by members, with topics that come and go."""

import asyncio
import re
from collections import Counter

import pytest

from myqueue import Admin, Consumer, ConsumerNotFound, Message, Producer, StaleLease, TopicNotFound, TopicPartition
from myqueue.aio import AsyncConsumer
from tests.waiting import until

EACH = 40  # messages of a partition


@pytest.fixture
def topics(url: str, topic_name: str) -> list[str]:
    """Three topics of two partitions, with messages in all."""
    names = [f"{topic_name}.{kind}" for kind in ("orders", "bills", "mails")]
    for name in names:
        create(url, name)
    return names


def create(url: str, name: str) -> None:
    with Admin(url) as admin:
        admin.create_topic(name, partitions=2)
    send(url, name)


def send(url: str, name: str) -> None:
    with Producer(url, topic=name) as producer:
        for partition in range(2):
            producer.send_many([f"{partition}/{number}" for number in range(EACH)], partition=partition).result()


def delete(url: str, name: str) -> None:
    with Admin(url) as admin:
        admin.delete_topic(name)


def offsets(read: list[Message]) -> dict[TopicPartition, list[int]]:
    found: dict[TopicPartition, list[int]] = {}
    for message in read:
        found.setdefault(TopicPartition(message.topic, message.partition), []).append(message.offset)
    return found


def test_two_members_read_each_message_once(url: str, topics: list[str]) -> None:
    """The second joins while the first has uncommitted messages of all topics, which it commits in on_revoke."""
    partitions = [TopicPartition(name, number) for name in topics for number in range(2)]
    read: list[Message] = []
    revoked: list[TopicPartition] = []

    def on_revoke(places: list[TopicPartition]) -> None:
        revoked.extend(places)
        first.commit()

    first = Consumer(url, topics, "g", start="earliest", commit="manual", on_revoke=on_revoke)
    second = Consumer(url, topics, "g", commit="manual", on_revoke=lambda _: second.commit())
    with first, second:
        while len(read) < 6 * EACH:
            read += first.poll_many(50, timeout=20)
        assert offsets(read) == {place: list(range(EACH)) for place in partitions}

        def each_has_half() -> bool:
            for member in (first, second):
                read.extend(member.poll_many(50, timeout=0.02))
            held = [*first.position(), *second.position()]
            return len(first.position()) == len(second.position()) == 3 and set(held) == set(partitions)

        until(each_has_half, within_s=30, what="each has a partition of each topic", pause_s=0.001)
        assert {place.topic for place in revoked} == set(topics)
        for name in topics:
            send(url, name)

        def all_are_read() -> bool:
            for member in (first, second):
                read.extend(member.poll_many(50, timeout=0.02))
            return len(read) >= 12 * EACH

        until(all_are_read, within_s=30, what="what came then is read", pause_s=0.001)
        counted = Counter((message.topic, message.partition, message.offset) for message in read)
        assert set(counted.values()) == {1}
        assert offsets(read) == {place: list(range(2 * EACH)) for place in partitions}
        assert first.commit() | second.commit() == dict.fromkeys(partitions, 2 * EACH)
        assert (first.lag().messages, first.size()) == (0, 0)
        assert first.seek(TopicPartition(topics[0], 1), to=3) == {TopicPartition(topics[0], 1): 3}


def test_topics_come_and_go(url: str, topics: list[str], topic_name: str) -> None:
    assigned: list[TopicPartition] = []
    gone: list[TopicPartition] = []
    pattern = re.compile(re.escape(topic_name) + r"\..*")
    with Consumer(
        url,
        pattern,
        "g",
        start="earliest",
        on_assign=assigned.extend,
        on_revoke=gone.extend,
        metadata_max_age_s=0.2,
    ) as consumer:
        read: list[Message] = []
        while len(read) < 6 * EACH:
            read += consumer.poll_many(50, timeout=20)
        assert consumer.topics == tuple(sorted(topics))
        late = f"{topic_name}.late"
        create(url, late)
        while len(read) < 8 * EACH:
            read += consumer.poll_many(50, timeout=20)
        assert offsets(read)[TopicPartition(late, 1)] == list(range(EACH))
        assert set(assigned) == {TopicPartition(name, number) for name in [*topics, late] for number in range(2)}
        delete(url, topics[2])

        def is_dropped() -> bool:
            assert consumer.poll(0.05) is None
            return len(gone) == 2

        until(is_dropped, within_s=30, what="the deleted topic is dropped")
        assert sorted(gone) == [TopicPartition(topics[2], 0), TopicPartition(topics[2], 1)]
        assert consumer.topics == tuple(sorted([*topics[:2], late]))
        with pytest.raises(StaleLease, match=re.escape(repr(topics[2]))):
            consumer.commit([message for message in read if message.topic == topics[2]])
        send(url, topics[0])
        while len(read) < 10 * EACH:
            read += consumer.poll_many(50, timeout=20)
    with Admin(url) as admin:
        for name in (*topics[:2], late):
            assert admin.lag("g", name).messages == 0


def test_a_list_says_what_is_missing(url: str, topics: list[str]) -> None:
    with pytest.raises(TopicNotFound, match=f"{topics[0]}x'; did you mean '{topics[0]}'"):
        Consumer(url, [*topics[1:], f"{topics[0]}x"], "g")
    with Consumer(url, topics, "g", start="earliest") as consumer:
        read = 0
        while read < 6 * EACH:
            read += len(consumer.poll_many(500, timeout=20))
        delete(url, topics[1])
        with pytest.raises((TopicNotFound, ConsumerNotFound), match=re.escape(topics[1])):
            until(lambda: consumer.poll(0.1), within_s=30, what="an error")


def test_in_an_event_loop(url: str, topics: list[str], topic_name: str) -> None:
    async def read_all() -> dict[TopicPartition, list[int]]:
        read: list[Message] = []
        pattern = re.compile(re.escape(topic_name) + r"\..*")
        gone: list[TopicPartition] = []

        async def on_lost(places: list[TopicPartition]) -> None:
            gone.extend(places)

        async with (
            AsyncConsumer(url, topics, "list", start="earliest", commit="manual") as one,
            AsyncConsumer(url, pattern, "pattern", start="earliest", on_lost=on_lost, metadata_max_age_s=0.2) as other,
        ):
            async for message in one:
                read.append(message)
                await one.commit(message, wait=False)
                if len(read) == 6 * EACH:
                    break
            # A poll that is cancelled takes nothing.
            while await other.size() > 0:
                polling = asyncio.create_task(other.poll_many(7, 20))
                await asyncio.sleep(0.001)
                polling.cancel()
                await asyncio.wait([polling])
                if not polling.cancelled():
                    read += polling.result()
            await asyncio.to_thread(create, url, f"{topic_name}.late")
            while len(read) < 14 * EACH:
                read += await other.poll_many(50, 20)
            await asyncio.to_thread(delete, url, f"{topic_name}.late")
            while len(gone) < 2:
                assert await other.poll(0.05) is None
        return offsets(read)

    found = asyncio.run(asyncio.wait_for(read_all(), 120))
    for name in topics:
        for number in range(2):
            twice = found[TopicPartition(name, number)]
            assert sorted(twice) == sorted([*range(EACH), *range(EACH)])
            assert twice == [*range(EACH), *range(EACH)], "each consumer got them in their order"
    with Admin(url) as admin:
        assert [admin.lag("list", name).messages for name in topics] == [0, 0, 0]
