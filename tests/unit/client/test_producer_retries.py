"""The producer through failures: leaders move, answers are lost, epochs change; order is kept, exactly once."""

import random

import pytest

from myqueue import (
    MyQueueError,
    Producer,
    ProducerFenced,
    RetryPolicy,
    TooLarge,
)
from tests.unit.client.failing_appends import OPEN, PRODUCE, QUICK, ROUTING, Failing, appends, is_append, stamps
from tests.unit.client.memory_cluster import MemoryCluster
from tests.unit.client.scripted_server import Reply, Reset, ScriptedServer, Seen, Step, failure


def test_order_is_kept_and_nothing_doubled_through_failures(server: ScriptedServer) -> None:
    chance = random.Random(7)
    cluster = MemoryCluster(partitions=2)

    def unreliable(seen: Seen) -> Step:
        if not is_append(seen) or chance.random() < 0.5:
            return cluster(seen)
        if chance.random() < 0.5:
            return Reply(503, failure(503, 50302, outcome="not_written"))
        cluster(seen)  # carried out, but the answer is lost
        return Reset() if chance.random() < 0.5 else Reply(502, None)

    server.answer = unreliable
    with Producer(server.url, topic="orders", retry=QUICK, batch_bytes=1000) as producer:
        deliveries = [producer.send(f"{number:020d}", partition=number % 2) for number in range(1000)]
        producer.flush(30)
    for partition in (0, 1):
        assert cluster.values(partition) == [f"{number:020d}" for number in range(1000) if number % 2 == partition]
    assert [delivery.result(0).offset for delivery in deliveries] == [number // 2 for number in range(1000)]
    assert len(stamps(server)) > 60  # it did misbehave
    assert cluster.epoch == 0


def test_a_moved_leader_is_followed_at_once(server: ScriptedServer, cluster: MemoryCluster) -> None:
    with Producer(server.url, topic="orders", retry=RetryPolicy(first_pause_s=30)) as producer:
        cluster.leaders = [2]
        assert producer.send("a").result(5).offset == 0
    assert len(server.calls(ROUTING)) == 1


def test_without_a_leader_the_routing_is_asked_again(server: ScriptedServer, cluster: MemoryCluster) -> None:
    cluster.leaders = [None]
    with Producer(server.url, topic="orders", retry=QUICK) as producer:
        delivery = producer.send("a")
        producer.send("b")
        with pytest.raises(TimeoutError):
            delivery.result(0.1)
        cluster.leaders = [3]
        assert delivery.result(5).offset == 0


def test_a_broker_that_goes_is_not_waited_for(server: ScriptedServer, cluster: MemoryCluster) -> None:
    going = Reply(503, failure(503, 50301, outcome="not_written"), {"Retry-After": "20"})
    with Producer(server.url, topic="orders", retry=QUICK) as producer:
        cluster.leaders = [2]
        server.answer = lambda seen: going if "/brokers/1/" in seen.path else cluster(seen)
        assert producer.send("a").result(5).offset == 0


def test_a_refused_grant_is_asked_for_again(server: ScriptedServer, cluster: MemoryCluster) -> None:
    with Producer(server.url, topic="orders", retry=RetryPolicy(first_pause_s=30)) as producer:
        server.answer = appends(cluster, Reply(401, failure(401, 40102, retriable=True, outcome="not_written")))
        assert producer.send("a").result(5).offset == 0
    assert len(server.calls(ROUTING)) == 2


def test_the_sequence_of_a_batch_that_was_not_written_is_used_again(
    server: ScriptedServer, cluster: MemoryCluster
) -> None:
    with Producer(server.url, topic="orders", retry=QUICK) as producer:
        producer.send_many(["a", "b"]).result(5)
        server.answer = appends(cluster, Reply(413, failure(413, 41301, outcome="not_written")))
        refused = producer.send("large")
        assert isinstance(refused.exception(5), TooLarge)
        producer.send("c").result(5)
    assert stamps(server) == [(0, 0, 2), (0, 2, 1), (0, 2, 1)]
    assert cluster.values(0) == ["a", "b", "c"]


def test_after_an_unknown_outcome_comes_a_new_epoch(server: ScriptedServer, cluster: MemoryCluster) -> None:
    lost = Reply(502, None)
    with Producer(server.url, topic="orders", retry=QUICK, delivery_timeout_s=0.3) as producer:
        producer.send_many(["a", "b"]).result(5)
        server.answer = Failing(cluster, [lost] * 10_000, carried_out=True)
        error = producer.send("perhaps").exception(5)
        assert error is not None
        assert error.outcome == "unknown"
        server.answer = cluster
        assert producer.send("c").result(5).offset == 3
    assert cluster.values(0) == ["a", "b", "perhaps", "c"]
    assert stamps(server)[-1] == (1, 0, 1)
    assert set(stamps(server)[1:-1]) == {(0, 2, 1)}


def test_a_partition_that_forgot_the_producer_is_told_a_new_epoch(
    server: ScriptedServer, cluster: MemoryCluster
) -> None:
    with Producer(server.url, topic="orders", retry=RetryPolicy(first_pause_s=30)) as producer:
        producer.send("a").result(5)
        cluster.logs[0].producers.clear()
        assert producer.send("b").result(5).offset == 1
        # A repetition of something that it no longer remembers is not sent as if it were new.
        server.answer = Failing(cluster, [Reset()], carried_out=False)
        cluster.logs[0].producers.clear()
        producer._topics.transport.retry = QUICK
        error = producer.send("perhaps").exception(5)
        assert error is not None
        assert (error.error_code, error.outcome) == (40906, "unknown")
        assert producer.send("c").result(5).offset == 2
    assert cluster.values(0) == ["a", "b", "c"]
    assert [stamp[0] for stamp in stamps(server)] == [0, 0, 1, 1, 1, 2]


def test_a_newer_instance_takes_over(server: ScriptedServer) -> None:
    server.answer = cluster = MemoryCluster(partitions=2)
    old = Producer(server.url, topic="orders", name="till", retry=QUICK, linger_ms=200)
    old.send("a", partition=0).result(5)
    with Producer(server.url, topic="orders", name="till", retry=QUICK) as new:
        new.send("b", partition=0).result(5)
        waiting = old.send("d", partition=1)
        with pytest.raises(ProducerFenced):
            old.send("c", partition=0).result(5)
        assert waiting.exception(5) is not None or cluster.values(1) == ["d"]
        with pytest.raises(ProducerFenced):
            old.send("e")
        old.close()
        new.send("f", partition=0).result(5)
    assert cluster.values(0) == ["a", "b", "f"]


def test_a_replaced_instance_does_not_take_over_again(server: ScriptedServer, cluster: MemoryCluster) -> None:
    """It needs a new epoch, and finds that another instance was given one: that one goes on."""
    with (
        Producer(server.url, topic="orders", name="till", retry=QUICK, delivery_timeout_s=0.3) as old,
        Producer(server.url, topic="orders", name="till", retry=QUICK) as new,
    ):
        server.answer = appends(cluster, *[Reply(502, None)] * 10_000)
        assert old.send("lost").exception(5) is not None
        server.answer = cluster
        assert isinstance(old.send("a").exception(5), ProducerFenced)
        assert new.send("b").result(5).offset == 0
    assert cluster.values(0) == ["b"]


def test_only_epochs_that_may_be_its_own_are_taken(server: ScriptedServer, cluster: MemoryCluster) -> None:
    """An ask that was refused gave out nothing: the epoch that is missing then is another instance's."""
    asked: list[Reply | Reset] = []

    def answer(seen: Seen) -> Step:
        return asked.pop(0) if seen.path == OPEN and asked else cluster(seen)

    lost = [Reply(502, None)] * 10_000
    with Producer(server.url, topic="orders", name="till", retry=QUICK, delivery_timeout_s=0.3) as old:
        server.answer = appends(cluster, *lost)
        assert old.send("lost").exception(5) is not None
        server.answer = answer
        cluster.open_producer()  # heard by nobody
        asked.append(Reset())
        assert old.send("a").result(5).offset == 0
        server.answer = appends(cluster, *lost)
        assert old.send("lost").exception(5) is not None
        server.answer = answer
        cluster.open_producer()  # by another instance
        asked.append(Reply(503, failure(503, 50304, outcome="not_written", retriable=False)))
        assert isinstance(old.send("b").exception(5), ProducerFenced)
    assert cluster.messages == ["a"]


def test_the_callers_own_idempotency_key_is_used(producer: Producer, server: ScriptedServer) -> None:
    receipts = [producer.send("x", key="k", idempotency_key="invoice-7").result(5) for _ in range(2)]
    assert receipts[0] == receipts[1]
    assert [seen.key for seen in server.calls(PRODUCE)] == ["invoice-7", "invoice-7"]
    assert server.calls(PRODUCE)[0].body["key"] == "k"


def test_a_topic_that_was_made_again_is_another_one(server: ScriptedServer, cluster: MemoryCluster) -> None:
    with Producer(server.url, topic="orders", retry=QUICK) as producer:
        other = cluster.routing() | {"topic_id": "00000000-0000-0000-0000-000000000009"}
        server.answer = lambda seen: (
            Reply(200, other) if seen.path == ROUTING else Reply(404, failure(404, 40401, outcome="not_written"))
        )
        error = producer.send("a").exception(5)
    assert isinstance(error, MyQueueError)
    assert "made again" in error.message
