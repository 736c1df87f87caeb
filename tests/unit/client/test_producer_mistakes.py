"""Mistakes with a producer: each is refused, or told, with what to do."""

import gc
import logging
import threading
import weakref
from typing import Any

import pytest

from myqueue import MyQueueError, Producer, ProducerClosed, ProducerFenced
from tests.unit.client.failing_appends import QUICK, is_append
from tests.unit.client.memory_cluster import MemoryCluster
from tests.unit.client.scripted_server import ScriptedServer, Seen, Step
from tests.waiting import until


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"linger_ms": -1}, "linger_ms must be from 0"),
        ({"linger_ms": float("nan")}, "linger_ms"),
        ({"linger_ms": "5"}, "linger_ms must be a number, not str"),
        ({"batch_bytes": 0}, "batch_bytes"),
        ({"batch_bytes": 1e6}, "batch_bytes must be an int, not float"),
        ({"max_in_flight": 0}, "max_in_flight"),
        ({"max_in_flight": True}, "max_in_flight must be an int, not bool"),
        ({"max_in_flight": 1000}, "max_in_flight must be from 1 to 64, not 1000"),
        ({"buffer_bytes": 0}, "buffer_bytes must be 1 or more, not 0"),
        ({"delivery_timeout_s": 0}, "delivery_timeout_s"),
        ({"delivery_timeout_s": None}, "delivery_timeout_s must be a number, not NoneType"),
        ({"name": ""}, "name must have 1 to 200 characters"),
        ({"name": 5}, "name must be a str or None, not int"),
    ],
)
def test_settings_that_make_no_sense_are_named(server: ScriptedServer, wrong: dict[str, Any], text: str) -> None:
    with pytest.raises((ValueError, TypeError), match=text):
        Producer(server.url, topic="orders", **wrong)
    assert server.seen == []


@pytest.mark.parametrize("values", ["abc", b"abc", bytearray(b"abc"), {"a": 1}])
def test_one_value_is_not_many(producer: Producer, cluster: MemoryCluster, values: Any) -> None:
    with pytest.raises(TypeError, match=f"not one {type(values).__name__}: use send"):
        producer.send_many(values)
    assert cluster.messages == []


def test_the_url_is_that_of_the_environment(
    server: ScriptedServer, cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MYQUEUE_URL", server.url)
    with Producer(topic="orders") as producer:
        producer.send("a").result(5)
    assert cluster.messages == ["a"]


def test_a_closed_producer_names_itself(server: ScriptedServer, cluster: MemoryCluster) -> None:
    producer = Producer(server.url, topic="orders", name="till-1")
    producer.close()
    for use in (
        lambda: producer.send("x"),
        lambda: producer.send_many(["x"]),
        lambda: producer.send("x", topic="bills"),
        lambda: producer.send("x", idempotency_key="k"),
    ):
        with pytest.raises(ProducerClosed, match="'till-1' is closed") as caught:
            use()
        assert isinstance(caught.value, MyQueueError)
        assert isinstance(caught.value, RuntimeError)


def test_a_fenced_producer_is_told_by_whom_and_what_to_do(server: ScriptedServer, cluster: MemoryCluster) -> None:
    with (
        Producer(server.url, topic="orders", name="till-1", retry=QUICK) as old,
        Producer(server.url, topic="orders", name="till-1", retry=QUICK) as new,
    ):
        new.send("a").result(5)
        error = old.send("b").exception(5)
        assert isinstance(error, ProducerFenced)
        assert "producer 'till-1' of topic 'orders' (id 3, epoch 0) was replaced" in error.message
        assert "name of its own" in error.message
        assert error.details == {"name": "till-1", "topic": "orders", "producer_id": 3, "epoch": 0}
        with pytest.raises(ProducerFenced, match="'till-1'"):
            old.send("c")


@pytest.mark.filterwarnings("default::ResourceWarning")
def test_a_producer_that_is_dropped_with_messages_warns_and_sends_them(
    server: ScriptedServer, cluster: MemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    gate = threading.Event()

    def gated(seen: Seen) -> Step:
        if is_append(seen):
            gate.wait(10)
        return cluster(seen)

    server.answer = gated
    producer = Producer(server.url, topic="orders", name="till-1", retry=QUICK)
    topics = weakref.ref(producer._topics)
    delivery = producer.send("a")
    with caplog.at_level(logging.WARNING), pytest.warns(ResourceWarning, match="'till-1' was dropped with messages"):
        del producer
    assert "till-1" in caplog.text
    gate.set()
    assert delivery.result(5).offset == 0

    def gone() -> bool:
        gc.collect()
        return topics() is None or topics()._pool is None  # type: ignore[union-attr]

    until(gone, within_s=5, what="it gives its threads back")


def test_a_producer_that_is_dropped_without_messages_gives_its_threads_back(
    server: ScriptedServer, cluster: MemoryCluster
) -> None:
    producer = Producer(server.url, topic="orders", retry=QUICK)
    producer.send("a").result(5)
    producer.flush(5)
    pool = producer._topics._pool
    assert pool is not None
    assert pool.thread_count > 0
    del producer
    gc.collect()
    until(lambda: pool.thread_count == 0, within_s=5, what="the threads end")
