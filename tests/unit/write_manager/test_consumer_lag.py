"""Lag of named consumers, from what the write manager has in memory."""

import asyncio
from typing import cast
from uuid import UUID, uuid4

from prometheus_client import CollectorRegistry

from db.cursors import NamedConsumer, StoredCursor
from db.primary import Primary
from myqueue.protocol.errors import MetadataUnavailable
from myqueue.protocol.internal import Configuration, MemberName
from write_manager.cluster_metrics import ClusterMetrics
from write_manager.consumer_lag import ConsumerLag, MeasuredLag, worst_first
from write_manager.cursors import Cursors, CursorStatus
from write_manager.metadata_cache import CachedPartition, CachedTopic, MetadataCache
from write_manager.partition_assignment import NO_CLIENT

TOPIC_ID = uuid4()


class CursorsInUse:
    """Those that are in memory."""

    def __init__(self, loaded: dict[int, dict[int, CursorStatus]]) -> None:
        self._loaded = loaded

    def loaded_statuses(self, consumer_id: int) -> dict[int, CursorStatus] | None:
        return self._loaded.get(consumer_id)


def cache_with(*partitions: CachedPartition) -> MetadataCache:
    cache = MetadataCache(cast(Primary, None), nameless_ttl_s=60)
    topic = CachedTopic("orders", TOPIC_ID, 3, None, None, list(partitions))
    cache.topics["orders"] = cache.topics_by_id[str(TOPIC_ID)] = topic
    return cache


def partition(number: int, beginning: int, end: int, *, is_reported: bool = True) -> CachedPartition:
    voters: list[MemberName] = [{"broker_id": broker_id, "incarnation": "a" * 16} for broker_id in (1, 2, 3)]
    reported: Configuration = {"index": 0, "voters": voters, "learners": []}
    return CachedPartition(
        number,
        1,
        1,
        (1, 2, 3),
        (),
        configuration=reported if is_reported else None,
        beginning_offset=beginning,
        end_offset=end,
        voters=[1, 2, 3],
    )


def consumer(consumer_id: int, name: str, *offsets: int, topic_id: UUID = TOPIC_ID) -> NamedConsumer:
    cursors = [StoredCursor(number, offset, (), 0) for number, offset in enumerate(offsets)]
    return NamedConsumer(consumer_id, topic_id, "orders", name, cursors)


def measured(
    cache: MetadataCache, stored: list[NamedConsumer], loaded: dict[int, dict[int, CursorStatus]], named: int
) -> MeasuredLag:
    lag = ConsumerLag(cast(Primary, None), cache, cast(Cursors, CursorsInUse(loaded)), max_cursors=100)
    lag._stored = stored, named
    return asyncio.run(lag.measure())


def test_cursors_in_memory_count_and_stored_ones_otherwise() -> None:
    cache = cache_with(partition(0, 10, 100), partition(1, 0, 50))
    stored = [consumer(1, "stored", 5, 50), consumer(2, "in use", 0, 0)]
    loaded = {2: {0: CursorStatus(90, 2, "m-1", NO_CLIENT), 1: CursorStatus(50, 0, "m-2", NO_CLIENT)}}
    found = {each.name: each for each in measured(cache, stored, loaded, 2).consumers}
    assert {number: p.messages for number, p in found["stored"].partitions.items()} == {0: 90, 1: 0}, "5 to 9 are gone"
    assert {number: p.messages for number, p in found["in use"].partitions.items()} == {0: 12, 1: 0}
    assert (found["in use"].members, found["stored"].members) == (frozenset({"m-1", "m-2"}), frozenset[str]())


def test_what_is_not_known_is_left_out() -> None:
    """Where a partition ends that was not reported to this process, and consumers of deleted topics."""
    cache = cache_with(partition(0, 0, 0, is_reported=False), partition(1, 0, 50))
    stored = [consumer(1, "a", 0, 0), consumer(2, "gone", 0, 0, topic_id=uuid4())]
    lag = measured(cache, stored, {}, 5)
    assert [(each.name, list(each.partitions)) for each in lag.consumers] == [("a", [1])]
    assert lag.not_measured == 3


def test_the_worst_comes_first() -> None:
    cache = cache_with(partition(0, 0, 100))
    listed = worst_first(measured(cache, [consumer(n, f"c{n}", 100 - n) for n in range(5)], {}, 9), 2)
    assert [(each.name, each.messages) for each in listed.consumers] == [("c4", 4), ("c3", 3)]
    assert (listed.others, listed.not_measured) == (3, 4)


def values(metrics: ClusterMetrics) -> dict[str, dict[tuple[str, ...], float]]:
    registry = CollectorRegistry()
    registry.register(metrics)
    return {
        family.name: {tuple(sample.labels.values()): sample.value for sample in family.samples}
        for family in registry.collect()
    }


def metrics_of(
    cache: MetadataCache, lag: MeasuredLag | None, active: set[int], *, is_active: bool = True
) -> ClusterMetrics:
    def measure() -> MeasuredLag:
        if lag is None:
            raise MetadataUnavailable(outcome="not_written")
        return lag

    return ClusterMetrics(cache, lambda: active, measure, is_active=lambda: is_active)


def test_metrics_have_the_names_of_kafka_exporter() -> None:
    cache = cache_with(partition(0, 10, 100), partition(1, 0, 50, is_reported=False))
    lag = measured(cache, [consumer(1, "billing", 40, 0)], {}, 3)
    found = values(metrics_of(cache, lag, {1, 2}))
    assert found["kafka_consumergroup_lag"] == {("billing", "orders", "0"): 60}
    assert found["kafka_consumergroup_lag_sum"] == {("billing", "orders"): 60}
    assert found["kafka_consumergroup_current_offset"] == {("billing", "orders", "0"): 40}
    assert found["kafka_topic_partition_current_offset"] == {("orders", "0"): 100}
    assert found["kafka_topic_partition_oldest_offset"] == {("orders", "0"): 10}
    assert found["kafka_topic_partition_in_sync_replica"] == {("orders", "0"): 2, ("orders", "1"): 2}
    assert found["kafka_topic_partition_under_replicated_partition"][("orders", "0")] == 1
    assert (found["kafka_brokers"], found["kafka_topic_partitions"]) == ({(): 2}, {("orders",): 2})
    assert found["myqueue_cluster_consumers_not_measured"] == {(): 2}


def test_a_leader_that_is_away_leads_nothing() -> None:
    cache = cache_with(partition(0, 0, 1))
    lag = measured(cache, [], {}, 0)
    assert values(metrics_of(cache, lag, {1}))["kafka_topic_partition_leader"] == {("orders", "0"): 1}
    assert values(metrics_of(cache, lag, {2, 3}))["kafka_topic_partition_leader"] == {("orders", "0"): -1}


def test_partitions_are_shown_while_lag_cannot_be_measured() -> None:
    found = values(metrics_of(cache_with(partition(0, 0, 1)), None, {1}))
    assert found["myqueue_cluster_lag_measured"] == {(): 0}
    assert "kafka_consumergroup_lag" not in found
    assert found["kafka_topic_partition_current_offset"] == {("orders", "0"): 1}


def test_a_standby_says_nothing_of_the_cluster() -> None:
    assert values(metrics_of(cache_with(partition(0, 0, 1)), None, {1}, is_active=False)) == {}
