"""The producer: batches, backpressure, callbacks, closing, and no failure that goes unnoticed."""

import threading
import time
from dataclasses import replace

import pytest

from myqueue import (
    Deliveries,
    Delivery,
    DeliveryTimeout,
    InvalidRequest,
    NoLeader,
    PartitionNotFound,
    Producer,
    Receipt,
    Span,
    TooLarge,
    Unavailable,
)
from myqueue.protocol.partitioner import partition_for
from tests.unit.client.failing_appends import QUICK, ROUTING, appends, is_append, stamps
from tests.unit.client.memory_cluster import MemoryCluster
from tests.unit.client.scripted_server import Reply, ScriptedServer, Seen, Step, failure
from tests.waiting import until


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
        with pytest.raises(PartitionNotFound, match="not found: 4 of topic 'orders'; its partitions are 0 to 3"):
            producer.send("x", partition=4)
    assert sum(len(cluster.values(partition)) for partition in range(4)) == 50


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
        with pytest.raises(DeliveryTimeout, match="full") as caught:
            producer.send("y")
        assert (caught.value.retriable, caught.value.outcome) == (True, "not_written")
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
    producer = Producer(server.url, topic="orders", linger_ms=50)
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


def test_a_batch_that_lingers_leaves_though_nobody_waits_for_it(server: ScriptedServer, cluster: MemoryCluster) -> None:
    with Producer(server.url, topic="orders", linger_ms=30) as producer:
        for _ in range(2):
            deliveries = [producer.send(value) for value in ("a", "b")]
            assert not deliveries[0].done()
            until(deliveries[1].done, within_s=5, what="it is sent")
    assert [header.count for header, _ in cluster.logs[0].entries] == [2, 2]


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
    routing = producer._senders["orders"]._routing
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
        producer.send(5)
    with pytest.raises(TypeError):
        producer.send_many(["x", 5])
    for key in ("", "a\nb", "ü", "x" * 201, " a"):
        with pytest.raises(InvalidRequest):
            producer.send("x", idempotency_key=key)
    for wrong in ({"timestamp": -1}, {"timestamp": 1 << 63}, {"headers": {5: "x"}}, {"headers": [("a", "")] * 101}):
        with pytest.raises(InvalidRequest):
            producer.send("x", **wrong)
    with pytest.raises(ValueError, match="compression"):
        Producer(server.url, topic="orders", compression="gzip")  # type: ignore[arg-type]
    assert stamps(server) == []


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
