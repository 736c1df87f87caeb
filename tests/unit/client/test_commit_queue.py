"""Commits that nobody waits for: they coalesce, never move a cursor back, and tell of errors later."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from myqueue import Consumer, ConsumerClosed, InternalError, MyQueueError, RetryPolicy, StaleLease
from myqueue.lease_renewer import LeaseRenewer
from tests.unit.client.memory_cluster import MemoryCluster
from tests.unit.client.scripted_server import Reply, ScriptedServer, Seen, Step, failure
from tests.waiting import let_pass, throughout, until

QUICK = RetryPolicy(deadline_s=2.0, first_pause_s=0.001, longest_pause_s=0.01)
POLL, COMMIT = "/v1/consumers/5/poll", "/v1/consumers/5/commit"


def consumer(server: ScriptedServer, **settings: Any) -> Consumer:
    more: dict[str, Any] = {"retry": QUICK, "commit": "manual"} | settings
    return Consumer(server.url, topic="orders", name="billing", start="earliest", **more)


def slowly(cluster: MemoryCluster) -> Callable[[Seen], Step]:
    """Commits are carried out late."""

    def answer(seen: Seen) -> Step:
        let_pass(0.3 if seen.path == COMMIT else 0.0)
        return cluster(seen)

    return answer


def test_they_coalesce_while_one_is_in_flight(server: ScriptedServer, cluster: MemoryCluster) -> None:
    cluster.put(*(str(number) for number in range(500)))
    answered = threading.Event()

    def answer(seen: Seen) -> Step:
        if seen.path == COMMIT:
            answered.wait(5)
        return cluster(seen)

    server.answer = answer
    with consumer(server) as reader:
        for number in range(500):
            message = reader.poll(5)
            assert message is not None
            assert reader.commit(message, wait=False) == {0: number + 1}
        assert cluster.cursors == [0]
        answered.set()
        until(lambda: cluster.cursors == [500])
        assert len(cluster.commits) <= 3


def test_close_waits_for_them(server: ScriptedServer, cluster: MemoryCluster) -> None:
    cluster.put(*"abc")
    server.answer = slowly(cluster)
    reader = consumer(server)
    for _ in range(3):
        assert reader.poll(5) is not None
        reader.commit(wait=False)
    reader.close()
    assert cluster.cursors == [3]
    assert cluster.leases == {}


@pytest.mark.parametrize("call", ["poll", "commit", "close"])
def test_an_error_is_raised_by_the_next_call(server: ScriptedServer, cluster: MemoryCluster, call: str) -> None:
    cluster.put("a")
    server.answer = lambda seen: Reply(500, failure(500, 50001)) if seen.path == COMMIT else cluster(seen)
    reader = consumer(server)
    assert reader.poll(5) is not None
    reader.commit(wait=False)
    until(lambda: server.calls(COMMIT))
    calls = {
        "poll": lambda: reader.poll(5),
        "commit": lambda: until(lambda: not reader.commit(wait=False)),
        "close": reader.close,
    }
    with pytest.raises(InternalError):
        calls[call]()
    server.answer = cluster
    reader.close()
    assert cluster.leases == {}


def test_they_move_no_cursor_back_and_undo_no_seek(server: ScriptedServer, cluster: MemoryCluster) -> None:
    cluster.put(*"abcdef")
    with consumer(server) as reader:
        messages = [message for message in (reader.poll(5) for _ in range(6)) if message]
        reader.commit(messages[4], wait=False)
        reader.commit(messages[1], wait=False)
        until(lambda: cluster.cursors == [5])
        reader.commit(messages[2], wait=False)
        reader.commit(messages[5])
        assert cluster.cursors == [6]
        reader.commit(messages[5], wait=False)
        reader.seek(0, to=1)
        assert cluster.cursors == [1]
        with pytest.raises(StaleLease):
            reader.commit(messages[5], wait=False)
        message = reader.poll(5)
        assert message is not None
        assert message.offset == 1
        reader.commit(message, wait=False)
        until(lambda: cluster.cursors == [2])


def test_a_seek_is_not_overtaken(server: ScriptedServer, cluster: MemoryCluster) -> None:
    cluster.put(*"abc")
    server.answer = slowly(cluster)
    with consumer(server) as reader:
        assert [reader.poll(5) is not None for _ in range(3)] == [True] * 3
        reader.commit(wait=False)
        reader.seek(0, to=1)
        assert cluster.commits == [{0: 3}]
        assert [message.text for message in (reader.poll(5) for _ in range(2)) if message] == ["b", "c"]
        assert reader.commit() == {0: 3}


def test_a_lost_lease_is_told(server: ScriptedServer, cluster: MemoryCluster) -> None:
    cluster.put(*"abc")
    with consumer(server) as reader:
        assert reader.poll(5) is not None
        with cluster.lock:
            cluster.lease(0, "somebody else")
        reader.commit(wait=False)
        with pytest.raises(StaleLease):
            until(lambda: not reader.poll(5))


def test_a_partition_is_released_after_the_commits_of_it(server: ScriptedServer) -> None:
    server.answer = cluster = MemoryCluster(partitions=2)
    cluster.can_wait = True
    for partition in range(2):
        cluster.put(*(f"{partition}/{number}" for number in range(1000)), partition=partition)

    def slow(seen: Seen) -> Step:
        reply = cluster(seen) if seen.path != COMMIT else None
        if reply is not None:
            return reply
        goes_on.wait(5)
        return cluster(seen)

    goes_on = threading.Event()
    server.answer = slow
    with consumer(server) as reader:
        first = reader.poll(5)
        assert first is not None
        reader.commit(first, wait=False)
        with cluster.lock:
            cluster.leases[first.partition].revoking = True
        until(lambda: (m := reader.poll(5)) and m.partition != first.partition, pause_s=0.01)
        throughout(
            lambda: not any(seen.body.get("released") for seen in server.calls(POLL)), for_s=0.5, what="not released"
        )
        goes_on.set()
        until(lambda: any(seen.body.get("released") for seen in server.calls(POLL)))
        assert cluster.cursors[first.partition] >= 1


def test_what_is_closed_says_so(server: ScriptedServer, cluster: MemoryCluster) -> None:
    cluster.put("a", "b")
    reader = consumer(server)
    assert reader.poll(5) is not None
    reader.close()
    uses = (reader.poll, reader.poll_many, reader.fetch_arrow, reader.commit, reader.size, reader.lag)
    for use in (*uses, lambda: reader.seek(to="latest"), lambda: next(iter(reader))):
        with pytest.raises(ConsumerClosed, match="'billing' of topic 'orders' is closed"):
            use()
    reader.close()


def test_lists_of_messages(server: ScriptedServer, cluster: MemoryCluster) -> None:
    for number in range(10):
        cluster.put(f"{number}-a", f"{number}-b", f"{number}-c")
    with consumer(server, commit="auto") as reader:
        first = reader.poll(5)
        assert first is not None
        found = [first]
        while len(found) < 30:
            many = reader.poll_many(4, 5)
            assert 1 <= len(many) <= 4
            found += many
        assert [message.offset for message in found] == list(range(30))
        assert found[4].text == "1-b"
        assert reader.poll_many(timeout=0.1) == []
        with pytest.raises(ValueError, match="max_messages"):
            reader.poll_many(0)


def test_a_list_in_hand_is_not_committed(server: ScriptedServer, cluster: MemoryCluster) -> None:
    cluster.put(*"abcdef")
    reader = consumer(server, commit="auto")
    assert len(reader.poll_many(4, 5)) == 4
    threading.Thread(target=reader.close).start()
    until(lambda: cluster.leases == {})
    assert cluster.cursors == [0]


def test_a_commit_that_waited_for_another_one_undoes_no_seek(server: ScriptedServer, cluster: MemoryCluster) -> None:
    """A seek of another process, while the commit waits for its turn: the new lease does not cover what was read."""
    cluster.put(*"abcdef")
    held, go_on = threading.Event(), threading.Event()

    def answer(seen: Seen) -> Step:
        if seen.path == COMMIT and not held.is_set():
            held.set()
            assert go_on.wait(5)
        return cluster(seen)

    server.answer = answer
    with consumer(server) as reader, ThreadPoolExecutor(2) as pool:
        messages = [message for message in (reader.poll(5) for _ in range(6)) if message]
        first = pool.submit(reader.commit, messages[1])
        assert held.wait(5)
        second = pool.submit(reader.commit, messages[4])
        (topic,) = reader._core._topics
        renewer = topic._lease_renewer
        until(lambda: renewer.committing._waiters, what="the second one waits")
        with cluster.lock:
            cluster.cursors[0] = 0
            cluster.lease(0, reader.member)
        until(lambda: reader.position() == {0: 0}, what="it knows of the seek")
        go_on.set()
        for commit in (first, second):
            with pytest.raises(StaleLease):
                commit.result(5)
    assert cluster.cursors == [0]


def test_a_defect_does_not_end_the_commits(
    server: ScriptedServer, cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.put(*"ab")
    server.answer = cluster
    commit = LeaseRenewer.commit

    async def broken(*_: Any, **__: Any) -> dict[int, int]:
        raise KeyError("cursors")

    with consumer(server) as reader:
        assert reader.poll(5) is not None
        monkeypatch.setattr(LeaseRenewer, "commit", broken)
        reader.commit(wait=False)
        with pytest.raises(MyQueueError, match="defect"):
            until(lambda: reader.commit(wait=False) is None)
        monkeypatch.setattr(LeaseRenewer, "commit", commit)
        assert reader.poll(5) is not None
        reader.commit(wait=False)
        until(lambda: cluster.cursors == [2])
