"""The producer: order, back-pressure, exactly once through retries, and no failure that goes unnoticed."""

import random
import threading
import time
from collections.abc import Iterator

import pytest

from myqueue import (
    Delivery,
    InvalidRequest,
    MyQueueError,
    NoLeader,
    Producer,
    Receipt,
    RetryPolicy,
    Timeouts,
    TooLarge,
    Unavailable,
)
from tests.unit.client.memory_cluster import MemoryCluster
from tests.unit.client.scripted_server import Reply, Reset, ScriptedServer, Seen, Step, failure

QUICK = RetryPolicy(deadline_s=3.0, first_pause_s=0.001, longest_pause_s=0.01)
PRODUCE = "/producer/produce"


@pytest.fixture
def cluster(server: ScriptedServer) -> MemoryCluster:
    server.answer = cluster = MemoryCluster()
    return cluster


@pytest.fixture
def producer(server: ScriptedServer, cluster: MemoryCluster) -> Iterator[Producer]:
    with Producer(server.url, topic="orders", retry=QUICK) as producer:
        yield producer


def test_it_registers_itself_and_sends(server: ScriptedServer, cluster: MemoryCluster) -> None:
    with Producer(server.url, topic="orders", name="till-1") as producer:
        first = producer.send(b"value", key=b"customer-17")
        second = producer.send("text", partition=2)
        assert first.result(5) == Receipt("orders", 0, 0)
        assert second.result(5).offset == 1
        assert producer.producer_id == 3
    assert server.seen[0].body == {"topic": "orders", "name": "till-1"}
    assert server.calls(PRODUCE)[0].body["key"] == "customer-17"
    assert server.calls(PRODUCE)[1].body["partition_id"] == 2
    assert all(seen.body["producer_id"] == 3 for seen in server.calls(PRODUCE))


def test_order_is_kept_and_nothing_doubled_through_failures(server: ScriptedServer, cluster: MemoryCluster) -> None:
    chance = random.Random(7)

    def unreliable(seen: Seen) -> Step:
        if seen.path != PRODUCE or chance.random() < 0.6:
            return cluster(seen)
        if chance.random() < 0.5:
            return Reply(503, failure(503, 50302, outcome="not_written"))
        cluster(seen)  # carried out, but the answer is lost
        return Reset() if chance.random() < 0.5 else Reply(502, None)

    server.answer = unreliable
    with Producer(server.url, topic="orders", retry=QUICK) as producer:
        deliveries = producer.send_many([f"m{number}" for number in range(200)])
        producer.flush(30)
    assert cluster.messages == [f"m{number}" for number in range(200)]
    assert [delivery.result(0).offset for delivery in deliveries] == list(range(200))
    assert len(server.calls(PRODUCE)) > 250  # it did misbehave


def test_binary_values_travel_as_base64(producer: Producer, cluster: MemoryCluster) -> None:
    producer.send(b"\xff\xfe").result(5)
    assert cluster.messages == [{"base64": "//4="}]


def test_the_callers_own_idempotency_key_is_used(producer: Producer, server: ScriptedServer) -> None:
    assert producer.send("x", idempotency_key="invoice-7").result(5) == producer.send(
        "x", idempotency_key="invoice-7"
    ).result(5)
    assert [seen.key for seen in server.calls(PRODUCE)] == ["invoice-7", "invoice-7"]


def test_a_full_buffer_makes_send_wait(server: ScriptedServer, cluster: MemoryCluster) -> None:
    gate = threading.Event()

    def gated(seen: Seen) -> Step:
        if seen.path == PRODUCE:
            gate.wait(5)
        return cluster(seen)

    server.answer = gated
    with Producer(server.url, topic="orders", buffer_messages=3) as producer:
        blocked = threading.Thread(target=lambda: producer.send_many(["a", "b", "c", "d"]))
        blocked.start()
        blocked.join(0.3)
        assert blocked.is_alive()
        gate.set()
        blocked.join(5)
        assert not blocked.is_alive()
    assert cluster.messages == ["a", "b", "c", "d"]


def test_a_buffer_that_stays_full_says_so(server: ScriptedServer, cluster: MemoryCluster) -> None:
    server.script(Reply(201, {"producer_id": 3}), Reply(200, {"partition_id": 0, "offset": 0}, after_s=0.6))
    with Producer(server.url, topic="orders", buffer_bytes=10, delivery_timeout_s=0.2) as producer:
        first = producer.send("x" * 100)  # larger than the buffer, but the buffer is empty
        with pytest.raises(TimeoutError, match="full"):
            producer.send("y")
        assert first.exception(5) is not None


def test_a_failed_message_does_not_stop_those_behind_it(server: ScriptedServer, cluster: MemoryCluster) -> None:
    server.script(Reply(201, {"producer_id": 3}), Reply(404, failure(404, 40402, "partition not found")))
    with Producer(server.url, topic="orders") as producer:
        bad, good = producer.send("bad", partition=99), producer.send("good")
        with pytest.raises(MyQueueError, match="partition not found"):
            bad.result(5)
        assert good.result(5).offset == 0


def test_flush_raises_what_nobody_asked_for(server: ScriptedServer, cluster: MemoryCluster) -> None:
    no_leader = Reply(503, failure(503, 50302, retriable=False, outcome="not_written"))
    server.script(Reply(201, {"producer_id": 3}), no_leader, no_leader)
    producer = Producer(server.url, topic="orders")
    producer.send_many(["a", "b"])
    with pytest.raises(NoLeader) as caught:
        producer.flush(5)
    assert "2 of the messages" in caught.value.__notes__[0]
    producer.flush(5)  # told once
    server.script(no_leader)
    producer.send("c")
    with pytest.raises(NoLeader):
        producer.close()


def test_leaving_the_block_by_an_exception_keeps_that_exception(server: ScriptedServer, cluster: MemoryCluster) -> None:
    server.script(Reply(201, {"producer_id": 3}), Reply(503, failure(503, 50302, retriable=False)))

    def body() -> None:
        with Producer(server.url, topic="orders") as producer:
            producer.send("a")
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught:
        body()
    assert "no leader" in caught.value.__notes__[0] or "failed" in caught.value.__notes__[0]


def test_a_message_past_its_delivery_timeout_fails_as_not_written(
    server: ScriptedServer, cluster: MemoryCluster
) -> None:
    down = Reply(503, failure(503, 50302, outcome="not_written"))

    def answer(seen: Seen) -> Step:
        return down if seen.path == PRODUCE else cluster(seen)

    server.answer = answer
    with Producer(server.url, topic="orders", retry=QUICK, delivery_timeout_s=0.4) as producer:
        started = time.monotonic()
        deliveries = producer.send_many(["a", "b", "c"])
        errors = [delivery.exception(5) for delivery in deliveries]
        assert time.monotonic() - started < 4
    assert all(isinstance(error, Unavailable) and error.outcome == "not_written" for error in errors)


def test_callbacks_run_in_order_and_may_send(server: ScriptedServer, cluster: MemoryCluster) -> None:
    told: list[int] = []

    def on_delivery(delivery: Delivery) -> None:
        told.append(delivery.result(0).offset)
        if len(told) == 1:
            own.send("from the callback")
            raise ValueError("a defect of the callback")

    with Producer(server.url, topic="orders", on_delivery=on_delivery, buffer_messages=2) as own:
        own.send_many(["a", "b", "c"])
    assert told == [0, 1, 2, 3]
    assert sorted(cluster.messages) == ["a", "b", "c", "from the callback"]


def test_closing_with_a_timeout_gives_up(server: ScriptedServer, cluster: MemoryCluster) -> None:
    server.script(Reply(201, {"producer_id": 3}), Reply(200, {"partition_id": 0, "offset": 0}, after_s=1.0))
    producer = Producer(server.url, topic="orders", timeouts=Timeouts(read_s=5))
    deliveries = producer.send_many(["a", "b"])
    with pytest.raises(TimeoutError):
        producer.close(timeout=0.2)
    under_way, waiting = (delivery.exception(0) for delivery in deliveries)
    assert under_way is not None
    assert under_way.outcome == "unknown"
    assert waiting is not None
    assert waiting.outcome == "not_written"
    producer.close()  # twice is fine


def test_a_closed_producer_refuses(producer: Producer) -> None:
    producer.close()
    with pytest.raises(RuntimeError, match="closed"):
        producer.send("x")


def test_bad_arguments_are_refused_at_once(producer: Producer, server: ScriptedServer) -> None:
    with pytest.raises(TooLarge):
        producer.send(b"x" * ((1 << 20) + 1))
    with pytest.raises(TooLarge):
        producer.send("x", key=b"k" * ((1 << 16) + 1))
    with pytest.raises(TypeError):
        producer.send(5)  # type: ignore[arg-type]
    for key in ("", "a\nb", "ü", "x" * 201, " a"):
        with pytest.raises(InvalidRequest):
            producer.send("x", idempotency_key=key)
    assert server.calls(PRODUCE) == []


def test_result_times_out_while_it_is_being_sent(server: ScriptedServer, cluster: MemoryCluster) -> None:
    server.script(Reply(201, {"producer_id": 3}), Reply(200, {"partition_id": 0, "offset": 0}, after_s=0.4))
    with Producer(server.url, topic="orders") as producer:
        delivery = producer.send("a")
        with pytest.raises(TimeoutError):
            delivery.result(0.05)
        assert not delivery.done()
        assert delivery.result(5).offset == 0


def test_threads_may_share_a_producer(producer: Producer, cluster: MemoryCluster) -> None:
    threads = [
        threading.Thread(target=lambda name=name: producer.send_many([f"{name}{n}" for n in range(30)]))
        for name in "abcd"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    producer.flush(20)
    assert len(set(cluster.messages)) == 120
    for name in "abcd":
        assert [m for m in cluster.messages if m.startswith(name)] == [f"{name}{n}" for n in range(30)]
