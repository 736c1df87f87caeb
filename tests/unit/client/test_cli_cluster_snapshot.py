"""What `myqueue cluster` makes of one look at the cluster, and of two."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from myqueue.cli import cluster_snapshot
from myqueue.cli.cluster_snapshot import ClusterSnapshot, TopicSnapshot
from myqueue.cli.output import cell_text
from myqueue.descriptions import (
    BrokerInfo,
    ClusterInfo,
    DatabaseInfo,
    ManagerInfo,
    PartitionInfo,
    Readiness,
    WriterInfo,
)

CLUSTER = ClusterInfo(
    brokers=(BrokerInfo(1, "active", 2, 2, 9_000), BrokerInfo(2, "inactive", 0, 2, 2_000)),
    read_managers=(ManagerInfo("read-manager-1", "active", 9_500),),
    write_manager=WriterInfo("write-manager-1", 1),
    databases=(DatabaseInfo("primary", "active"), DatabaseInfo(None, "inactive")),
    topics=1,
    partitions=2,
)


def a_snapshot(at_s: float, ends: dict[str, int]) -> ClusterSnapshot:
    topics = {name: TopicSnapshot(1, end, 10 * end, end, (), ()) for name, end in ends.items()}
    return ClusterSnapshot(at_s, 10_000, Readiness(True, {"write_manager": "ok"}), CLUSTER, topics)


counted = st.dictionaries(st.sampled_from("abcde"), st.integers(0, 10**9))


@given(counted, counted, st.floats(0.001, 1e6))
def test_rates_are_of_what_both_looks_saw(before: dict[str, int], after: dict[str, int], seconds: float) -> None:
    rates = cluster_snapshot.rates(a_snapshot(5.0, before), a_snapshot(5.0 + seconds, after))
    assert rates is not None
    assert rates.keys() == {name for name in before.keys() & after.keys() if after[name] >= before[name]}
    for name, rate in rates.items():
        assert rate >= 0
        assert (rate > 0) == (after[name] > before[name])


def test_one_look_tells_no_rate() -> None:
    seen = a_snapshot(1.0, {"orders": 7})
    assert cluster_snapshot.rates(None, seen) is None
    assert "in_per_s=-" in cluster_snapshot.line(seen, None, "12:00:00")
    assert "in_per_s=0" in cluster_snapshot.line(seen, {}, "12:00:00")


def test_partitions_without_leader_or_replica_are_named() -> None:
    partitions = [
        PartitionInfo(0, 1, (1, 2), 1, 0, 10, 10, 100),
        PartitionInfo(1, None, (1, 3), 1, 5, 9, 4, 40),
    ]
    seen = replace(a_snapshot(0.0, {}), topics={"orders": cluster_snapshot.topic_snapshot(partitions, frozenset({2}))})
    assert (seen.messages, seen.size_bytes, seen.topics["orders"].end) == (14, 140, 19)
    assert (seen.leaderless, seen.under_replicated) == (["orders/1"], ["orders/0"])
    assert cluster_snapshot.headline(seen).text == "not ready (1 partition without leader)"
    told = cluster_snapshot.as_json(seen)
    assert (told["ready"], told["without_leader"], told["under_replicated"]) == (False, ["orders/1"], ["orders/0"])


def test_every_process_has_a_row() -> None:
    rows = [[cell_text(cell) for cell in row] for row in cluster_snapshot.process_rows(a_snapshot(0.0, {}))]
    assert rows == [
        ["write-manager-1", "active", "-", "-", "-"],
        ["read-manager-1", "active", "-", "-", "0.5s ago"],
        ["broker-1", "active", "2", "2", "1.0s ago"],
        ["broker-2", "inactive", "0", "2", "8.0s ago"],
        ["PostgreSQL primary", "active", "-", "-", "-"],
        ["PostgreSQL server", "inactive", "-", "-", "-"],
    ]


def test_the_busiest_topics_come_first() -> None:
    seen = a_snapshot(2.0, {"idle": 900, "busy": 50, "new": 3})
    per_s = cluster_snapshot.rates(a_snapshot(1.0, {"idle": 900, "busy": 10}), seen)
    assert [row[0] for row in cluster_snapshot.topic_rows(seen, per_s, 2)] == ["busy", "idle"]
    assert cluster_snapshot.topic_rows(seen, per_s, 3)[2] == ["new", 1, 3, "30 B", None]
