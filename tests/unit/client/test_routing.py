"""The routing: refreshed in time and when it is wrong, by one caller at a time, and used as long as it is good."""

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from myqueue import MetadataUnavailable, NoLeader, NotConnected, RetryPolicy, TopicNotFound, Unavailable, routing
from myqueue.routing import SWITCH_S, ReplicaSelector, RoutingCache
from myqueue.transport import Transport
from tests.unit.client.memory_cluster import MemoryCluster
from tests.unit.client.scripted_server import Reply, Reset, ScriptedServer, failure

PATH = "/v1/routing/orders"


@pytest.fixture
def cluster(server: ScriptedServer) -> MemoryCluster:
    server.answer = cluster = MemoryCluster(partitions=2)
    return cluster


def new_routing(server: ScriptedServer) -> RoutingCache:
    return RoutingCache(Transport(server.url, retry=RetryPolicy(first_pause_s=0.01, longest_pause_s=0.05)), "orders")


def age(known: RoutingCache, **times: float) -> None:
    known._table = replace(known._table, **times)  # type: ignore[arg-type]


def test_it_is_fetched_once_and_hints_are_followed(server: ScriptedServer, cluster: MemoryCluster) -> None:
    known = new_routing(server)
    table = known.table()
    assert (table.topic_id, table.leaders, table.replicas[0]) == (UUID(int=5), (1, 1), (1, 2, 3))
    assert table.path(2, 1) == f"/v1/brokers/2/topics/{UUID(int=5)}/partitions/1/batches"
    assert 20 < table.expires_at - table.renew_at < 40
    known.set_leader(1, 3)
    assert known.table().leaders == (1, 3)
    assert len(server.calls(PATH)) == 1


def test_it_is_renewed_at_half_life_and_used_until_the_end(
    server: ScriptedServer, cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routing, "CALL_S", 0.1)
    known = new_routing(server)
    age(known, renew_at=0.0)
    cluster.leaders = [2, 2]
    assert known.table().leaders == (2, 2)
    age(known, renew_at=0.0)
    server.answer = lambda _: Reply(503, failure(503, 50304))
    assert known.table().leaders == (2, 2)
    age(known, renew_at=0.0, expires_at=0.0)
    with pytest.raises(Unavailable):
        known.table()


def test_a_wrong_table_is_renewed_once(server: ScriptedServer, cluster: MemoryCluster) -> None:
    known = new_routing(server)
    wrong = known.table()
    refreshed = known.refreshed(wrong)
    assert known.refreshed(wrong) is refreshed
    assert len(server.calls(PATH)) == 2


def test_a_topic_made_again_is_another_one(server: ScriptedServer, cluster: MemoryCluster) -> None:
    known = new_routing(server)
    cluster.topic_id = UUID(int=99)
    with pytest.raises(TopicNotFound, match="made again"):
        known.refreshed(known.table())


def test_clocks_that_disagree_do_no_harm() -> None:
    body: dict[str, Any] = {"topic_id": str(UUID(int=1)), "partitions": [], "grant": "g", "expires_at": 5}
    table = routing._table(body, "orders", now=100.0, clock_s=1_700_000_000.0)
    assert (table.renew_at, table.expires_at) == (130.0, 160.0)


def test_the_selector_switches_replicas_for_a_while(server: ScriptedServer, cluster: MemoryCluster) -> None:
    table, selector = new_routing(server).table(), ReplicaSelector()
    assert selector.choose(table, 0, 0.0) == 1
    selector.failed(table, 0, 0.0)
    assert selector.choose(table, 0, 1.0) == 2
    selector.failed(table, 0, 1.0)
    selector.failed(table, 0, 1.0)
    assert selector.choose(table, 0, 2.0) == 1
    selector.failed(table, 0, 2.0)
    assert selector.choose(replace(table, leaders=(3, 1)), 0, 3.0) == 3  # a new leader
    selector.failed(table, 0, 3.0)
    assert selector.choose(table, 0, 4.0 + SWITCH_S) == 1
    assert ReplicaSelector().choose(replace(table, leaders=(None, 1)), 0, 0.0) == 1


def test_a_failure_is_another_error_for_each_that_waited(
    server: ScriptedServer, cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer notes the outcome of its batch in the error."""
    monkeypatch.setattr(routing, "CALL_S", 0.1)
    known = new_routing(server)
    wrong = known.table()
    server.answer = lambda _: Reply(503, failure(503, 50303))
    with pytest.raises(MetadataUnavailable) as first:
        known.refreshed(wrong)
    first.value.outcome = "unknown"
    calls = len(server.calls(PATH))
    with pytest.raises(MetadataUnavailable) as second:
        known.refreshed(wrong)
    assert len(server.calls(PATH)) == calls
    assert second.value is not first.value
    assert first.value.outcome == "unknown"


def test_a_partition_without_a_leader_is_named(server: ScriptedServer, cluster: MemoryCluster) -> None:
    table = replace(new_routing(server).table(), leaders=(1, None), replicas=((1,), ()))
    with pytest.raises(NoLeader, match="partition 1 of topic 'orders' has no leader right now") as caught:
        table.leader(1)
    assert caught.value.outcome == "not_written"
    with pytest.raises(NoLeader, match="partition 1 of topic 'orders'"):
        ReplicaSelector().choose(table, 1, 0.0)


def test_a_refused_connection_is_the_same_error_for_each_that_waited(
    server: ScriptedServer, cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routing, "CALL_S", 0.5)
    known = new_routing(server)
    wrong = known.table()
    server.answer = lambda _: Reset()  # on the connection that is open still
    server.close()
    for _ in range(2):
        with pytest.raises(NotConnected) as caught:
            known.refreshed(wrong)
        assert caught.value.reason == "refused"
