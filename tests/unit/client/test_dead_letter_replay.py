"""Letters that go back side by side: those of a key in their order, and none behind one of its key that failed."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from myqueue import Message, Unavailable
from myqueue.worker.dead_letter_replay import SENT_AT_ONCE, _ParallelSender
from myqueue.worker.dead_letters import DeadLetter, letter_headers


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
