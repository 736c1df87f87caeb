"""A consumer of several topics or of a pattern: one call over all of them, in turn; none disturbs another."""

import asyncio
import threading
from contextlib import suppress

import pytest

from myqueue import (
    ConsumerNotFound,
    DeserializationError,
    InvalidRequest,
    MaxPollIntervalExceeded,
    OffsetOutOfRange,
    StaleLease,
    TopicNotFound,
    TopicPartition,
)
from tests.unit.client.memory_cluster import SeveralTopics
from tests.unit.client.scripted_server import ScriptedServer
from tests.unit.client.several_topics import NAMES, async_consumer, at, consumer, rest, several_topics, texts
from tests.waiting import let_pass, until


@pytest.fixture
def topics(server: ScriptedServer) -> SeveralTopics:
    return several_topics(server)


def test_one_loop_reads_all_of_them(server: ScriptedServer, topics: SeveralTopics) -> None:
    for number, cluster in enumerate(topics.clusters):
        for text in "abc":
            cluster.put(f"{text}{number}", codec=number)
    with consumer(server) as reader:
        assert (reader.topics, reader.topic) == (tuple(NAMES), "orders, bills, mails")
        assert reader.consumer_ids == {"orders": 11, "bills": 12, "mails": 13}
        assert reader.size() == 9
        found: dict[str, list[str]] = {}
        for count, message in enumerate(reader, 1):
            found.setdefault(message.topic, []).append(message.text)
            if count == 9:
                break
        assert reader.position() == {at(name): 3 for name in NAMES}
        assert {place: lag.end_offset for place, lag in reader.lag().partitions.items()} == {at(n): 3 for n in NAMES}
        assert reader.poll(0) is None
        with pytest.raises(InvalidRequest, match="consumer_ids"):
            _ = reader.consumer_id
    assert found == {name: [f"{text}{number}" for text in "abc"] for number, name in enumerate(NAMES)}
    assert [cluster.cursors for cluster in topics.clusters] == [[3]] * 3
    assert [cluster.leases for cluster in topics.clusters] == [{}] * 3


def test_a_message_of_any_topic_ends_a_wait(server: ScriptedServer, topics: SeveralTopics) -> None:
    with consumer(server) as reader:
        assert reader.poll(0) is None
        assert reader.poll(0.1) is None
        for cluster in topics.clusters * 2:
            timer = threading.Timer(0.05, cluster.put, ["x"])
            timer.start()
            message = reader.poll(5)
            assert message is not None
            assert message.topic == cluster.topic


@pytest.mark.parametrize("flooded", NAMES)
def test_a_flood_does_not_starve_the_others(server: ScriptedServer, topics: SeveralTopics, flooded: str) -> None:
    flood = next(cluster for cluster in topics.clusters if cluster.topic == flooded)
    others = [cluster for cluster in topics.clusters if cluster is not flood]
    for number in range(200):
        flood.put(*(f"{number}-{each}" for each in range(10)))
    with consumer(server) as reader:
        first = reader.poll(5)
        assert first is not None
        for other in others:
            other.put("x")
        until(lambda: all(topic.subscription.ready(0.0) for topic in reader._core._topics), what="all have fetched")
        # Of each topic a batch in turn: ten messages of the flood are in hand, and ten more may come before them.
        seen = [message.topic for message in (reader.poll(5) for _ in range(25)) if message is not None]
        assert {other.topic for other in others} <= set(seen)


def test_lists_and_tables_take_from_all(server: ScriptedServer, topics: SeveralTopics) -> None:
    for cluster in topics.clusters:
        for number in range(3):
            cluster.put(*(f"{cluster.topic}-{number}-{each}" for each in range(4)))
    with consumer(server) as reader:
        first = reader.poll(5)
        assert first is not None
        until(lambda: all(topic.subscription.ready(0.0) for topic in reader._core._topics), what="all have fetched")
        many = reader.poll_many(14, 5)
        assert len(many) == 14
        assert {message.topic for message in many} == set(NAMES)
        table = reader.fetch_arrow(timeout=5)
        assert table.column_names == ["topic", "partition", "offset", "timestamp", "key", "value", "headers"]
        rows = [(row["topic"], row["offset"]) for row in table.to_pylist()]
        read = [(message.topic, message.offset) for message in [first, *many]]
        assert sorted(read + rows) == sorted((name, offset) for name in NAMES for offset in range(12))
        assert reader.fetch_arrow(timeout=0).num_rows == 0
    for name in NAMES:
        assert [offset for topic, offset in read + rows if topic == name] == list(range(12))


def test_prefetch_is_divided(server: ScriptedServer, topics: SeveralTopics) -> None:
    for cluster in topics.clusters:
        for _ in range(60):
            cluster.put("x" * 1000)
    with consumer(server, prefetch_bytes=30_000, fetch_bytes=1000) as reader:
        assert reader.poll(5) is not None
        shares = [topic.fetcher._scheduler.prefetch_bytes for topic in reader._core._topics if topic.fetcher]
        assert shares == [10_000] * 3
        assert len(rest(reader)) == 179


def test_one_commit_for_all(server: ScriptedServer, topics: SeveralTopics) -> None:
    orders, bills, mails = topics.clusters
    orders.put("a", "b")
    bills.put("c")
    with consumer(server, commit="manual") as reader:
        messages = [message for message in (reader.poll(5) for _ in range(3)) if message is not None]
        assert reader.commit() == {at("orders"): 2, at("bills"): 1, at("mails"): 0}
        assert (orders.commits, bills.commits, mails.commits) == ([{0: 2}], [{0: 1}], []), "nothing new in mails"
        assert reader.commit(messages) == {at("orders"): 2, at("bills"): 1}
        bills.put("d")
        last = reader.poll(5)
        assert last is not None
        assert reader.commit(last, wait=False) == {at("bills"): 2}
        until(lambda: bills.cursors == [2], what="it was sent")
        assert reader.commit({at("orders"): 2, at("bills"): 2}) == {at("orders"): 2, at("bills"): 2}
        assert reader.seek(at("orders"), to=1) == {at("orders"): 1}
        assert rest(reader) == ["orders b"]
        assert reader.seek(to="earliest") == {at(name): 0 for name in NAMES}
        assert sorted(rest(reader)) == ["bills c", "bills d", "orders a", "orders b"]
        with pytest.raises(InvalidRequest, match="TopicPartition"):
            reader.commit({0: 1})
        with pytest.raises(InvalidRequest, match="an offset belongs to a partition"):
            reader.seek(to=1)


def test_a_commit_that_fails_names_its_topic_and_the_others_are_done(
    server: ScriptedServer, topics: SeveralTopics
) -> None:
    orders, bills, _ = topics.clusters
    orders.put("a")
    bills.put("b")
    with consumer(server, commit="manual") as reader:
        messages = [message for message in (reader.poll(5), reader.poll(5)) if message is not None]
        orders.lease(0, "another")
        with pytest.raises(StaleLease, match="'orders'") as refused:
            reader.commit(messages)
        assert refused.value.details["topic"] == "orders"
        assert bills.cursors == [1]
        reader.commit({at("orders"): 1, at("bills"): 1}, wait=False)
        with pytest.raises(StaleLease, match="'orders'"):
            until(lambda: reader.poll(0.05), what="the error of a commit that nobody waited for")


def test_pausing_a_partition_of_one(server: ScriptedServer, topics: SeveralTopics) -> None:
    orders, bills, _ = topics.clusters
    with consumer(server) as reader:
        assert reader.poll(0) is None
        reader.pause([at("orders")])
        orders.put("a")
        bills.put("b")
        assert rest(reader) == ["bills b"]
        reader.resume([at("orders")])
        assert rest(reader) == ["orders a"]
        with pytest.raises(InvalidRequest, match="TopicPartition"):
            reader.pause([0])


def test_callbacks_name_the_topic_and_a_rebalance_of_one_recalls_the_others(
    server: ScriptedServer, topics: SeveralTopics
) -> None:
    orders, bills, mails = topics.clusters
    bills.put(*(str(number) for number in range(100)))
    called: list[tuple[str, list[TopicPartition]]] = []

    def revoked(partitions: list[TopicPartition]) -> None:
        called.append(("revoke", partitions))
        reader.commit()

    with consumer(
        server,
        commit="manual",
        on_assign=lambda partitions: called.append(("assign", partitions)),
        on_revoke=revoked,
        on_lost=lambda partitions: called.append(("lost", partitions)),
    ) as reader:
        first = reader.poll(5)
        assert first is not None
        assert rest_of(called, "assign") >= {at("bills")}
        until(lambda: orders.leases and mails.leases, what="all are leased")
        orders.put("a")
        while (message := reader.poll(5)) is not None and message.topic != "orders":
            assert len(bills.commits) == 0
        assert rest_of(called, "assign") == {at(name) for name in NAMES}
        reader.seek(at("bills"), to=1)
        assert texts(reader.poll_many(1, 5)) == ["1"]
        second = reader.poll(5)
        assert second is not None
        assert second.text == "2"
        with orders.lock:
            orders.leases[0].revoking = True
        # Messages of bills are in hand, and the next one comes behind the callback all the same.
        until(
            lambda: any(topic.subscription.is_rebalance_due() for topic in reader._core._topics),
            what="orders is revoked",
        )
        third = reader.poll(5)
        assert third is not None
        assert third.text == "3"
        assert called[-1] == ("revoke", [at("orders")])
        assert (orders.cursors, bills.cursors) == ([1], [3])
        called.clear()
        with mails.lock:
            mails.lease(0, "another")
        until(lambda: (reader.poll(0.05), ("lost", [at("mails")]) in called)[1], what="mails is lost")
    assert ("revoke", [at("bills")]) in called


def rest_of(called: list[tuple[str, list[TopicPartition]]], kind: str) -> set[TopicPartition]:
    return {place for each, places in called if each == kind for place in places}


def test_a_bad_value_of_one(server: ScriptedServer, topics: SeveralTopics) -> None:
    orders, bills, _ = topics.clusters
    orders.put("1", "x", "3")
    bills.put("4")
    with consumer(server, value_deserializer=int) as reader:
        values = []
        for _ in range(10):
            try:
                values += [(message.topic, message.value) for message in reader.poll_many(timeout=1)]
            except DeserializationError as error:
                values.append((error.raw.topic, error.raw.value))
            if len(values) == 4:
                break
    assert sorted(values, key=str) == sorted([("orders", 1), ("orders", b"x"), ("orders", 3), ("bills", 4)], key=str)


def test_errors_name_their_topic(server: ScriptedServer, topics: SeveralTopics) -> None:
    orders, bills, _ = topics.clusters
    with pytest.raises(TopicNotFound, match="'ordres'; did you mean 'orders'"):
        consumer(server, ["bills", "ordres"])
    registered = [seen.body["topic"] for seen in server.seen if seen.path == "/consumer/register"]
    assert registered == ["ordres"], "the name is not left behind in the other topic"
    with pytest.raises(ValueError, match="partition is one of a single topic"):
        consumer(server, partition=0)
    orders.put("a", "b")
    bills.put("c")
    bills.logs[0].entries.clear()
    bills.logs[0].beginning = 5
    with consumer(server, on_gap="error") as reader:
        with pytest.raises(OffsetOutOfRange, match="topic 'bills'") as gap:
            rest(reader)
        assert gap.value.details["topic"] == "bills"
        rest(reader)
        assert reader.skipped == 5


def test_a_topic_of_a_list_that_is_deleted_is_an_error(server: ScriptedServer, topics: SeveralTopics) -> None:
    with consumer(server) as reader:
        assert reader.poll(0) is None
        topics.clusters.pop()
        with pytest.raises((TopicNotFound, ConsumerNotFound), match="'mails'"):
            until(lambda: reader.poll(0.05), what="an error")


def test_staying_away_counts_for_all_topics_together(server: ScriptedServer, topics: SeveralTopics) -> None:
    orders, bills, _ = topics.clusters
    orders.put(*(str(number) for number in range(30)))
    bills.put("b")
    with consumer(server, max_poll_interval_s=1.0) as reader:
        messages = iter(reader)
        for _ in range(20):  # longer than the interval, and only orders moves on
            next(messages)
            let_pass(0.1)
        assert bills.leases, "taking messages of one topic keeps the others"
        until(lambda: not any(cluster.leases for cluster in topics.clusters), what="all are given to others")
        with pytest.raises(MaxPollIntervalExceeded):
            rest(reader)
        for cluster in topics.clusters:
            cluster.left.clear()
        until(lambda: reader.poll(0.05) and all(cluster.leases for cluster in topics.clusters), what="it reads again")


def test_a_dropped_one_gives_all_back(server: ScriptedServer, topics: SeveralTopics) -> None:
    reader = consumer(server)
    assert reader.poll(0) is None
    assert all(cluster.leases for cluster in topics.clusters)
    with pytest.warns(ResourceWarning, match="orders, bills, mails"):
        del reader
    until(lambda: not any(cluster.leases for cluster in topics.clusters), what="they are given back")


def test_async_a_cancelled_poll_loses_nothing(server: ScriptedServer, topics: SeveralTopics) -> None:
    async def read() -> list[str]:
        found: list[str] = []
        async with async_consumer(server) as reader:
            assert await reader.poll(0) is None
            for number in range(60):
                poll = asyncio.create_task(reader.poll_many(1 + number % 2))
                topics.clusters[number % 3].put(str(number))
                await asyncio.sleep(0.002 * (number % 8))
                poll.cancel()
                with suppress(asyncio.CancelledError):
                    found += texts(await poll)
            while (message := await reader.poll(0)) is not None:
                found.append(message.text)
        return found

    found = asyncio.run(asyncio.wait_for(read(), 60))
    assert sorted(map(int, found)) == list(range(60))
    for each in range(3):
        assert [int(text) for text in found if int(text) % 3 == each] == list(range(each, 60, 3))
    assert [cluster.cursors for cluster in topics.clusters] == [[20]] * 3
