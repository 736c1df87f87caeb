"""Letters that go back side by side: those of a key in their order, and none behind one of its key that failed."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from myqueue import InvalidRequest, Message, Producer, Unavailable
from myqueue.worker import ReplayCounts, replay
from myqueue.worker.dead_letter_replay import SENT_AT_ONCE, _ParallelSender
from myqueue.worker.dead_letters import DeadLetter, letter_headers
from tests.unit.client.failing_appends import QUICK
from tests.unit.client.memory_cluster import Log, MemoryCluster
from tests.unit.client.scripted_server import Reply, ScriptedServer, Seen, Step, failure


def letter(offset: int, key: bytes | None, topic: str = "orders") -> DeadLetter:
    original = Message(topic, b"v", key, 0, offset, 0)
    headers = letter_headers(original, ValueError("no"), 1, "billing", 0)
    made = DeadLetter.of(Message(f"{topic}.dead", b"v", key, 0, offset, 0, headers))
    assert made is not None
    return made


@contextmanager
def sender(send: Callable[[DeadLetter], None]) -> Iterator[_ParallelSender]:
    with ThreadPoolExecutor(SENT_AT_ONCE) as pool:
        yield _ParallelSender(pool, send)


def meeting(count: int) -> Callable[[DeadLetter], None]:
    """Each waits until so many are being sent at the same time."""
    together = threading.Barrier(count)

    def send(_: DeadLetter) -> None:
        together.wait(10)

    return send


def test_different_keys_and_letters_without_a_key_do_not_wait_for_each_other() -> None:
    letters = [letter(0, b"a"), letter(1, b"b"), letter(2, None), letter(3, None)]
    with sender(meeting(4)) as made:
        assert made.send(letters) == {}


def test_letters_of_a_key_keep_their_order_and_stop_at_one_that_fails() -> None:
    sent: list[int] = []
    away = Unavailable("away")

    def send(each: DeadLetter) -> None:
        if each.offset == 4:
            raise away
        sent.append(each.offset)

    letters = [letter(number, b"a" if number % 2 == 0 else b"b") for number in range(12)]
    with sender(send) as made:
        failures = made.send(letters)
    assert failures == {(0, 4): away, (0, 6): away, (0, 8): away, (0, 10): away}
    assert [number for number in sent if number % 2 == 0] == [0, 2]
    assert [number for number in sent if number % 2 == 1] == [1, 3, 5, 7, 9, 11]


def test_a_key_of_another_topic_is_another_key() -> None:
    with sender(meeting(2)) as made:
        assert made.send([letter(0, b"a"), letter(1, b"a", topic="bills")]) == {}


def test_a_defect_is_raised_and_the_rest_is_not_sent() -> None:
    def send(each: DeadLetter) -> None:
        raise ZeroDivisionError

    with sender(send) as made, pytest.raises(ZeroDivisionError):
        made.send([letter(number, None) for number in range(50)])


class DeadLetters:
    """A topic of dead letters, and what is sent back, by idempotency keys; `failing` are values that are refused."""

    def __init__(self, server: ScriptedServer, count: int) -> None:
        self.cluster = MemoryCluster(2, "orders.dead", 77)
        self.stored: dict[str, Any] = {}
        self.failing: set[str] = set()
        server.answer = self.answer
        with Producer(server.url, "orders.dead", retry=QUICK) as producer:
            for number in range(count):
                original = Message("orders", b"v", b"k%d" % (number % 7), number % 4, number, 1000 + number)
                headers = letter_headers(original, ValueError("no"), 1, "billing", 0)
                producer.send(str(number), original.key, partition=number % 2, headers=headers)

    def answer(self, seen: Seen) -> Step:
        if seen.path == "/v1/topics/orders.dead":
            body = {"topic": "orders.dead", "topic_id": str(self.cluster.topic_id), "partitions": 2, "replication": 1}
            return Reply(200, body | {"retention_ms": None, "retention_bytes": None})
        if seen.path == "/v1/topics/orders.dead/offsets":
            bounds = [{"partition_id": p, "beginning_offset": 0, "end_offset": log.end} for p, log in self.logs]
            return Reply(200, {"partitions": bounds})
        if seen.path == "/v1/topics/orders/messages":
            [message] = seen.body["messages"]
            if message["value"] in self.failing:
                return Reply(400, failure(400, 40001, "no", outcome="not_written"))
            self.stored.setdefault(seen.key, message)
            return Reply(200, {"messages": []})
        return self.cluster(seen)

    @property
    def logs(self) -> list[tuple[int, Log]]:
        return list(enumerate(self.cluster.logs))

    def values(self) -> list[int]:
        return [int(message["value"]) for message in self.stored.values()]


def test_all_go_back_once_in_the_order_of_their_keys(server: ScriptedServer) -> None:
    letters = DeadLetters(server, 600)
    seen: list[DeadLetter] = []
    assert replay(server.url, dead_letter_topic="orders.dead", limit=300, retry=QUICK, on_letter=seen.append) == (
        ReplayCounts(300)
    )
    assert (len(seen), sum(letters.cluster.cursors)) == (300, 300)
    assert replay(server.url, dead_letter_topic="orders.dead", retry=QUICK) == ReplayCounts(300)
    assert sorted(letters.values()) == list(range(600))
    assert letters.cluster.cursors == [300, 300]
    for partition in range(2):
        for key in range(7):
            sent = [number for number in letters.values() if (number % 2, number % 7) == (partition, key)]
            assert sent == sorted(sent), "letters of a key keep the order of their partition"


def test_the_cursor_does_not_pass_a_letter_that_failed(server: ScriptedServer) -> None:
    letters = DeadLetters(server, 100)
    letters.failing.add("40")
    with pytest.raises(InvalidRequest):
        replay(server.url, dead_letter_topic="orders.dead", retry=QUICK)
    assert letters.cluster.cursors[0] <= 20, "the letter 40 is the 20th of its partition"
    letters.failing.clear()
    left = 100 - sum(letters.cluster.cursors)
    assert replay(server.url, dead_letter_topic="orders.dead", retry=QUICK) == ReplayCounts(left)
    assert sorted(letters.values()) == list(range(100)), "those that were sent already are recognised by their keys"
    assert letters.cluster.cursors == [50, 50]
