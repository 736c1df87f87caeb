"""A pattern of topics: those that come are joined, those that go are left without an error."""

import asyncio
import re

import pytest

from myqueue import (
    RegistrationConflict,
    StaleLease,
    TopicPartition,
    Unavailable,
)
from tests.unit.client.memory_cluster import MemoryCluster, SeveralTopics
from tests.unit.client.scripted_server import Reply, ScriptedServer, Seen, failure
from tests.unit.client.several_topics import NAMES, SOON_S, async_consumer, at, consumer, rest, several_topics, texts
from tests.waiting import until


@pytest.fixture
def topics(server: ScriptedServer) -> SeveralTopics:
    return several_topics(server)


def test_topics_that_come_and_go(server: ScriptedServer, topics: SeveralTopics) -> None:
    topics.clusters.append(MemoryCluster(topic="_staged.orders", consumer_id=20))
    called: list[tuple[str, TopicPartition]] = []
    with consumer(
        server,
        re.compile(r"orders.*|new\..*"),
        metadata_max_age_s=SOON_S,
        on_assign=lambda places: called.extend(("assign", place) for place in places),
        on_revoke=lambda places: called.extend(("revoke", place) for place in places),
    ) as reader:
        assert list(reader.topics) == ["orders"]
        assert reader.poll(0) is None
        joining = MemoryCluster(topic="new.one", consumer_id=14)
        joining.put("a")
        topics.clusters.append(joining)
        message = reader.poll(10)
        assert message is not None
        assert (message.topic, message.text) == ("new.one", "a")
        assert list(reader.topics) == ["new.one", "orders"]
        assert reader.commit() == {at("orders"): 0, at("new.one"): 1}
        called.clear()
        joining.put("b", "c")
        last = reader.poll(10)
        assert last is not None
        topics.clusters.remove(joining)
        until(lambda: reader.topics == ("orders",), what="it is dropped")
        topics.clusters[0].put("d")
        assert rest(reader) == ["orders d"]
        assert called == [("revoke", at("new.one"))]
        with pytest.raises(StaleLease, match=r"'new\.one'"):
            reader.commit(last)
        assert reader.commit() == {at("orders"): 1}
        again = MemoryCluster(topic="new.one", consumer_id=15)
        again.put("e")
        topics.clusters.append(again)
        message = reader.poll(10)
        assert message is not None
        assert message.text == "e", "a topic of the same name is a new one"
    assert not topics.clusters[0].leases
    assert not again.leases


def test_a_pattern_that_matches_nothing_waits(server: ScriptedServer) -> None:
    server.answer = topics = SeveralTopics()
    with consumer(server, re.compile("new.*"), metadata_max_age_s=SOON_S) as reader:
        assert reader.topics == ()
        assert reader.poll(0) is None
        assert reader.poll(0.1) is None
        assert (reader.size(), reader.position(), reader.commit(), reader.lag().messages) == (0, {}, {}, 0)
        cluster = MemoryCluster(topic="news", consumer_id=14)
        cluster.put("a")
        topics.clusters.append(cluster)
        assert texts(reader.poll_many(timeout=10)) == ["a"]


def test_a_list_from_a_manager_that_is_behind_drops_nothing(server: ScriptedServer, topics: SeveralTopics) -> None:
    lists: list[Seen] = []

    def answer(seen: Seen) -> Reply:
        if seen.path == "/topics":
            lists.append(seen)
            if len(lists) == 2:
                return SeveralTopics(*topics.clusters[1:])(seen)
        return topics(seen)

    server.answer = answer
    lost: list[TopicPartition] = []
    with consumer(server, re.compile(".*"), metadata_max_age_s=SOON_S, on_lost=lost.extend) as reader:
        assert reader.poll(0) is None
        until(lambda: len(lists) > 4, what="topics are listed")
        assert reader.poll(0) is None
        assert reader.topics == tuple(sorted(NAMES))
    assert lost == []


def test_lists_that_fail_are_an_error_after_a_while(server: ScriptedServer) -> None:
    server.answer = SeveralTopics()
    with consumer(server, re.compile("new.*"), metadata_max_age_s=SOON_S) as reader:
        assert reader.poll(0) is None
        server.answer = lambda _: Reply(503, failure(503, 50301, retriable=True))
        with pytest.raises(Unavailable):
            until(lambda: reader.poll(0.1), within_s=20, what="an error")


def test_a_topic_that_cannot_be_joined_is_an_error_after_a_while(server: ScriptedServer, topics: SeveralTopics) -> None:
    def answer(seen: Seen) -> Reply:
        if seen.path == "/consumer/register" and seen.body["topic"] == "news":
            return Reply(409, failure(409, 40902, "registered for one partition"))
        return topics(seen)

    server.answer = answer
    with consumer(server, re.compile(".*s"), metadata_max_age_s=SOON_S) as reader:
        assert reader.poll(0) is None
        topics.clusters.append(MemoryCluster(topic="news", consumer_id=14))
        with pytest.raises(RegistrationConflict, match="'news'"):
            until(lambda: reader.poll(0.1), within_s=20, what="an error")
        topics.clusters[0].put("a")
        assert rest(reader) == ["orders a"], "the others are read on"


def test_a_topic_that_goes_before_the_first_read(server: ScriptedServer, topics: SeveralTopics) -> None:
    with consumer(server, re.compile(".*s"), metadata_max_age_s=SOON_S) as reader:
        assert list(reader.topics) == ["bills", "mails", "orders"]
        topics.clusters.pop()
        topics.clusters[0].put("a")
        assert rest(reader) == ["orders a"]
        assert list(reader.topics) == ["bills", "orders"]


def test_the_last_callback_must_not_ask_for_messages(server: ScriptedServer, topics: SeveralTopics) -> None:
    refused: list[str] = []

    def on_lost(_: list[TopicPartition]) -> None:
        with pytest.raises(RuntimeError, match="must not ask for messages") as error:
            reader.poll(0)
        refused.append(str(error.value))

    with consumer(server, re.compile(".*s"), metadata_max_age_s=SOON_S, on_lost=on_lost) as reader:
        assert reader.poll(0) is None
        topics.clusters.pop()
        until(lambda: (reader.poll(0.05), refused)[1], what="it is called")


def test_the_age_of_lists_is_checked(server: ScriptedServer) -> None:
    with pytest.raises(ValueError, match="metadata_max_age_s must be more than 0"):
        consumer(server, re.compile("x"), metadata_max_age_s=0)


def test_async_the_same(server: ScriptedServer, topics: SeveralTopics) -> None:
    for cluster in topics.clusters:
        cluster.put("a", "b")

    async def read() -> None:
        async with async_consumer(server, re.compile(".*s"), metadata_max_age_s=SOON_S) as reader:
            found = set()
            async for message in reader:
                found.add((message.topic, message.text))
                if len(found) == 6:
                    break
            assert found == {(name, text) for name in NAMES for text in "ab"}
            assert await reader.commit() == {at(name): 2 for name in NAMES}
            cluster = MemoryCluster(topic="news", consumer_id=14)
            cluster.put("c")
            topics.clusters.append(cluster)
            assert texts(await reader.poll_many(timeout=10)) == ["c"]
            topics.clusters.remove(cluster)
            topics.clusters.remove(topics.clusters[2])
            while reader.topics != ("bills", "orders"):
                assert await reader.poll(0.05) is None
            topics.clusters[0].put("d")
            assert texts(await reader.poll_many(timeout=10)) == ["d"]
            assert await reader.size() == 0

    asyncio.run(asyncio.wait_for(read(), 30))
    assert [cluster.cursors for cluster in topics.clusters] == [[3], [2]]
