"""The producer: order, back-pressure, exactly once through retries, and no failure that goes unnoticed."""

import random
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from myqueue import (
    Deliveries,
    Delivery,
    InvalidRequest,
    MyQueueError,
    NoLeader,
    PartitionNotFound,
    Producer,
    ProducerFenced,
    Receipt,
    RetryPolicy,
    Span,
    TooLarge,
    Unavailable,
)
from myqueue.protocol import batch as batches
from myqueue.protocol.partitioner import partition_for
from tests.unit.client.memory_cluster import MemoryCluster
from tests.unit.client.scripted_server import Reply, Reset, ScriptedServer, Seen, Step, failure

QUICK = RetryPolicy(deadline_s=3.0, first_pause_s=0.001, longest_pause_s=0.01)
PRODUCE = "/producer/produce"
OPEN = "/v1/topics/orders/producers"
ROUTING = "/v1/routing/orders"


@pytest.fixture
def cluster(server: ScriptedServer) -> MemoryCluster:
    server.answer = cluster = MemoryCluster()
    return cluster


@pytest.fixture
def producer(server: ScriptedServer, cluster: MemoryCluster) -> Iterator[Producer]:
    with Producer(server.url, topic="orders", retry=QUICK) as producer:
        yield producer


def is_append(seen: Seen) -> bool:
    return seen.method == "POST" and seen.path.endswith("/batches")


def stamps(server: ScriptedServer) -> list[tuple[int, int, int]]:
    """Epoch, sequence and count of the batches that were sent."""
    headers = [batches.decode_header(seen.body) for seen in server.seen if is_append(seen)]
    return [(header.producer_epoch, header.sequence, header.count) for header in headers]


def appends(cluster: MemoryCluster, *first: Step) -> "Failing":
    return Failing(cluster, list(first))


class Failing:
    """The cluster, but the first appends end otherwise. `before` may let them be carried out first."""

    def __init__(self, cluster: MemoryCluster, steps: list[Step], *, carried_out: bool = False) -> None:
        self.cluster, self.steps, self.carried_out = cluster, steps, carried_out

    def __call__(self, seen: Seen) -> Step:
        if is_append(seen) and self.steps:
            if self.carried_out:
                self.cluster(seen)
            return self.steps.pop(0)
        return self.cluster(seen)


def test_it_opens_itself_and_sends(server: ScriptedServer, cluster: MemoryCluster) -> None:
    with Producer(server.url, topic="orders", name="till-1") as producer:
        first = producer.send(b"value", key=b"customer-17", timestamp=5, headers={"a": "b", "c": None})
        second = producer.send("text", partition=0)
        assert first.result(5) == Receipt("orders", 0, 0)
        assert second.result(5).offset == 1
        assert producer.producer_id == 3
    assert server.seen[0].body == {"name": "till-1"}
    one, two = cluster.stored(0)
    assert (one.key, one.timestamp, one.headers) == (b"customer-17", 5, (("a", b"b"), ("c", None)))
    assert (two.value, two.key, two.headers) == (b"text", None, ())
    assert abs(two.timestamp - time.time() * 1000) < 60_000
    assert cluster.logs[0].entries[0][0].producer_id == 3


def test_many_values_have_one_future(producer: Producer, cluster: MemoryCluster) -> None:
    assert producer.send_many(["a", "b", "ü"]).result(5) == [Span(0, 0, 3)]
    assert producer.send_many([b"c", "d", b"e"]).result(5) == [Span(0, 3, 3)]
    assert len(producer.send_many([])) == 0
    assert cluster.values(0) == ["a", "b", "ü", "c", "d", "e"]


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_batches_are_bounded_and_in_order(server: ScriptedServer, compression: str) -> None:
    server.answer = cluster = MemoryCluster(partitions=3)
    values = [f"{number:0100d}" for number in range(1000)]
    with Producer(server.url, topic="orders", batch_bytes=10_000, compression=compression) as producer:  # type: ignore[arg-type]
        spans = producer.send_many(values).result(20)
        receipts = [delivery.result(20) for delivery in [producer.send(value) for value in values]]
    assert sum(span.count for span in spans) == 1000
    assert {span.partition for span in spans} == {0, 1, 2} == {receipt.partition for receipt in receipts}
    assert all(header.count <= 90 for log in cluster.logs for header, _ in log.entries)
    stored = [cluster.values(partition) for partition in range(3)]
    read = [value for span in spans for value in stored[span.partition][span.base_offset :][: span.count]]
    assert read == values
    assert [stored[receipt.partition][receipt.offset] for receipt in receipts] == values


def test_keys_choose_the_partition(server: ScriptedServer) -> None:
    server.answer = cluster = MemoryCluster(partitions=4)
    with Producer(server.url, topic="orders") as producer:
        sent = {key: producer.send(f"{key}", key=key) for key in map(str, range(50))}
        for key, delivery in sent.items():
            assert delivery.result(5).partition == partition_for(key.encode(), 4)
        with pytest.raises(PartitionNotFound):
            producer.send("x", partition=4)
    assert sum(len(cluster.values(partition)) for partition in range(4)) == 50


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
        producer._transport.retry = QUICK
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


def test_a_full_buffer_makes_send_wait(server: ScriptedServer, cluster: MemoryCluster) -> None:
    gate = threading.Event()

    def gated(seen: Seen) -> Step:
        if is_append(seen):
            gate.wait(5)
        return cluster(seen)

    server.answer = gated
    with Producer(server.url, topic="orders", buffer_bytes=70, batch_bytes=25) as producer:
        blocked = threading.Thread(target=lambda: [producer.send(value) for value in "abcd"])
        blocked.start()
        blocked.join(0.3)
        assert blocked.is_alive()
        gate.set()
        blocked.join(5)
        assert not blocked.is_alive()
    assert cluster.messages == ["a", "b", "c", "d"]


def test_a_buffer_that_stays_full_says_so(server: ScriptedServer, cluster: MemoryCluster) -> None:
    server.answer = appends(cluster, Reply(503, failure(503, 50301), after_s=0.6))
    with Producer(server.url, topic="orders", buffer_bytes=10, delivery_timeout_s=0.2) as producer:
        first = producer.send("x" * 100)  # larger than the buffer, but the buffer is empty
        with pytest.raises(TimeoutError, match="full"):
            producer.send("y")
        assert first.exception(5) is not None


def test_a_failed_batch_does_not_stop_those_behind_it(server: ScriptedServer, cluster: MemoryCluster) -> None:
    server.answer = appends(cluster, Reply(400, failure(400, 40001, "told", outcome="not_written")))
    with Producer(server.url, topic="orders", batch_bytes=1) as producer:
        bad, good = producer.send("bad"), producer.send("good")
        with pytest.raises(InvalidRequest, match="told"):
            bad.result(5)
        assert good.result(5).offset == 0


def test_flush_raises_what_nobody_asked_for(server: ScriptedServer, cluster: MemoryCluster) -> None:
    refused = Reply(400, failure(400, 40001, outcome="not_written"))
    server.answer = appends(cluster, refused, refused)
    producer = Producer(server.url, topic="orders")
    producer.send_many(["a", "b"])
    with pytest.raises(InvalidRequest) as caught:
        producer.flush(5)
    assert "2 of the messages" in caught.value.__notes__[0]
    producer.flush(5)  # told once
    deliveries = [producer.send(value) for value in ("c", "d")]
    assert deliveries[0].exception(5) is not None
    with pytest.raises(InvalidRequest) as caught:
        producer.close()
    assert "1 of the messages" in caught.value.__notes__[0]


def test_leaving_the_block_by_an_exception_keeps_that_exception(server: ScriptedServer, cluster: MemoryCluster) -> None:
    server.answer = appends(cluster, Reply(400, failure(400, 40001, "refused")))

    def body() -> None:
        with Producer(server.url, topic="orders") as producer:
            producer.send("a")
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught:
        body()
    assert "refused" in caught.value.__notes__[0]


def test_a_message_past_its_delivery_timeout_fails_as_not_written(
    server: ScriptedServer, cluster: MemoryCluster
) -> None:
    server.answer = appends(cluster, *[Reply(503, failure(503, 50302, outcome="not_written"))] * 10_000)
    with Producer(server.url, topic="orders", retry=QUICK, delivery_timeout_s=0.4, batch_bytes=1) as producer:
        started = time.monotonic()
        errors = [delivery.exception(5) for delivery in [producer.send(value) for value in "abc"]]
        assert time.monotonic() - started < 4
    assert isinstance(errors[0], NoLeader)
    assert all(isinstance(error, Unavailable) and error.outcome == "not_written" for error in errors)


def test_callbacks_run_in_order_and_may_send(server: ScriptedServer, cluster: MemoryCluster) -> None:
    told: list[str] = []

    def on_delivery(delivery: Delivery | Deliveries) -> None:
        if isinstance(delivery, Deliveries):
            told.extend(f"{span.base_offset}+{span.count}" for span in delivery.result(0))
            return
        told.append(str(delivery.result(0).offset))
        if len(told) == 1:
            own.send("from the callback")
            raise ValueError("a defect of the callback")

    with Producer(server.url, topic="orders", on_delivery=on_delivery, buffer_bytes=50) as own:
        for value in "abc":
            own.send(value)
        own.send_many(["d", "e"])
        own.flush(5)
        assert sum(2 if "+" in text else 1 for text in told) == 6
    offsets = [int(text.split("+")[0]) for text in told]
    assert offsets == sorted(offsets)
    assert sorted(cluster.messages) == ["a", "b", "c", "d", "e", "from the callback"]


def test_closing_with_a_timeout_gives_up(server: ScriptedServer, cluster: MemoryCluster) -> None:
    server.answer = appends(cluster, Reply(200, {"base_offset": 0}, after_s=0.8))
    producer = Producer(server.url, topic="orders", batch_bytes=1)
    deliveries = [producer.send(value) for value in "ab"]
    with pytest.raises(TimeoutError):
        producer.close(timeout=0.2)
    under_way, waiting = (delivery.exception(0) for delivery in deliveries)
    assert under_way is not None
    assert under_way.outcome == "unknown"
    assert waiting is not None
    assert waiting.outcome == "not_written"
    producer.close()  # twice is fine


def test_what_was_given_up_as_not_written_is_not_sent_later(server: ScriptedServer, cluster: MemoryCluster) -> None:
    told: list[bool] = []
    producer = Producer(
        server.url, topic="orders", on_delivery=lambda delivery: told.append(delivery.exception(0) is not None)
    )
    routing = producer._sender._routing
    routing._table = replace(routing._table, renew_at=0.0, expires_at=0.0)
    server.answer = lambda seen: Reply(200, cluster.routing(), after_s=0.5) if seen.path == ROUTING else cluster(seen)
    delivery = producer.send("a")
    with pytest.raises(TimeoutError):
        producer.close(timeout=0.2)
    error = delivery.exception(0)
    assert error is not None
    assert error.outcome == "not_written"
    assert told == [True]
    assert stamps(server) == []  # closing has waited for the thread
    assert cluster.messages == []


def test_a_closed_producer_refuses(producer: Producer) -> None:
    producer.close()
    with pytest.raises(RuntimeError, match="closed"):
        producer.send("x")
    with pytest.raises(RuntimeError, match="closed"):
        producer.send("x", idempotency_key="k")


def test_bad_arguments_are_refused_at_once(producer: Producer, server: ScriptedServer) -> None:
    with pytest.raises(TooLarge):
        producer.send(b"x" * ((1 << 20) + 1))
    with pytest.raises(TooLarge):
        producer.send_many(["x", b"x" * ((1 << 20) + 1)])
    with pytest.raises(TooLarge):
        producer.send("x", key=b"k" * ((1 << 16) + 1))
    with pytest.raises(TypeError):
        producer.send(5)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        producer.send_many(["x", 5])  # type: ignore[list-item]
    for key in ("", "a\nb", "ü", "x" * 201, " a"):
        with pytest.raises(InvalidRequest):
            producer.send("x", idempotency_key=key)
    for wrong in ({"timestamp": -1}, {"timestamp": 1 << 63}, {"headers": {5: "x"}}, {"headers": [("a", "")] * 101}):
        with pytest.raises(InvalidRequest):
            producer.send("x", **wrong)
    with pytest.raises(ValueError, match="compression"):
        Producer(server.url, topic="orders", compression="gzip")  # type: ignore[arg-type]
    assert stamps(server) == []


def test_a_topic_that_was_made_again_is_another_one(server: ScriptedServer, cluster: MemoryCluster) -> None:
    with Producer(server.url, topic="orders", retry=QUICK) as producer:
        other = cluster.routing() | {"topic_id": "00000000-0000-0000-0000-000000000009"}
        server.answer = lambda seen: (
            Reply(200, other) if seen.path == ROUTING else Reply(404, failure(404, 40401, outcome="not_written"))
        )
        error = producer.send("a").exception(5)
    assert isinstance(error, MyQueueError)
    assert "made again" in error.message


def test_threads_may_share_a_producer(producer: Producer, cluster: MemoryCluster) -> None:
    threads = [
        threading.Thread(target=lambda name=name: [producer.send(f"{name}{n}") for n in range(300)]) for name in "abcd"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    producer.flush(20)
    assert len(set(cluster.messages)) == 1200
    for name in "abcd":
        assert [m for m in cluster.messages if m.startswith(name)] == [f"{name}{n}" for n in range(300)]
