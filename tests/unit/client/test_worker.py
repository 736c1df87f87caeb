"""The worker: order of a key, commit after success, retries, dead letters, stopping; against a cluster in memory."""

import asyncio
import threading
from collections import defaultdict
from typing import Any

import pytest

from myqueue import (
    Message,
    Producer,
    RetryPolicy,
)
from myqueue.protocol.limits import MAX_MESSAGE_BYTES
from myqueue.worker import DeadLetter, HandlerResult, Reject, Worker
from myqueue.worker.dead_letters import MAX_REASON_CHARS, letter_headers
from myqueue.worker.worker import backoff_s
from tests.unit.client.scripted_server import Reply, ScriptedServer, Seen, Step, failure
from tests.unit.client.worker_topics import QUICK, Topics, running
from tests.waiting import throughout, until


@pytest.fixture
def topics(server: ScriptedServer) -> Topics:
    return Topics(server)


def test_it_handles_every_message_and_commits(server: ScriptedServer, topics: Topics) -> None:
    topics.send(*[(f"k{number % 7}", str(number)) for number in range(500)])
    seen: defaultdict[bytes | None, list[int]] = defaultdict(list)
    with running(server, lambda message: seen[message.key].append(int(message.value))) as worker:
        until(lambda: worker.counts.handled == 500)
        until(lambda: topics.orders.cursors == [500], what="it commits while it runs")
        topics.send(("k0", "500"))
        until(lambda: worker.counts.handled == 501)
    assert topics.orders.cursors == [501], "the rest is committed when it stops"
    assert all(values == sorted(values) for values in seen.values())
    assert sum(len(values) for values in seen.values()) == 501
    assert topics.letters() == []


def test_one_key_runs_alone_and_others_beside_it(server: ScriptedServer, topics: Topics) -> None:
    topics.send(("a", "1"), ("a", "2"), ("b", "3"), (None, "4"), (None, "5"))
    begun: list[str] = []
    go_on = threading.Event()

    def handle(message: Message) -> None:
        begun.append(message.text)
        assert go_on.wait(10)

    with running(server, handle) as worker:
        until(lambda: len(begun) == 4)
        throughout(lambda: sorted(begun) == ["1", "3", "4", "5"], for_s=0.2, what="the second of a key waits")
        assert (worker.counts.running, worker.counts.in_hand) == (4, 5)
        assert topics.orders.cursors == [0]
        go_on.set()
        until(lambda: worker.counts.handled == 5)
    assert begun[-1] == "2"


def test_a_message_that_fails_is_retried_and_holds_up_only_its_key(server: ScriptedServer, topics: Topics) -> None:
    topics.send(("a", "1"), ("a", "2"), ("b", "3"))
    handled: list[str] = []
    works = threading.Event()

    def handle(message: Message) -> None:
        if message.text == "1" and not works.is_set():
            raise ConnectionError("no shop")
        handled.append(message.text)

    with running(server, handle, max_retries=None) as worker:
        until(lambda: worker.counts.retried > 8 and handled == ["3"], what="retries for ever")
        assert topics.orders.cursors == [0], "a commit would pass a message that is not done"
        works.set()
        until(lambda: worker.counts.handled == 3)
    assert handled == ["3", "1", "2"]
    assert topics.orders.cursors == [3]


def test_a_message_without_more_retries_becomes_a_dead_letter(server: ScriptedServer, topics: Topics) -> None:
    with Producer(server.url, "orders", retry=QUICK) as producer:
        producer.send("bad", key="a", timestamp=1234, headers={"trace": b"\x00\xff"}).result()
        producer.send("good", key="a").result()
    results: list[HandlerResult] = []

    def handle(message: Message) -> None:
        if message.text == "bad":
            raise ConnectionError("no shop")

    with running(server, handle, max_retries=2, on_result=results.append) as worker:
        until(lambda: worker.counts.dead == 1 and worker.counts.handled == 1)
        assert worker.counts.retried == 2
    assert [(result.outcome, result.attempt) for result in results] == [
        ("retried", 1),
        ("retried", 2),
        ("dead", 3),
        ("handled", 1),
    ]
    assert topics.orders.cursors == [2]
    [stored] = topics.letters()
    letter = DeadLetter.of(Message("orders.dead", stored.value, stored.key, 0, 0, stored.timestamp, stored.headers))
    assert letter is not None
    assert (letter.message.value, letter.message.key) == (b"bad", b"a")
    assert (letter.error, letter.reason, letter.attempts) == ("ConnectionError", "no shop", 3)
    assert (letter.topic, letter.partition, letter.offset, letter.timestamp) == ("orders", 0, 0, 1234)
    assert (letter.worker, letter.replays) == ("billing", 0)
    assert letter.died_at > 1_600_000_000_000
    assert letter.own_headers() == (("trace", b"\x00\xff"),)


class Odd(ValueError):
    pass


@pytest.mark.parametrize(
    ("settings", "raised", "error", "reason"),
    [
        ({}, Reject("unknown customer"), "myqueue.worker.dead_letters.Reject", "unknown customer"),
        ({"retry_on": ConnectionError}, ValueError("bad"), "ValueError", "bad"),
        ({"retry_on": (ConnectionError, KeyError)}, Odd("x"), f"{Odd.__module__}.Odd", "x"),
        ({"retry_on": lambda error: "later" in str(error)}, ValueError("never"), "ValueError", "never"),
    ],
)
def test_what_is_not_worth_a_retry_is_dead_at_once(
    server: ScriptedServer, topics: Topics, settings: dict[str, Any], raised: Exception, error: str, reason: str
) -> None:
    topics.send((None, "x"))

    def handle(message: Message) -> None:
        raise raised

    with running(server, handle, **settings) as worker:
        until(lambda: worker.counts.dead == 1)
        assert worker.counts.retried == 0
    headers = dict(topics.letters()[0].headers)
    assert headers["dead-letter-error"] == error.encode()
    assert headers["dead-letter-reason"] == reason.encode()
    assert headers["dead-letter-attempts"] == b"1"


def test_the_original_is_not_committed_before_its_dead_letter_is_stored(server: ScriptedServer, topics: Topics) -> None:
    topics.send(("a", "bad"), ("b", "good"))
    broken = threading.Event()
    broken.set()
    several, calls = server.answer, []

    def answer(seen: Seen) -> Step:
        if "orders.dead" in seen.path and broken.is_set():
            return Reply(503, failure(503, 50301, outcome="not_written"))
        return several(seen)

    def handle(message: Message) -> None:
        calls.append(message.text)
        if message.text == "bad":
            raise Reject("no")

    server.answer = answer
    with running(server, handle, retry=RetryPolicy(0.1, 0.001, 0.01)) as worker:
        until(lambda: worker.counts.handled == 1)
        until(lambda: len([seen for seen in server.seen if "orders.dead" in seen.path]) > 5)
        assert (topics.orders.cursors, worker.counts.dead) == ([0], 0)
        broken.clear()
        until(lambda: worker.counts.dead == 1)
    assert calls.count("bad") == 1, "only the letter is sent again"
    assert topics.orders.cursors == [2]
    assert len(topics.letters()) == 1


def test_stop_waits_for_what_runs_and_leaves_the_rest(server: ScriptedServer, topics: Topics) -> None:
    topics.send(*[("a", str(number)) for number in range(3)])
    begun, go_on = threading.Event(), threading.Event()

    def handle(message: Message) -> None:
        begun.set()
        assert go_on.wait(10)

    with running(server, handle) as worker:
        assert begun.wait(10)
        worker.stop()
        throughout(lambda: worker.counts.running == 1, for_s=0.5, what="the handler runs on")
        go_on.set()
    assert worker.counts.handled == 1
    assert topics.orders.cursors == [1]
    handled: list[str] = []
    with running(server, lambda message: handled.append(message.text)) as worker:
        until(lambda: worker.counts.handled == 2)
    assert handled == ["1", "2"]


def test_nothing_that_was_handled_comes_again_after_a_stop(server: ScriptedServer, topics: Topics) -> None:
    """What lies before it in its partition is handled too: without that it could not be committed."""
    topics.send(("a", "1"), ("a", "2"), ("b", "3"), ("a", "4"))
    handled: list[str] = []
    begun, go_on = threading.Event(), threading.Event()

    def handle(message: Message) -> None:
        if message.text == "1":
            begun.set()
            assert go_on.wait(10)
        handled.append(message.text)

    with running(server, handle) as worker:
        assert begun.wait(10)
        until(lambda: handled == ["3"])
        worker.stop()
        throughout(lambda: worker.counts.running == 1, for_s=0.5, what="the handler runs on")
        go_on.set()
    assert (handled, topics.orders.cursors) == (["3", "1", "2"], [3])


def test_a_handler_that_does_not_end_is_left_behind(server: ScriptedServer, topics: Topics) -> None:
    topics.send(("a", "1"), ("b", "2"))
    begun, go_on = threading.Event(), threading.Event()

    def handle(message: Message) -> None:
        if message.text == "1":
            begun.set()
            assert go_on.wait(20)

    with running(server, handle, stop_timeout_s=0.2) as worker:
        assert begun.wait(10)
        until(lambda: worker.counts.handled == 1)
    assert topics.orders.cursors == [0]
    go_on.set()
    until(lambda: worker.counts.running == 0)


def test_an_async_handler(server: ScriptedServer, topics: Topics) -> None:
    topics.send(*[(f"k{number}", str(number)) for number in range(20)], ("x", "bad"))
    loops = set()

    async def handle(message: Message) -> None:
        loops.add(asyncio.get_running_loop())
        await asyncio.sleep(0.001)
        if message.text == "bad":
            raise Reject("no")

    with running(server, handle) as worker:
        until(lambda: worker.counts.handled == 20 and worker.counts.dead == 1)
    assert len(loops) == 1, "connections of the application belong to one loop"


def test_a_coroutine_that_does_not_end_is_cancelled_and_its_message_comes_again(
    server: ScriptedServer, topics: Topics
) -> None:
    topics.send(("a", "1"))
    begun = threading.Event()
    cancelled: list[str] = []

    async def handle(message: Message) -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(message.text)
            raise

    with running(server, handle, stop_timeout_s=0.2, max_retries=0):
        assert begun.wait(10)
    assert cancelled == ["1"]
    assert (topics.orders.cursors, topics.letters()) == ([0], [])


def test_a_coroutine_that_blocks_does_not_keep_it_from_ending(server: ScriptedServer, topics: Topics) -> None:
    topics.send(("a", "1"))
    begun, go_on = threading.Event(), threading.Event()

    async def handle(message: Message) -> None:
        begun.set()
        assert go_on.wait(30)

    try:
        with running(server, handle, stop_timeout_s=0.1):
            assert begun.wait(10)
        assert topics.orders.cursors == [0]
    finally:
        go_on.set()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_exit_inside_a_handler_ends_the_worker(server: ScriptedServer, topics: Topics, asynchronous: bool) -> None:
    topics.send(("a", "1"))

    def handle(message: Message) -> None:
        raise SystemExit(7)

    async def handle_async(message: Message) -> None:
        raise SystemExit(7)

    worker = Worker(handle_async if asynchronous else handle, server.url, topic="orders", name="b", retry=QUICK)
    with pytest.raises(SystemExit, match="7"):
        worker.run()
    assert topics.orders.cursors == [0]


def test_messages_in_hand_are_bounded(server: ScriptedServer) -> None:
    topics = Topics(server, partitions=2)
    topics.send(*[("slow", "x")] * 300, partition=0)
    topics.send(*[(None, "y")] * 300, partition=1)
    go_on = threading.Event()
    most = 0

    def handle(message: Message) -> None:
        nonlocal most
        most = max(most, worker.counts.in_hand)
        if message.key is not None:
            assert go_on.wait(20)

    with running(server, handle, max_in_hand=20) as worker:
        until(lambda: worker.counts.handled == 300, what="the other partition is not held up")
        assert worker.counts.in_hand <= 20
        go_on.set()
        until(lambda: worker.counts.handled == 600)
    assert most <= 40
    assert topics.orders.cursors == [300, 300]


def test_many_dead_letters_are_on_their_way_at_a_time(server: ScriptedServer, topics: Topics) -> None:
    """A handler's thread does not wait for the answer."""
    topics.send(*[(None, str(number)) for number in range(20)])
    several, gate = server.answer, threading.Event()

    def answer(seen: Seen) -> Step:
        if str(topics.dead.topic_id) in seen.path:
            gate.wait(10)
        return several(seen)

    def handle(message: Message) -> None:
        calls.append(message.text)
        raise Reject("no")

    calls: list[str] = []
    server.answer = answer
    with running(server, handle, concurrency=2) as worker:
        until(lambda: len(calls) == 20, what="all are handled before the first letter is stored")
        assert (worker.counts.dead, worker.counts.in_hand, topics.orders.cursors) == (0, 20, [0])
        gate.set()
        until(lambda: worker.counts.dead == 20)
    assert sorted(letter.value for letter in topics.letters()) == sorted(text.encode() for text in calls)
    assert topics.orders.cursors == [20]


def test_a_worker_runs_once(server: ScriptedServer, topics: Topics) -> None:
    worker = Worker(print, server.url, topic="orders", name="billing", retry=QUICK)
    worker.stop()
    worker.run()
    with pytest.raises(RuntimeError, match="runs once"):
        worker.run()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": ""}, "name must not be empty"),
        ({"order": "any"}, "order must be one of key, partition, none, not 'any'"),
        ({"concurrency": 0}, "concurrency must be 1 or more"),
        ({"max_retries": -1}, "max_retries must be 0 or more, or None"),
        ({"first_backoff_s": 2, "longest_backoff_s": 1}, "first_backoff_s must be from 0 to longest_backoff_s"),
        ({"dead_letter_topic": "orders"}, "dead_letter_topic must be another topic"),
        ({"dead_letter_topic": "a b"}, "dead_letter_topic 'a b': topic name must be"),
        ({"topic": "x" * 200}, "topic name must be 1 to 200"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Worker(print, "http://localhost", **({"topic": "orders", "name": "billing"} | settings))


def test_the_backoff_doubles_up_to_its_limit_and_half_of_it_is_random() -> None:
    assert [backoff_s(failures, 0.5, 3.0, 0.0) for failures in range(1, 6)] == [0.25, 0.5, 1.0, 1.5, 1.5]
    assert backoff_s(3, 0.5, 3.0, 0.5) == 1.5
    assert backoff_s(100_000, 0.5, 3.0, 0.0) == 1.5


def test_what_a_dead_letter_says_is_bounded() -> None:
    own = tuple((f"h{number}", b"x") for number in range(98))
    replayed = ("dead-letter-replays", b"2")
    message = Message("orders", b"v", None, 1, 2, 3, (*own, replayed, ("dead-letter-error", b"older")))
    headers = letter_headers(message, ValueError("é" * 5000), 3, "billing", 4)
    assert len(headers) == 100
    values = dict(headers)
    assert len((values["dead-letter-reason"] or b"").decode()) == MAX_REASON_CHARS
    assert (values["dead-letter-error"], values["dead-letter-replays"]) == (b"ValueError", b"2")
    assert [key for key, _ in headers].count("dead-letter-error") == 1


def test_a_message_full_of_headers_has_a_dead_letter_that_can_be_stored(server: ScriptedServer, topics: Topics) -> None:
    """Else it would be tried for ever, and all messages of its key would wait."""
    with Producer(server.url, "orders", retry=QUICK) as producer:
        producer.send(
            "poison", "a", headers=[("first", b"1"), ("large", bytes(MAX_MESSAGE_BYTES - 100)), ("last", b"3")]
        )
        producer.send("good", "a")

    def handle(message: Message) -> None:
        if message.text == "poison":
            raise Reject("no")

    with running(server, handle) as worker:
        until(lambda: worker.counts.handled == 1)
    [letter] = topics.letters()
    assert [key for key, _ in letter.headers if not key.startswith("dead-letter-")] == ["first", "last"]


def test_a_rejection_that_was_raised_from_an_error_names_it() -> None:
    message = Message("orders", b"v", None, 0, 0, 0)
    rejected = Reject("no such customer")
    rejected.__cause__ = KeyError("17")
    values = dict(letter_headers(message, rejected, 1, "billing", 0))
    assert (values["dead-letter-error"], values["dead-letter-reason"]) == (b"KeyError", b"no such customer")


def test_a_message_that_is_no_dead_letter() -> None:
    assert DeadLetter.of(Message("orders", b"v", None, 0, 0, 0)) is None
    assert DeadLetter.of(Message("orders", b"v", None, 0, 0, 0, (("dead-letter-error", b"x"),))) is None
