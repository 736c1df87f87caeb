"""Metrics of the whole cluster, from the write manager that is active: partitions, replicas and lag of consumers.

Names and labels are those of kafka_exporter where they mean the same, so that its dashboards and alerts work.
"""

from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from myqueue.protocol.errors import Unavailable
from write_manager.consumer_lag import MeasuredLag
from write_manager.metadata_cache import CachedPartition, CachedTopic, MetadataCache

NO_LEADER = -1
_PARTITION = ("topic", "partition")
_CURSOR = ("consumergroup", "topic", "partition")
_CONSUMER = ("consumergroup", "topic")

Values = Callable[[CachedTopic, CachedPartition], float | None]


def in_sync_replicas(partition: CachedPartition, active: set[int]) -> set[int]:
    """Brokers that are there and whose replica counts for a majority, undamaged."""
    return (set(partition.voters or ()) & active) - partition.damaged.keys()


class ClusterMetrics(Collector):
    def __init__(
        self,
        cache: MetadataCache,
        active_brokers: Callable[[], set[int]],
        measure_lag: Callable[[], MeasuredLag],
        is_active: Callable[[], bool],
    ) -> None:
        self._cache = cache
        self._active_brokers = active_brokers
        self._measure_lag = measure_lag
        self._is_active = is_active

    def collect(self) -> Iterator[Metric]:
        """Nothing from a standby, which does not know. What is not known yet of a partition is left out."""
        if not self._is_active():
            return
        yield from self._partitions()
        try:
            lag = self._measure_lag()
        except (Unavailable, TimeoutError):  # PostgreSQL has not answered since this process became active
            yield self._is_measured(False)
            return
        yield self._is_measured(True)
        yield from self._consumers(lag)

    def _is_measured(self, is_measured: bool) -> Metric:
        return _single("myqueue_cluster_lag_measured", "1 if the lag of consumers could be measured", is_measured)

    def _partitions(self) -> Iterator[Metric]:
        active = self._active_brokers()
        topics = sorted(self._cache.topics.values(), key=lambda topic: topic.name)
        yield _single("kafka_brokers", "Brokers that are active", len(active))
        counts = GaugeMetricFamily("kafka_topic_partitions", "Partitions of a topic", labels=["topic"])
        for topic in topics:
            counts.add_metric([topic.name], len(topic.partitions))
        yield counts

        def leader(partition: CachedPartition) -> int:
            return partition.leader if partition.leader in active and partition.leader is not None else NO_LEADER

        def if_reported(value: Callable[[CachedPartition], float]) -> Values:
            return lambda _, partition: None if partition.configuration is None else value(partition)

        families: tuple[tuple[str, str, Values], ...] = (
            (
                "kafka_topic_partition_current_offset",
                "The next offset of a partition",
                if_reported(lambda partition: partition.end_offset),
            ),
            (
                "kafka_topic_partition_oldest_offset",
                "The first offset that a partition still has",
                if_reported(lambda partition: partition.beginning_offset),
            ),
            (
                "myqueue_cluster_partition_bytes",
                "Stored bytes of a partition, at its leader",
                if_reported(lambda partition: partition.size_bytes),
            ),
            (
                "kafka_topic_partition_leader",
                "The broker that leads a partition; -1: none is known",
                lambda _, partition: leader(partition),
            ),
            (
                "kafka_topic_partition_leader_is_preferred",
                "1 if the broker that placement chose leads the partition",
                lambda _, partition: float(leader(partition) == partition.replicas[0]),
            ),
            (
                "kafka_topic_partition_replicas",
                "Replicas that a partition should have",
                lambda topic, _: topic.replication,
            ),
            (
                "kafka_topic_partition_in_sync_replica",
                "Replicas that count for a majority, on active brokers",
                lambda _, partition: len(in_sync_replicas(partition, active)),
            ),
            (
                "kafka_topic_partition_under_replicated_partition",
                "1 if a partition has fewer of them than it should have",
                lambda topic, partition: float(len(in_sync_replicas(partition, active)) < topic.replication),
            ),
        )
        for name, description, value in families:
            family = GaugeMetricFamily(name, description, labels=_PARTITION)
            for topic in topics:
                for partition in topic.partitions:
                    found = value(topic, partition)
                    if found is not None:
                        family.add_metric([topic.name, str(partition.partition_id)], found)
            yield family

    def _consumers(self, lag: MeasuredLag) -> Iterator[Metric]:
        offsets = GaugeMetricFamily("kafka_consumergroup_current_offset", "The next offset to read", labels=_CURSOR)
        behind = GaugeMetricFamily("kafka_consumergroup_lag", "Messages that were not read yet", labels=_CURSOR)
        offset_sums = GaugeMetricFamily(
            "kafka_consumergroup_current_offset_sum", "The same, over all partitions of the topic", labels=_CONSUMER
        )
        lag_sums = GaugeMetricFamily(
            "kafka_consumergroup_lag_sum", "The same, over all partitions of the topic", labels=_CONSUMER
        )
        members: Counter[str] = Counter()
        for consumer in lag.consumers:
            for partition_id, partition in consumer.partitions.items():
                labels = [consumer.name, consumer.topic, str(partition_id)]
                offsets.add_metric(labels, partition.cursor)
                behind.add_metric(labels, partition.messages)
            cursors = sum(partition.cursor for partition in consumer.partitions.values())
            offset_sums.add_metric([consumer.name, consumer.topic], cursors)
            lag_sums.add_metric([consumer.name, consumer.topic], consumer.messages)
            members[consumer.name] += len(consumer.members)
        in_groups = GaugeMetricFamily(
            "kafka_consumergroup_members",
            "Members that have partitions on lease, of consumers of this name in all topics",
            labels=["consumergroup"],
        )
        for name, count in members.items():
            in_groups.add_metric([name], count)
        yield from (offsets, behind, offset_sums, lag_sums, in_groups)
        yield _single(
            "myqueue_cluster_consumers_not_measured",
            "Consumers that have a name and whose lag is not here, because there are too many",
            lag.not_measured,
        )


def _single(name: str, description: str, value: float) -> Metric:
    return GaugeMetricFamily(name, description, value=value)
