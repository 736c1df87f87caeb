"""Renewals that wait at the server: a rebalance is learned at once, and nothing else waits for them."""

import time
from typing import Any

import pytest

from myqueue import Consumer, RetryPolicy, StaleLease, Timeouts
from tests.unit.client.memory_cluster import MemoryCluster
from tests.unit.client.scripted_server import Reply, Reset, ScriptedServer, Seen, Step, failure
from tests.waiting import let_pass, throughout, until

QUICK = RetryPolicy(deadline_s=2.0, first_pause_s=0.001, longest_pause_s=0.01)
POLL = "/v1/consumers/5/poll"
LONG_LEASE_S = 60.0  # renewals at an interval would take a third of this


@pytest.fixture
def cluster(server: ScriptedServer) -> MemoryCluster:
    server.answer = cluster = MemoryCluster(partitions=2)
    cluster.can_wait = True
    cluster.lease_ms = round(1000 * LONG_LEASE_S)
    for partition in range(2):
        cluster.put(*(f"{partition}/{number}" for number in range(1000)), partition=partition)
    return cluster


def consumer(server: ScriptedServer, **settings: Any) -> Consumer:
    more: dict[str, Any] = {"retry": QUICK, "commit": "manual"} | settings
    return Consumer(server.url, topic="orders", name="billing", start="earliest", **more)


def await_wait(server: ScriptedServer, count: int = 1) -> None:
    until(lambda: len(waits(server)) >= count, what="a renewal that waits", pause_s=0.005)


def waits(server: ScriptedServer) -> list[Seen]:
    return [seen for seen in server.calls(POLL) if "wait_ms" in seen.body]


@pytest.mark.parametrize("commit", ["auto", "manual"])
def test_a_revoked_partition_is_given_back_at_once(server: ScriptedServer, cluster: MemoryCluster, commit: str) -> None:
    with consumer(server, commit=commit) as reader:
        first = reader.poll(5)
        assert first is not None
        await_wait(server)
        with cluster.lock:
            cluster.leases[first.partition].revoking = True
        # It is cut short while the application reads on, and the other partition's messages come.
        another = until(lambda: (m := reader.poll(5)) and m.partition != first.partition, within_s=3, pause_s=0.01)
        assert another
        released = until(lambda: [seen for seen in server.calls(POLL) if seen.body.get("released")], within_s=3)
        assert released[0].body["released"] == [first.partition]
        if commit == "auto":
            assert cluster.commits[-1][first.partition] > 0, "first committed, then released"


def test_a_granted_partition_is_read_at_once(server: ScriptedServer, cluster: MemoryCluster) -> None:
    for partition in range(2):
        cluster.lease(partition, "somebody else")
    with consumer(server) as reader:
        assert reader.poll(0.3) is None
        await_wait(server)
        with cluster.lock:
            cluster.lease(1, reader.member)
        started = time.monotonic()
        message = reader.poll(5)
        assert message is not None
        assert message.partition == 1
        assert time.monotonic() - started < LONG_LEASE_S / 10


def test_a_wait_may_be_longer_than_the_time_for_other_answers(server: ScriptedServer, cluster: MemoryCluster) -> None:
    for partition in range(2):
        cluster.lease(partition, "somebody else")
    with consumer(server, timeouts=Timeouts(read_s=0.5)) as reader:
        assert reader.poll(1.5) is None
        with cluster.lock:
            cluster.lease(1, reader.member)
        message = reader.poll(5)
        assert message is not None
        assert message.partition == 1
        assert len(waits(server)) < 5


def test_closing_does_not_wait_for_the_renewal_that_waits(server: ScriptedServer, cluster: MemoryCluster) -> None:
    reader = consumer(server)
    assert reader.poll(5) is not None
    await_wait(server)
    started = time.monotonic()
    reader.close()
    assert time.monotonic() - started < LONG_LEASE_S / 10
    assert cluster.leases == {}


def test_a_refused_commit_does_not_wait_for_it_either(server: ScriptedServer, cluster: MemoryCluster) -> None:
    with consumer(server) as reader:
        message = reader.poll(5)
        assert message is not None
        await_wait(server)
        with cluster.lock:
            cluster.lease(message.partition, "somebody else")
        started = time.monotonic()
        with pytest.raises(StaleLease):
            reader.commit(message)
        assert time.monotonic() - started < LONG_LEASE_S / 10


@pytest.mark.parametrize("how", ["reset", "refused", "older"])
def test_waits_that_fail_leave_renewals_at_an_interval(server: ScriptedServer, how: str) -> None:
    """A manager that is older refuses what it does not know; while a newer one answers the next renewal."""
    cluster = MemoryCluster(partitions=2)
    cluster.can_wait = True
    cluster.put(*(str(number) for number in range(20)))

    def failing(seen: Seen) -> Step:
        if seen.path != POLL or "wait_ms" not in seen.body:
            return cluster(seen)
        if how == "reset":
            return Reset()
        return Reply(400, failure(400, 40001)) if how == "older" else Reply(503, failure(503, 50304, retriable=True))

    server.answer = failing
    with consumer(server) as reader:
        assert reader.poll(5) is not None
        await_wait(server, 3)
        count, started = len(server.calls(POLL)), time.monotonic()
        throughout(lambda: len(reader.position()) == 2, for_s=3 * cluster.lease_ms / 1000, what="the leases are kept")
        calls_per_s = (len(server.calls(POLL)) - count) / (time.monotonic() - started)
        assert calls_per_s < 50, "not as fast as it can"
        assert reader.poll(5) is not None


@pytest.mark.parametrize("commit", ["auto", "manual"])
def test_a_member_reads_on_while_nothing_can_decide_about_leases(server: ScriptedServer, commit: str) -> None:
    """PostgreSQL or the write manager is away: renewals and commits get 503, brokers answer."""
    cluster = MemoryCluster()
    cluster.can_wait = True
    cluster.lease_ms = 600
    cluster.put(*(str(number) for number in range(10)))
    away = False

    def answer(seen: Seen) -> Step:
        if away and not seen.path.startswith(("/v1/brokers", "/v1/routing")):
            return Reply(503, failure(503, 50303, retriable=True, outcome="not_written"))
        return cluster(seen)

    server.answer = answer
    patient = RetryPolicy(deadline_s=30.0, first_pause_s=0.001, longest_pause_s=0.05)
    with consumer(server, commit=commit, retry=patient) as reader:
        read = [next_value(reader) for _ in range(10)]
        away = True
        for number in range(10, 40):  # over several leases
            cluster.put(str(number))
            read.append(next_value(reader))
            let_pass(0.1)
        away = False
        if commit == "manual":
            reader.commit()
        else:
            assert reader.poll(0.01) is None
            until(lambda: cluster.cursors[0] == 40, what="the commit that was refused is repeated")
        cluster.put("40")
        read.append(next_value(reader))
        assert read == [str(number) for number in range(41)], "each once and in order"


def test_a_member_that_was_away_itself_does_not_read_on(server: ScriptedServer) -> None:
    """No answer is not the same as one that says that nothing can decide: others may be able to reach the cluster."""
    cluster = MemoryCluster()
    cluster.lease_ms = 400
    cluster.put("0")
    away = False

    def answer(seen: Seen) -> Step:
        return Reset() if away and seen.path == POLL else cluster(seen)

    server.answer = answer
    with consumer(server, retry=RetryPolicy(deadline_s=30.0, first_pause_s=0.001, longest_pause_s=0.05)) as reader:
        assert next_value(reader) == "0"
        away = True
        let_pass(1.0)
        cluster.put("1")
        assert reader.poll(0.3) is None
        away = False
        assert next_value(reader) == "1"


def next_value(reader: Consumer) -> str:
    message = reader.poll(5)
    assert message is not None
    return bytes(message.value).decode() if isinstance(message.value, bytes) else str(message.value)
