"""The consumer: order, at least once, leases that come and go, and a reader that is told what does not work."""

import threading
import time
from typing import Any

import pytest

from myqueue import (
    Consumer,
    ConsumerNotFound,
    InternalError,
    InvalidRequest,
    Message,
    OffsetOutOfRange,
    RetryPolicy,
    StaleLease,
    TopicNotFound,
    Unavailable,
    lease_renewer,
)
from tests.unit.client.memory_cluster import LEASE_MS, MemoryCluster
from tests.unit.client.scripted_server import Reply, Reset, ScriptedServer, Seen, Step, failure
from tests.waiting import let_pass, throughout, until

QUICK = RetryPolicy(deadline_s=2.0, first_pause_s=0.001, longest_pause_s=0.01)
COMMIT_EVERY_S = 0.2
POLL, COMMIT = "/v1/consumers/5/poll", "/v1/consumers/5/commit"


@pytest.fixture(autouse=True)
def quick_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_renewer, "COMMIT_EVERY_S", COMMIT_EVERY_S)


def consumer(server: ScriptedServer, **settings: Any) -> Consumer:
    return Consumer(server.url, topic="orders", name="billing", start="earliest", **({"retry": QUICK} | settings))


def await_renewals(server: ScriptedServer, count: int = 3) -> None:
    before = len(server.calls(POLL))
    until(lambda: len(server.calls(POLL)) >= before + count, what=f"{count} renewals", pause_s=0.01)


def texts(reader: Consumer) -> list[str]:
    return [message.text for message in iter(reader.get_message, None)]


def test_it_registers_itself_and_reads(server: ScriptedServer, cluster: MemoryCluster) -> None:
    cluster.put("a", b"\xff\xfe")
    with consumer(server) as reader:
        assert reader.size() == 2
        first = reader.poll(5)
        assert first == Message("orders", b"a", None, 0, 0, 1_600_000_000_000, (), None)
        assert first.text == "a"
        assert (reader.size(), reader.position()) == (1, {0: 1})
        second = reader.get_message()
        assert second is not None
        assert (second.value, second.offset) == (b"\xff\xfe", 1)
        assert reader.get_message() is None
    assert server.seen[0].body == {"topic": "orders", "name": "billing", "from": "earliest"}
    assert cluster.cursors == [2]
    assert cluster.leases == {}


def test_an_object_that_only_asks_takes_no_leases(server: ScriptedServer, cluster: MemoryCluster) -> None:
    cluster.put("a")
    with consumer(server) as reader:
        assert reader.size() == 1
        assert reader.position() == {}
    assert server.calls(POLL) == []


def test_a_missing_topic_is_told(server: ScriptedServer) -> None:
    server.script(Reply(404, failure(404, 40401, "topic not found")))
    with pytest.raises(TopicNotFound):
        consumer(server)


def test_all_partitions_are_read_in_their_order(server: ScriptedServer) -> None:
    server.answer = cluster = MemoryCluster(partitions=20)  # more than there are threads
    for number in range(100):
        cluster.put(f"{number}-a", f"{number}-b", partition=number % 20, codec=number % 3)
    read: dict[int, list[str]] = {}
    with consumer(server) as reader:
        for _ in range(200):
            message = reader.poll(5)
            assert message is not None
            read.setdefault(message.partition, []).append(message.text)
    assert read == {p: [f"{n}-{x}" for n in range(p, 100, 20) for x in "ab"] for p in range(20)}


def test_poll_waits_no_longer_than_asked(server: ScriptedServer, cluster: MemoryCluster) -> None:
    with consumer(server) as reader:
        started = time.monotonic()
        assert reader.poll(0.35) is None
        assert 0.3 < time.monotonic() - started < 3.0


def test_poll_sees_a_message_that_comes_while_it_waits(server: ScriptedServer, cluster: MemoryCluster) -> None:
    with consumer(server) as reader:
        timer = threading.Timer(0.2, lambda: cluster.put("late"))
        timer.start()
        message = reader.poll(5)
        assert message is not None
        assert message.text == "late"
        timer.join()


def test_lost_answers_skip_and_repeat_nothing(server: ScriptedServer, cluster: MemoryCluster) -> None:
    for number in range(60):
        cluster.put(f"m{number}")
    asked = 0

    def unreliable(seen: Seen) -> Step:
        nonlocal asked
        answer = cluster(seen)
        asked += 1
        return Reset() if asked % 3 == 0 else Reply(502, None) if asked % 5 == 0 else answer

    with consumer(server, fetch_bytes=1) as reader:
        server.answer = unreliable
        read: list[str] = []
        while len(read) < 60:
            message = reader.poll(10)
            assert message is not None
            read.append(message.text)
    assert read == [f"m{number}" for number in range(60)]
    assert cluster.cursors == [60]


def test_another_replica_is_asked_when_the_leader_does_not_answer(
    server: ScriptedServer, cluster: MemoryCluster
) -> None:
    cluster.put("a")
    server.answer = lambda seen: Reset() if seen.path.startswith("/v1/brokers/1/") else cluster(seen)
    with consumer(server) as reader:
        assert reader.poll(5) is not None


def test_what_the_next_call_asks_for_is_handled(server: ScriptedServer, cluster: MemoryCluster) -> None:
    """The cursor follows what was handed out, but for the message in hand."""
    cluster.put(*"abcdef")
    reader = consumer(server)
    assert [reader.poll(5) is not None for _ in range(3)] == [True] * 3
    until(lambda: bool(cluster.commits))
    assert cluster.cursors == [2]
    assert reader.poll(5) is not None
    until(lambda: cluster.cursors == [3])
    reader.close()
    assert cluster.cursors == [4]


def test_an_exception_leaves_the_message_in_hand_uncommitted(server: ScriptedServer, cluster: MemoryCluster) -> None:
    cluster.put(*"abc")

    def work() -> None:
        with consumer(server) as reader:
            for message in reader:
                if message.text == "b":
                    raise KeyError("mine")

    with pytest.raises(KeyError):
        work()
    assert cluster.cursors == [1]


def test_a_dead_process_leaves_its_messages_to_the_next(server: ScriptedServer, cluster: MemoryCluster) -> None:
    cluster.put(*"abc")
    dead = consumer(server, commit="manual")
    assert [dead.poll(5) is not None for _ in range(2)] == [True, True]
    dead.close()
    with consumer(server) as reader:
        assert texts(reader) == ["a", "b", "c"]


def test_manual_commits(server: ScriptedServer) -> None:
    server.answer = cluster = MemoryCluster(partitions=2)
    cluster.put(*"abcd", partition=0)
    cluster.put(*"xyz", partition=1)
    with consumer(server, commit="manual") as reader:
        read = [message for message in (reader.poll(5) for _ in range(7)) if message]
        assert reader.commit(read[0]) == {read[0].partition: 1}
        assert reader.commit({1: 2}) == {1: 2}
        assert reader.commit([m for m in read if m.partition == 0][:3]) == {0: 3}
        assert cluster.cursors == [3, 2]
        assert reader.commit() == {0: 4, 1: 3}
        cluster.lease(0, reader.member, new_manager=True)  # it is found out
        assert reader.commit({0: 4}) == {0: 4}
        cluster.lease(0, "somebody else")
        with pytest.raises(StaleLease):
            reader.commit({0: 4})


def test_a_revoked_partition_is_finished_committed_and_given_back(server: ScriptedServer) -> None:
    server.answer = cluster = MemoryCluster(partitions=2)
    for partition in range(2):
        cluster.put(*(f"{partition}{number}" for number in range(50)), partition=partition)
    with consumer(server) as reader:
        first = reader.poll(5)
        assert first is not None
        with cluster.lock:
            cluster.leases[first.partition].revoking = True
        await_renewals(server)
        assert first.partition in cluster.leases  # its message is still in hand
        rest = [message for message in (reader.poll(0.5) for _ in range(50)) if message]
        assert [message.partition for message in rest] == [1 - first.partition] * 50
        until(lambda: cluster.leases.get(first.partition) is None or cluster.generation > 2)
        assert cluster.cursors[first.partition] == 1
        again = reader.poll(5)  # nobody else wanted it, so it came back
        assert again is not None
        assert (again.partition, again.offset) == (first.partition, 1)


def test_leases_that_are_not_renewed_are_not_used(server: ScriptedServer, cluster: MemoryCluster) -> None:
    cluster.put(*(str(number) for number in range(10)))
    with consumer(server, retry=RetryPolicy(deadline_s=30)) as reader:
        assert reader.poll(5) is not None
        server.answer = lambda seen: Reset() if seen.path == POLL else cluster(seen)
        let_pass(2 * LEASE_MS / 1000)
        late = reader.poll(0.1)
        assert late is None
        server.answer = cluster
        assert [message.text for message in (reader.poll(5) for _ in range(9)) if message] == list("123456789")


def test_a_new_lease_goes_on_where_the_old_one_was(server: ScriptedServer, cluster: MemoryCluster) -> None:
    """A new write manager gives new generations. What is handed out is not handed out again."""
    cluster.put(*"abcd")
    with consumer(server) as reader:
        assert [reader.poll(5) is not None for _ in range(2)] == [True, True]
        until(lambda: cluster.cursors == [1])
        with cluster.lock:
            cluster.lease(0, reader.member, new_manager=True)
        await_renewals(server)
        assert texts(reader) == ["c", "d"]
    assert cluster.cursors == [4]


def test_a_new_write_manager_that_knows_no_leases_yet_costs_nothing(
    server: ScriptedServer, cluster: MemoryCluster
) -> None:
    cluster.put(*"abcd")
    with consumer(server) as reader:
        assert [reader.poll(5) is not None for _ in range(2)] == [True, True]
        until(lambda: cluster.cursors == [1])
        nothing = {"leases": [], "lease_ms": 600, "messages": []}
        server.answer = lambda seen: Reply(200, nothing) if seen.path == POLL else cluster(seen)
        await_renewals(server)
        assert reader.poll(0.1) is None  # whose the partition is, nobody knows
        with cluster.lock:
            cluster.lease(0, reader.member, new_manager=True)
        server.answer = cluster
        assert [message.text for message in (reader.poll(5) for _ in range(2)) if message] == ["c", "d"]
    assert cluster.cursors == [4]


def test_a_seek_elsewhere_is_not_undone(server: ScriptedServer, cluster: MemoryCluster) -> None:
    cluster.put(*"abcdef")
    with consumer(server) as reader:
        messages = [reader.poll(5) for _ in range(4)]
        until(lambda: cluster.cursors == [3])
        with consumer(server) as other:
            other.seek(to="earliest")
        until(lambda: reader.position() == {0: 0})
        throughout(lambda: cluster.cursors == [0], for_s=2 * COMMIT_EVERY_S, what="no commit of the old position")
        assert messages[3] is not None
        with pytest.raises(StaleLease):
            reader.commit(messages[3])
        assert texts(reader) == list("abcdef")


def test_nothing_is_said_to_be_there_when_others_have_it(server: ScriptedServer, cluster: MemoryCluster) -> None:
    cluster.put("a")
    cluster.lease(0, "somebody else")
    with consumer(server) as reader:
        assert reader.get_message() is None
        assert cluster.leases[0].member == "somebody else"


def test_a_seek_elsewhere_is_followed(server: ScriptedServer, cluster: MemoryCluster) -> None:
    cluster.put(*"abcd")
    with consumer(server) as reader, consumer(server) as other:
        assert texts(reader) == list("abcd")
        until(lambda: cluster.cursors == [4])
        other.seek(to="earliest")
        assert [message.text for message in (reader.poll(5) for _ in range(4)) if message] == list("abcd")


def test_seek(server: ScriptedServer) -> None:
    server.answer = cluster = MemoryCluster(partitions=2)
    cluster.put(*"abcd", partition=0)
    with consumer(server) as reader:
        assert texts(reader) == list("abcd")
        assert reader.seek(0, to=2) == {0: 2}
        assert texts(reader) == ["c", "d"]
        assert reader.seek(to="earliest") == {0: 0, 1: 0}
        first = reader.get_message()
        assert first is not None
        assert first.text == "a"
        assert reader.seek(to="latest") == {0: 4, 1: 0}
        assert reader.get_message() is None
        with pytest.raises(InvalidRequest):
            reader.seek(to=3)


def test_retention_that_passed_by_is_skipped_and_counted(server: ScriptedServer, cluster: MemoryCluster) -> None:
    cluster.logs[0].beginning = 7
    cluster.put("h", "i")
    with consumer(server) as reader:
        assert texts(reader) == ["h", "i"]
        assert reader.skipped == 7
    assert cluster.cursors == [9]


def test_retention_that_passed_by_can_be_an_error(server: ScriptedServer, cluster: MemoryCluster) -> None:
    cluster.logs[0].beginning = 7
    cluster.put("h")
    with consumer(server, on_gap="error") as reader:
        with pytest.raises(OffsetOutOfRange) as caught:
            reader.poll(5)
        assert caught.value.details == {"beginning_offset": 7}
        assert texts(reader) == ["h"]


def test_tables_and_messages_are_the_same(server: ScriptedServer) -> None:
    server.answer = cluster = MemoryCluster(partitions=2)
    for number in range(40):
        cluster.put(f"{number}-a", f"{number}-b", partition=number % 2, codec=number % 3)
    with consumer(server) as reader:
        first = reader.poll(5)
        assert first is not None
        rows: list[dict[str, Any]] = []
        while len(rows) < 79:
            table = reader.fetch_arrow(max_messages=7, timeout=5)
            assert 0 < table.num_rows <= 7
            rows += table.to_pylist()
        assert reader.fetch_arrow(timeout=0).num_rows == 0
        reader.seek(to="earliest")
        messages = {(m.partition, m.offset): m for m in (reader.poll(5) for _ in range(80)) if m}
    assert len(messages) == 80
    del messages[first.partition, first.offset]
    got = [(row["partition"], row["offset"]) for row in rows]
    assert sorted(got) == sorted(messages)
    for partition in range(2):
        offsets = [offset for where, offset in got if where == partition]
        assert offsets == sorted(offsets)
    for row in rows:
        message = messages[row["partition"], row["offset"]]
        assert (row["value"], row["key"], row["timestamp"], row["headers"]) == (
            message.value,
            message.key,
            message.timestamp,
            None,
        )


def test_closing_from_another_thread_ends_an_iteration(server: ScriptedServer, cluster: MemoryCluster) -> None:
    cluster.put("a", "b")
    reader = consumer(server)
    read: list[str] = []
    thread = threading.Thread(target=lambda: read.extend(message.text for message in reader))
    thread.start()
    until(lambda: len(read) == 2)
    reader.close()
    thread.join(10)
    assert not thread.is_alive()
    assert read == ["a", "b"]
    assert reader.poll(0) is None
    assert cluster.cursors == [2]  # it had asked for more
    reader.close()  # twice is fine


def test_the_reader_is_told_when_the_cluster_does_not_answer_for_long(
    server: ScriptedServer, cluster: MemoryCluster
) -> None:
    with consumer(server, retry=RetryPolicy(deadline_s=0.5, longest_pause_s=0.05)) as reader:
        assert reader.get_message() is None
        server.answer = lambda _: Reply(503, failure(503, 50304))
        with pytest.raises(Unavailable):
            reader.poll(10)
        with pytest.raises(Unavailable):
            reader.poll(0)
        server.answer = cluster
        cluster.put("a")

        def read() -> bool:
            try:
                return reader.poll(5) is not None
            except Unavailable:
                return False  # of the fetch before

        until(read, what="it reads on")


@pytest.mark.parametrize("gone", ["consumer", "topic"])
def test_what_is_deleted_is_told(server: ScriptedServer, cluster: MemoryCluster, gone: str) -> None:
    with consumer(server) as reader:
        assert reader.get_message() is None
        missing = Reply(404, failure(404, 40403 if gone == "consumer" else 40401))
        server.answer = lambda seen: missing if gone == "topic" or seen.path == POLL else cluster(seen)
        with pytest.raises(ConsumerNotFound if gone == "consumer" else TopicNotFound):
            reader.poll(10)


def test_commits_that_fail_for_long_are_told(server: ScriptedServer, cluster: MemoryCluster) -> None:
    cluster.put("a")
    reader = consumer(server, retry=RetryPolicy(deadline_s=0.6, longest_pause_s=0.05))
    assert texts(reader) == ["a"]
    server.answer = lambda seen: Reply(500, failure(500, 50001)) if seen.path == COMMIT else cluster(seen)
    with pytest.raises(InternalError):
        reader.poll(10)
    server.answer = cluster
    reader.close()
    assert cluster.cursors == [1]


def test_bad_arguments_are_refused_at_once(server: ScriptedServer, cluster: MemoryCluster) -> None:
    for wrong in ({"commit": "later"}, {"on_gap": "fill"}, {"fetch_bytes": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            consumer(server, **wrong)
    with consumer(server) as reader, pytest.raises(ValueError, match="max_messages"):
        reader.fetch_arrow(0)
