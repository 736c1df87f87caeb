"""The overview and its alerts, from what was collected."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from db.servers import DatabaseServer
from db.timelines import CurrentTimeline
from myqueue.protocol.answers import ClusterWriteManager
from myqueue.protocol.overview import ClusterState, Overview
from read_manager.broker_counters import BrokerCounters, parse_counters
from read_manager.overview import Collected, KnownWriteManager, OverviewAssembler

GB = 1_000_000_000
AT_MS = 1_700_000_000_000
EXPOSITION = """# HELP myqueue_broker_messages_total Messages appended
# TYPE myqueue_broker_messages_total counter
myqueue_broker_messages_total 120.0
# TYPE myqueue_broker_messages_created gauge
myqueue_broker_messages_created 1.7e+09
myqueue_broker_fetched_messages_total 7.0
myqueue_broker_bytes_total 1.5e+06
myqueue_broker_fetched_bytes_total 9.0
myqueue_http_requests_total{route="x",method="GET",status="200"} 3.0
myqueue_broker_disk_free_bytes 6.1e+10
"""


def manager(state: str, problem: str | None = None) -> ClusterWriteManager:
    return ClusterWriteManager.model_validate({"name": "w", "state": state, "epoch": 1, "problem": problem})


def databases() -> list[DatabaseServer]:
    current = CurrentTimeline()
    servers = [DatabaseServer(f"localhost:{place}", 5, current) for place in (1, 2, 3)]
    servers[0].learn(True, 1, 1000, None, 2)
    for standby in servers[1:]:
        standby.learn(False, 1, 1000, 1, None)
    return servers


def state() -> ClusterState:
    return {
        "status": "success",
        "brokers": [
            {
                "broker_id": broker_id,
                "endpoint": f"http://broker-{broker_id}:5200",
                "active": True,
                "heartbeat_age_s": 0.4,
                "leaders": 1,
                "replicas": 3,
                "stored_bytes": 10,
            }
            for broker_id in (1, 2, 3)
        ],
        "read_managers": [{"name": "read-1", "endpoint": "http://r:1", "active": True, "heartbeat_age_s": 0.3}],
        "load_balancer_age_s": 0.2,
        "topics": [
            {"topic": "orders", "partitions": 3, "messages": 9, "stored_bytes": 10, "messages_in_per_s": 1.23456}
        ],
        "topic_count": 1,
        "partition_count": 3,
        "leaderless": [],
        "leaderless_count": 0,
        "under_replicated": [],
        "under_replicated_count": 0,
        "damaged_count": 0,
        "consumers": [],
        "jobs": [],
    }


def collected(**more: Any) -> Collected:
    well = Collected(
        at_ms=AT_MS,
        now_s=100.0,
        state=state(),
        state_s=100.0,
        write_managers=[
            KnownWriteManager("write-1", "w:1", manager("active")),
            KnownWriteManager("write-2", "w:2", manager("standby")),
        ],
        databases=databases(),
        timeline=1,
        counters={broker_id: BrokerCounters({"messages_in": 100}, 100 * GB) for broker_id in (1, 2, 3)},
        refused=frozenset(),
    )
    return replace(well, **more)


def assembled(**more: Any) -> Overview:
    return OverviewAssembler().assemble(collected(**more))


def with_state(change: Callable[[Any], None]) -> dict[str, Any]:
    changed = state()
    change(changed)
    return {"state": changed}


def codes(overview: Overview) -> list[tuple[str, str]]:
    return [(alert.severity, alert.code) for alert in overview.alerts]


def test_a_well_cluster_has_no_alerts() -> None:
    overview = assembled()
    assert overview.alerts == []
    assert all(process.healthy for process in overview.processes)
    assert {process.role for process in overview.processes} == {
        "load_balancer",
        "read_manager",
        "write_manager",
        "broker",
        "postgres",
    }
    assert [(each.name, each.role, each.replay_lag_bytes) for each in overview.postgres] == [
        ("postgres-1", "primary", None),
        ("postgres-2", "standby", 0),
        ("postgres-3", "standby", 0),
    ]
    assert overview.topics[0].messages_in_per_s == 1.23
    assert overview.rates.messages_in_per_s is None


def test_rates_are_of_two_samples_and_without_a_broker_that_is_away() -> None:
    assembler = OverviewAssembler()
    assembler.assemble(collected())
    later = {1: BrokerCounters({"messages_in": 130}, GB), 2: BrokerCounters({"messages_in": 110}, GB)}
    overview = assembler.assemble(collected(now_s=102.0, state_s=102.0, counters=later))
    assert overview.rates.messages_in_per_s == 20
    assert overview.rates.messages_out_per_s is None
    assert [broker.messages_in_per_s for broker in overview.brokers] == [15, 5, None]
    assert overview.brokers[2].disk_free_bytes is None


def set_broker(place: int, **more: object) -> Callable[[Any], None]:
    return lambda changed: changed["brokers"][place].update(more)


def set_state(**more: object) -> Callable[[Any], None]:
    return lambda changed: changed.update(more)


def behind(messages: int, growth: float | None, members: int = 1) -> dict[str, object]:
    return {
        "consumer_id": 1,
        "topic": "orders",
        "name": "billing",
        "messages": messages,
        "members": members,
        "growth_per_s": growth,
    }


PARTITION = {"topic": "orders", "partition_id": 0, "missing": [2]}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (with_state(set_broker(1, active=False, heartbeat_age_s=12.2)), [("critical", "broker_down")]),
        ({"refused": frozenset({2})}, [("critical", "broker_down")]),
        (
            with_state(set_state(leaderless=[PARTITION], leaderless_count=1)),
            [("critical", "partition_leaderless")],
        ),
        (
            with_state(set_state(under_replicated=[PARTITION], under_replicated_count=1)),
            [("warning", "under_replicated")],
        ),
        (with_state(set_state(damaged_count=2)), [("warning", "damaged_replicas")]),
        (with_state(set_state(load_balancer_age_s=None)), [("warning", "load_balancer_down")]),
        (with_state(set_state(load_balancer_age_s=6)), [("warning", "load_balancer_down")]),
        (
            with_state(lambda changed: changed["read_managers"][0].update(active=False)),
            [("warning", "process_down")],
        ),
        (with_state(set_state(consumers=None)), [("info", "consumers_not_measured")]),
        (with_state(set_state(consumers=[behind(1000, 5)])), []),
        (with_state(set_state(consumers=[behind(1001, 5)])), [("warning", "consumer_behind")]),
        (with_state(set_state(consumers=[behind(1001, None)])), [("warning", "consumer_behind")]),
        (with_state(set_state(consumers=[behind(1_000_000, -0.1)])), []),
        (
            with_state(set_state(jobs=[{"job": "size", "failed": True, "succeeded_ms": AT_MS}])),
            [("warning", "job_failing")],
        ),
        (
            with_state(set_state(jobs=[{"job": "size", "failed": False, "succeeded_ms": AT_MS - 901_000}])),
            [("warning", "job_stale")],
        ),
        (with_state(set_state(jobs=[{"job": "size", "failed": False, "succeeded_ms": AT_MS - 899_000}])), []),
        ({"counters": {1: BrokerCounters({}, 4 * GB)}}, [("critical", "disk_low")]),
        (
            {"write_managers": [KnownWriteManager("a", "a", manager("inactive"))]},
            [("critical", "no_write_manager")],
        ),
        (
            {"write_managers": [KnownWriteManager("a", "a", manager("standby"))]},
            [("critical", "no_write_manager")],
        ),
        ({"write_managers": [KnownWriteManager("a", "a", manager("active"))]}, []),
        ({"write_managers": [KnownWriteManager("a", "a", manager("active", "PostgreSQL does not answer"))]}, []),
        (
            {
                "write_managers": [
                    KnownWriteManager("a", "a", manager("active")),
                    KnownWriteManager("b", "b", manager("inactive")),
                ]
            },
            [("warning", "no_standby_write_manager")],
        ),
        (
            {
                "write_managers": [
                    KnownWriteManager("a", "a", manager("active")),
                    KnownWriteManager("b", "b", manager("active")),
                ]
            },
            [("warning", "no_standby_write_manager")],
        ),
    ],
)
def test_alerts(change: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    overview = assembled(**change)
    assert codes(overview) == expected
    assert all(alert.text and alert.action for alert in overview.alerts)


def test_postgres_alerts() -> None:
    servers = databases()
    servers[0].learn(True, 1, 70_000_000 + 1000, None, 2)
    servers[1].hung()
    assert codes(assembled(databases=servers)) == [("warning", "postgres_down"), ("warning", "postgres_behind")]
    for server in servers:
        server.hung()
    assert codes(assembled(databases=servers))[0] == ("critical", "postgres_no_primary")
    assert [each.healthy for each in assembled(databases=servers).postgres] == [False] * 3


def test_brokers_that_answer_are_well_while_no_write_manager_is_active() -> None:
    stale = with_state(set_state(leaderless_count=5))
    gone = [KnownWriteManager("write-1", "w:1", manager("inactive"))]
    overview = assembled(**stale, state_s=90.0, write_managers=gone, counters={1: BrokerCounters({}, GB * 9)})
    assert [broker.healthy for broker in overview.brokers] == [True, False, False]
    assert overview.state_age_s == 10
    assert ("critical", "no_write_manager") in codes(overview)
    assert ("critical", "partition_leaderless") not in codes(overview)  # that was ten seconds ago
    assert "nginx" not in {process.name for process in overview.processes}


def test_before_the_first_answer_figures_are_unknown_not_zero() -> None:
    overview = assembled(state=None, counters={})
    assert overview.topic_count is overview.partition_count is overview.leaderless_count is None
    assert overview.consumers is None
    assert overview.state_age_s is None
    assert (overview.brokers, overview.topics) == ([], [])


def test_the_worst_alert_is_first() -> None:
    everything = with_state(set_state(consumers=None, damaged_count=1, leaderless_count=1))
    severities = [severity for severity, _ in codes(assembled(**everything))]
    assert severities == ["critical", "warning", "info"]


def test_counters_are_read_from_a_broker_s_metrics() -> None:
    assert parse_counters(EXPOSITION) == BrokerCounters(
        {"messages_in": 120, "messages_out": 7, "bytes_in": 1_500_000, "bytes_out": 9}, 61 * GB
    )
    assert parse_counters("") == BrokerCounters({}, None)


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "broker_id": st.integers(1, 5),
                "active": st.booleans(),
                "heartbeat_age_s": st.floats(0, 1e6),
                "endpoint": st.just("http://b:1"),
                "leaders": st.integers(0, 9),
                "replicas": st.integers(0, 9),
                "stored_bytes": st.integers(0, 2**60),
            }
        ),
        unique_by=lambda broker: broker["broker_id"],
    ),
    st.frozensets(st.integers(1, 5)),
    st.floats(0, 20),
)
def test_every_broker_that_is_not_well_has_exactly_one_alert(
    brokers: list[dict[str, Any]], refused: frozenset[int], age_s: float
) -> None:
    overview = assembled(**with_state(set_state(brokers=brokers)), refused=refused, state_s=100.0 - age_s)
    alerts = [alert for alert in overview.alerts if alert.code == "broker_down"]
    assert len(alerts) == sum(not broker.healthy for broker in overview.brokers)
    assert Overview.model_validate_json(overview.model_dump_json()) == overview
