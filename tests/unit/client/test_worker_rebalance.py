"""The worker while partitions move and the cluster is away: what is finished, committed, repeated, and what ends it."""

import threading
from functools import partial
from typing import Any

import pytest

from myqueue import (
    Consumer,
    ConsumerNotFound,
    InvalidRequest,
    MaxPollIntervalExceeded,
    Message,
    MyQueueError,
    RetryPolicy,
    StaleCommit,
    StaleLease,
    TopicNotFound,
    Unavailable,
)
from myqueue.worker import Worker, message_source
from myqueue.worker.message_source import MessageSource
from tests.unit.client.scripted_server import Reply, ScriptedServer, Seen, Step, failure
from tests.unit.client.worker_topics import QUICK, Topics, running
from tests.waiting import let_pass, throughout, until


@pytest.fixture
def topics(server: ScriptedServer) -> Topics:
    return Topics(server)


def test_the_results_of_a_partition_that_went_away_are_not_committed(server: ScriptedServer, topics: Topics) -> None:
    topics.send(("a", "1"), ("a", "2"), ("a", "3"))
    begun: list[str] = []
    go_on = threading.Event()

    def handle(message: Message) -> None:
        begun.append(message.text)
        assert go_on.wait(10)

    with running(server, handle) as worker:
        until(lambda: begun == ["1"])
        with topics.orders.lock:
            topics.orders.lease(0, "another")
        until(lambda: worker.counts.in_hand == 0, what="what has not started is dropped")
        go_on.set()
        until(lambda: worker.counts.running == 0)
        with topics.orders.lock:
            topics.orders.cursors[0] = 2  # by the other one
            topics.orders.leases.clear()
        until(lambda: topics.orders.cursors == [3], what="it goes on behind the other")
    assert begun == ["1", "3"]
    assert topics.orders.commits == [{0: 3}]


def test_what_has_begun_of_a_partition_is_finished_and_committed_before_it_goes(
    server: ScriptedServer, topics: Topics
) -> None:
    """Also what lies between: "2" waits for "1", and "3" behind it is done. "4" has not begun."""
    topics.send(("a", "1"), ("a", "2"), ("b", "3"), ("a", "4"))
    begun: list[str] = []
    go_on = threading.Event()

    def handle(message: Message) -> None:
        begun.append(message.text)
        if message.text == "1":
            assert go_on.wait(10)

    with running(server, handle) as worker:
        until(lambda: worker.counts.handled == 1, what="the third is done")
        with topics.orders.lock:
            topics.orders.leases[0].revoking = True
        until(lambda: worker.counts.in_hand == 2, what="the fourth is dropped")
        throughout(lambda: topics.orders.leases[0].revoking, for_s=0.3, what="it is not released")
        go_on.set()
        until(lambda: topics.orders.cursors == [3], what="the three are committed")
        until(lambda: worker.counts.handled == 4, what="the partition has come back")
    assert sorted(begun) == ["1", "2", "3", "4"], "nothing is handled twice"
    assert topics.orders.cursors == [4]


def test_a_partition_goes_although_a_handler_does_not_end(
    server: ScriptedServer, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("myqueue.worker.worker.REVOKE_S", 0.3)
    topics.send(("a", "1"), ("b", "2"))
    begun: list[str] = []
    go_on = threading.Event()

    def handle(message: Message) -> None:
        begun.append(message.text)
        if message.text == "1":
            assert go_on.wait(10)

    with running(server, handle) as worker:
        until(lambda: worker.counts.handled == 1)
        with topics.orders.lock:
            generation = topics.orders.leases[0].generation
            topics.orders.leases[0].revoking = True
        until(lambda: topics.orders.leases[0].generation > generation, what="it was released, and came back")
        assert topics.orders.cursors == [0]
        until(lambda: begun.count("2") == 2, what="what could not be committed comes again")
        assert begun.count("1") == 1, "its key waits for the handler that still runs"
        go_on.set()
        until(lambda: topics.orders.cursors == [2])
    assert begun.count("1") == 2


def test_messages_are_read_while_the_cluster_cannot_commit(server: ScriptedServer, topics: Topics) -> None:
    topics.send(("a", "1"))
    several, away = server.answer, threading.Event()
    away.set()

    def answer(seen: Seen) -> Step:
        if seen.path.endswith("/commit") and away.is_set():
            return Reply(503, failure(503, 50303, outcome="not_written"))
        return several(seen)

    server.answer = answer
    with running(server, lambda _: None, retry=RetryPolicy(1.0, 0.001, 0.01)) as worker:
        until(lambda: worker.counts.handled == 1)
        until(lambda: [seen for seen in server.seen if seen.path.endswith("/commit")], what="it tries to commit")
        for number in range(2, 6):
            topics.send(("a", str(number)))
            until(lambda n=number: worker.counts.handled == n, within_s=5)  # type: ignore[misc]
        assert topics.orders.cursors == [0]
        away.clear()
        until(lambda: topics.orders.cursors == [5], what="a later commit makes up for it")


def test_a_seek_makes_it_start_again_from_there(server: ScriptedServer, topics: Topics) -> None:
    topics.send(*[(f"k{number}", str(number)) for number in range(5)])
    handled: list[str] = []
    with running(server, lambda message: handled.append(message.text)) as worker:
        until(lambda: topics.orders.cursors == [5])
        with topics.orders.lock:
            topics.orders.cursors[0] = 2
            topics.orders.lease(0, topics.orders.leases[0].member)
        until(lambda: worker.counts.handled == 8)
        until(lambda: topics.orders.cursors == [5])
    assert sorted(handled[5:]) == ["2", "3", "4"]


def test_a_seek_while_it_stops_is_not_undone(server: ScriptedServer, topics: Topics) -> None:
    topics.send(*[("a", str(number)) for number in range(3)])
    begun, go_on = threading.Event(), threading.Event()

    def handle(message: Message) -> None:
        if message.text == "2":
            begun.set()
            assert go_on.wait(10)

    with running(server, handle) as worker:
        until(lambda: topics.orders.cursors == [2])
        assert begun.wait(10)
        worker.stop()
        until(lambda: worker._draining)
        with topics.orders.lock:
            topics.orders.cursors[0] = 0
            topics.orders.lease(0, topics.orders.leases[0].member)
        renewals = len(server.calls("/v1/consumers/5/poll"))
        until(lambda: len(server.calls("/v1/consumers/5/poll")) > renewals + 2, what="it knows of the seek")
        go_on.set()
    assert topics.orders.cursors == [0]


def test_a_worker_that_was_suspended_goes_on(
    server: ScriptedServer, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process was stopped for longer than an application may stay away: it has lost its partitions, no more."""
    monkeypatch.setattr(message_source, "Consumer", partial(Consumer, max_poll_interval_s=0.3))
    suspended, go_on = threading.Event(), threading.Event()
    read = MessageSource.read

    def read_late(source: MessageSource, *limits: Any) -> list[Message]:
        if suspended.is_set():
            assert go_on.wait(10)
        return read(source, *limits)

    monkeypatch.setattr(MessageSource, "read", read_late)
    topics.send(("a", "1"))
    with running(server, lambda _: None) as worker:
        until(lambda: topics.orders.cursors == [1])
        suspended.set()
        until(lambda: topics.orders.leases == {}, what="others may have its partitions")
        topics.orders.left.clear()
        suspended.clear()
        go_on.set()
        topics.send(("a", "2"))
        until(lambda: topics.orders.cursors == [2])
    assert worker.counts.handled == 2


def test_a_cluster_that_is_away_for_long_does_not_end_it(server: ScriptedServer, topics: Topics) -> None:
    topics.send(("a", "1"))
    several, away = server.answer, threading.Event()

    def answer(seen: Seen) -> Step:
        return Reply(503, failure(503, 50301, outcome="not_written")) if away.is_set() else several(seen)

    server.answer = answer
    with running(server, lambda _: None, retry=RetryPolicy(0.2, 0.001, 0.01)) as worker:
        until(lambda: worker.counts.handled == 1)
        away.set()
        let_pass(1.5)
        away.clear()
        topics.send(("a", "2"))
        until(lambda: worker.counts.handled == 2)


@pytest.mark.parametrize(
    ("error", "ends_it"),
    [
        (Unavailable("away"), False),
        (StaleLease("another one has it"), False),
        (StaleCommit("it is further"), False),
        (MaxPollIntervalExceeded("suspended"), False),
        (ConsumerNotFound("deleted"), True),
        (InvalidRequest("no"), True),
    ],
)
def test_what_ends_it(
    server: ScriptedServer, topics: Topics, error: MyQueueError, ends_it: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics.send(("a", "1"))
    real_read, failures = MessageSource.read, [error]

    def read(source: MessageSource, max_messages: int, timeout_s: float) -> list[Message]:
        if failures:
            raise failures.pop()
        return real_read(source, max_messages, timeout_s)

    monkeypatch.setattr(MessageSource, "read", read)
    worker: Worker = Worker(lambda _: worker.stop(), server.url, topic="orders", name="billing", retry=QUICK)
    if ends_it:
        with pytest.raises(type(error)):
            worker.run()
    else:
        worker.run()
        assert worker.counts.handled == 1


def test_a_topic_that_is_missing_ends_it(server: ScriptedServer, topics: Topics) -> None:
    with pytest.raises(TopicNotFound):
        Worker(print, server.url, topic="nothing", name="billing", retry=QUICK).run()
