"""Arguments that cannot be meant: each is refused by the parameter's name, as an error of the library and of Python."""

import asyncio
import multiprocessing
import socket
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from myqueue import (
    Admin,
    Consumer,
    InvalidRequest,
    Message,
    MyQueueError,
    NotMyQueue,
    PartitionNotFound,
    Producer,
    Reader,
    ReaderClosed,
    RetryPolicy,
    WrongType,
    WrongValue,
)
from myqueue.aio import AsyncConsumer, AsyncProducer
from tests.unit.client.failing_appends import OPEN, QUICK
from tests.unit.client.memory_cluster import MemoryCluster
from tests.unit.client.scripted_server import ScriptedServer

MESSAGE = Message("orders", b"v", None, 0, 0, 0)


class Index:
    """As a number of numpy."""

    def __index__(self) -> int:
        return 0


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ({"partition": "0"}, WrongType, r"^partition must be an int, not str \('0'\)$"),
        ({"partition": 1.0}, WrongType, r"^partition must be an int, not float \(1.0\)$"),
        ({"partition": True}, WrongType, r"^partition must be an int, not bool"),
        ({"key": 17}, WrongType, "^key must be bytes or str, not int$"),
        ({"value": 17}, WrongType, "^value must be bytes or str, not int; a value_serializer, such as json_serializer"),
        ({"value": None}, WrongType, "^value must be bytes or str, not NoneType"),
        ({"topic": 5}, WrongType, "^topic must be a str, not int$"),
        ({"topic": ["orders"]}, WrongType, "^topic must be a str, not list$"),
        ({"topic": ""}, WrongValue, "^topic must not be empty$"),
        ({"headers": "abc"}, WrongType, r"^headers must be a dict or a list of \(key, value\), not str$"),
        ({"headers": 5}, WrongType, "^headers must be a dict .*, not int$"),
        ({"headers": [("a",)]}, WrongType, r"^headers must be .*; \('a',\) is no such pair$"),
        ({"headers": ["ab"]}, WrongType, "^headers must be .*; 'ab' is no such pair$"),
        ({"headers": {1: b"x"}}, WrongType, r"^headers: a key must be a str, not int \(1\)$"),
        ({"headers": {"a": 5}}, WrongType, "^headers: the value of 'a' must be bytes or str, not int$"),
        ({"headers": {"a" * 300: b""}}, WrongValue, "^headers: a key may have at most"),
        ({"headers": {str(n): b"" for n in range(101)}}, WrongValue, "^headers: a message may have at most 100"),
        ({"timestamp": "now"}, WrongType, "^timestamp must be an int, in ms since 1970, or a datetime, not 'now'$"),
        ({"timestamp": 1.7e9}, WrongType, r"^timestamp must be .*; time.time\(\) is in seconds"),
        (
            {"timestamp": 1_772_366_400},
            WrongValue,
            r"^timestamp: 1772366400 is in seconds \(2026-03-01 12:00 UTC\); it must be in milliseconds: 1772366400000",
        ),
        ({"timestamp": -1}, WrongValue, "^timestamp: -1 lies before 1970$"),
        ({"timestamp": 1 << 62}, WrongValue, "^timestamp: .* must be in milliseconds, not µs or ns$"),
        ({"idempotency_key": 5}, WrongType, "^idempotency_key must be a str, not int$"),
        ({"idempotency_key": ""}, WrongValue, "^idempotency_key must be 1 to"),
        ({"idempotency_key": "k", "timestamp": 5}, WrongValue, "idempotency_key has no timestamp or headers"),
        ({"idempotency_key": "k", "partition": "0"}, WrongType, "^partition must be an int"),
    ],
)
def test_what_cannot_be_sent(
    producer: Producer, cluster: MemoryCluster, arguments: dict[str, Any], kind: type[InvalidRequest], text: str
) -> None:
    with pytest.raises(kind, match=text) as caught:
        producer.send(**({"value": "v"} | arguments))
    assert isinstance(caught.value, InvalidRequest)
    assert isinstance(caught.value, TypeError if kind is WrongType else ValueError)
    assert caught.value.outcome == "not_written"
    assert cluster.messages == []


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (lambda producer: producer.send_many(5), "^values must be many values, such as a list, not int$"),
        (lambda producer: producer.send_many(None), "^values must be .*, not NoneType$"),
        (lambda producer: producer.send_many([1, 2]), "^value must be bytes or str, not int"),
        (lambda producer: producer.send_many(["a"], partition="0"), "^partition must be an int, not str"),
        (lambda producer: producer.flush("5"), "^timeout must be a number of seconds or None, not str$"),
        (lambda producer: producer.close("5"), "^timeout must be"),
    ],
)
def test_what_cannot_be_sent_together(producer: Producer, use: Callable[[Producer], object], text: str) -> None:
    with pytest.raises(WrongType, match=text):
        use(producer)
    assert producer.send("it is still usable").result(5).offset == 0


def test_a_number_of_another_library_is_a_partition(producer: Producer, cluster: MemoryCluster) -> None:
    index: Any = Index()
    assert producer.send("a", partition=index).result(5).partition == 0
    assert producer.send_many(["b"], partition=index).result(5)[0].partition == 0


def test_a_message_may_have_a_datetime(producer: Producer, cluster: MemoryCluster) -> None:
    moment = datetime(2026, 3, 1, 12, 0, 0, 250_000, tzinfo=UTC)
    producer.send("a", timestamp=moment).result(5)
    assert cluster.stored(0)[0].timestamp == 1_772_366_400_250


@pytest.mark.parametrize(
    ("what", "kind", "text"),
    [
        (None, WrongType, r"^what must be .*, not None, as of a poll that found nothing; commit\(\) takes everything"),
        (5, WrongType, "^what must be a message, a list of messages or {partition: next offset}, not int$"),
        ("0", WrongType, "^what must be .*, not str$"),
        ([None], WrongType, "^what must be .*; in the list is None$"),
        ([MESSAGE, 3], WrongType, "in the list is 3$"),
        ({"0": 1}, WrongType, r"^what: a partition must be an int, not str \('0'\)$"),
        ({0: "1"}, WrongType, "^what: the offset of 0 must be an int, not str"),
        ({0: -1}, WrongValue, "^what: partitions and offsets are 0 or more, not {0: -1}$"),
    ],
)
def test_what_cannot_be_committed(
    server: ScriptedServer, cluster: MemoryCluster, what: Any, kind: type[InvalidRequest], text: str
) -> None:
    cluster.put("a", "b")
    with Consumer(server.url, "orders", "billing", start="earliest", commit="manual", retry=QUICK) as consumer:
        assert consumer.poll(5) is not None
        for wait in (True, False):
            with pytest.raises(kind, match=text):
                consumer.commit(what, wait=wait)
        assert cluster.commits == []
        assert consumer.commit() == {0: 1}


def test_a_poll_takes_seconds(server: ScriptedServer, cluster: MemoryCluster) -> None:
    with (
        Consumer(server.url, "orders", "billing", retry=QUICK) as consumer,
        Reader(server.url, "orders", {0: 0}, retry=QUICK) as reader,
    ):
        wrong: Any = "5"
        for poll in (consumer.poll, reader.poll, lambda timeout: consumer.poll_many(5, timeout)):
            with pytest.raises(WrongType, match=r"^timeout must be a number of seconds or None, not str$"):
                poll(wrong)


@pytest.mark.parametrize(
    ("topic", "offsets", "kind", "text"),
    [
        ("orders", None, WrongType, "^a Reader needs a topic and offsets"),
        ("", {0: 0}, WrongType, "^a Reader needs a topic and offsets"),
        (5, {0: 0}, WrongType, "^topic must be a str, not int$"),
        ("orders", [0], WrongType, "^offsets must be {partition: offset}, not list$"),
        ("orders", {"0": 0}, WrongType, "^offsets: a partition must be an int, not str"),
        ("orders", {0: "earliest"}, WrongType, "^offsets: an offset must be an int, not str"),
        ("orders", {0: -1}, WrongValue, "^offsets: partitions and offsets are 0 or more, not {0: -1}$"),
        ("orders", {0: 0, 7: 0}, PartitionNotFound, "^partition not found: 7 of topic 'orders'; its .* are 0 to 0$"),
    ],
)
def test_what_cannot_be_read(
    server: ScriptedServer, cluster: MemoryCluster, topic: Any, offsets: Any, kind: type[MyQueueError], text: str
) -> None:
    with pytest.raises(kind, match=text):
        Reader(server.url, topic, offsets, retry=QUICK)


def test_a_closed_reader_says_so(server: ScriptedServer, cluster: MemoryCluster) -> None:
    cluster.put("a", "b")
    reader = Reader(server.url, "orders", {0: 0}, retry=QUICK)
    assert reader.poll(5) is not None
    reader.close()
    with pytest.raises(ReaderClosed, match=r"^the reader of topic 'orders' is closed: open another one$"):
        reader.poll(0)
    assert reader.position() == {0: 1}
    reader.close()


def test_a_reader_in_a_child_process_says_whose_it_is(server: ScriptedServer, cluster: MemoryCluster) -> None:
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    cluster.put("a", "b")
    with Reader(server.url, "orders", {0: 0}, retry=QUICK) as reader:
        assert reader.poll(5) is not None

        def use() -> None:
            try:
                reader.poll(5)
            except InvalidRequest as error:
                sender.send(f"{type(error).__name__} {error} {reader!r}")
            reader.close()

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = context.Process(target=use)
            child.start()
        assert receiver.poll(10), "the child hangs"
        text = receiver.recv()
        child.join(10)
        message = reader.poll(5)
        assert message is not None
        assert message.text == "b", "the parent's goes on"
    assert text.startswith("ForkedReader the reader of topic 'orders' belongs to process")
    assert "<Reader topic='orders'" in text


def test_both_async_clients_open_in_the_same_way(server: ScriptedServer, cluster: MemoryCluster) -> None:
    async def use() -> None:
        producer = await AsyncProducer(server.url, "orders", retry=QUICK).open()
        assert len(server.calls(OPEN)) == 1
        assert await producer.open() is producer
        await (await producer.send("a"))
        assert len(server.calls(OPEN)) == 1
        consumer = await AsyncConsumer(server.url, "orders", "billing", start="earliest", retry=QUICK).open()
        assert (await consumer.poll(5)) is not None
        await consumer.close()
        await producer.close()
        without_topic = await AsyncProducer(server.url, retry=QUICK).open()
        await without_topic.close()

    asyncio.run(use())


@contextmanager
def greeting(said: bytes) -> Iterator[str]:
    """A server that speaks first, as sshd does, and hangs up on what it does not understand."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    taken, _ = listening.accept()
                except OSError:
                    return
                with taken:
                    taken.sendall(said)
                    taken.settimeout(5)
                    taken.recv(1 << 16)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
    thread.join()


def test_the_port_of_another_protocol_gives_one_true_sentence() -> None:
    with greeting(b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n") as url:
        said = (
            f"what answers is not myqueue: what came from {url} is no HTTP response:"
            " it begins with 'SSH-2.0-OpenSSH_9.2p1 Debian-2'"
        )
        retry = RetryPolicy(deadline_s=5)
        with Admin(url, retry=retry) as admin, pytest.raises(NotMyQueue) as caught:
            admin.list_topics()
        assert str(caught.value) == said
        with pytest.raises(NotMyQueue) as caught:
            Consumer(url, "orders", retry=retry)
        assert str(caught.value) == said
        with pytest.raises(NotMyQueue) as caught:
            Producer(url, "orders", retry=retry)
        assert str(caught.value) == said


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        ({"commit": "sometimes"}, WrongValue, 'commit must be "auto" or "manual", not \'sometimes\''),
        ({"on_gap": "stop"}, WrongValue, 'on_gap must be "skip" or "error", not \'stop\''),
        ({"fetch_bytes": 0}, WrongValue, "fetch_bytes must be from 1 to"),
        ({"fetch_bytes": "1"}, WrongType, "fetch_bytes must be an int, not str"),
        ({"topic": ["orders", "bills"], "partition": 0}, WrongValue, "partition is one of a single topic"),
    ],
)
def test_settings_of_a_consumer(
    server: ScriptedServer, given: dict[str, Any], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        Consumer(server.url, **{"topic": "orders", "retry": QUICK, **given})
    assert server.seen == []
