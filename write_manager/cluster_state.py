"""Cluster state: what the active write manager knows in memory, for the overview of the read managers.

It is made at most once in KEPT_S, only when one asks, and without a query.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from db.job_runs import JobSummary
from myqueue.protocol import internal
from myqueue.protocol.errors import Unavailable
from myqueue.protocol.overview import (
    MAX_LISTED_CONSUMERS,
    MAX_LISTED_PARTITIONS,
    MAX_LISTED_TOPICS,
    BrokerState,
    ClusterState,
    ConsumerBehind,
    JobState,
    PlacedPartition,
    ReadManagerState,
    TopicState,
)
from service.http_messages import HttpRequest, HttpResponse
from service.rate_window import RateWindow
from service.router import Router
from write_manager.brokers import Broker
from write_manager.cluster_metrics import in_sync_replicas
from write_manager.consumer_lag import ConsumerLag, MeasuredConsumer
from write_manager.metadata_cache import CachedTopic, MetadataCache
from write_manager.read_managers import ReadManager

KEPT_S = 0.5
SETTLING_S = 5.0  # brokers elect leaders and report their replicas within two heartbeats
LAG_WINDOW_S = 30.0  # a consumer that is read in bursts does not look as if it fell behind


@dataclass(slots=True)
class PartitionSummary:
    """Of all topics."""

    leaders: Counter[int] = field(default_factory=Counter)  # by broker, as the next two
    replicas: Counter[int] = field(default_factory=Counter)
    stored_bytes: Counter[int] = field(default_factory=Counter)
    leaderless: list[PlacedPartition] = field(default_factory=list)
    under_replicated: list[PlacedPartition] = field(default_factory=list)
    damaged_replicas: int = 0


def summarize_partitions(topics: Iterable[CachedTopic], active: set[int], now_s: float) -> PartitionSummary:
    """Nothing is missing yet of a topic that is new, or new to this process: its replicas have to report first."""
    summary = PartitionSummary()
    for topic in topics:
        is_settling = now_s - topic.cached_s < SETTLING_S
        for partition in topic.partitions:
            for broker_id in partition.replicas:
                summary.replicas[broker_id] += 1
                summary.stored_bytes[broker_id] += partition.size_bytes
            summary.damaged_replicas += len(partition.damaged)
            leader = partition.leader if partition.leader in active else None
            if leader is not None:
                summary.leaders[leader] += 1
            if is_settling:
                continue
            in_sync = in_sync_replicas(partition, active)
            placed: PlacedPartition = {
                "topic": topic.name,
                "partition_id": partition.partition_id,
                "missing": [broker_id for broker_id in partition.replicas if broker_id not in in_sync],
            }
            if leader is None:
                summary.leaderless.append(placed)
            if len(in_sync) < topic.replication:
                summary.under_replicated.append(placed)
    return summary


def appended(topic: CachedTopic) -> int | None:
    """Messages that were ever appended; None until every leader has reported."""
    if any(partition.configuration is None for partition in topic.partitions):
        return None
    return sum(partition.end_offset for partition in topic.partitions)


def topic_state(topic: CachedTopic, rate: float | None) -> TopicState:
    is_known = appended(topic) is not None
    partitions = topic.partitions
    return {
        "topic": topic.name,
        "partitions": len(partitions),
        "messages": sum(p.end_offset - p.beginning_offset for p in partitions) if is_known else None,
        "stored_bytes": sum(p.size_bytes for p in partitions) if is_known else None,
        "messages_in_per_s": rate,
    }


class ClusterStates:
    """Runs on the event loop."""

    def __init__(
        self,
        cache: MetadataCache,
        brokers: Callable[[], Sequence[Broker]],
        read_managers: Callable[[], Sequence[ReadManager]],
        jobs: Callable[[], Sequence[JobSummary]],
        lag: ConsumerLag,
        load_balancer_seen_s: Callable[[], float | None],
    ) -> None:
        self._cache = cache
        self._brokers = brokers
        self._read_managers = read_managers
        self._jobs = jobs
        self._lag = lag
        self._load_balancer_seen_s = load_balancer_seen_s
        self._appended: RateWindow[str] = RateWindow()  # by topic id: a name may be another topic by now
        self._unread: RateWindow[int] = RateWindow(LAG_WINDOW_S)  # by consumer
        self._kept: tuple[ClusterState, float] | None = None

    async def state(self) -> ClusterState:
        consumers = await self._measured()
        now_s = time.monotonic()
        if self._kept is not None and now_s - self._kept[1] < KEPT_S:
            return self._kept[0]
        state = self._state(now_s, consumers)
        self._kept = state, now_s
        return state

    def _state(self, now_s: float, consumers: Sequence[MeasuredConsumer] | None) -> ClusterState:
        topics = list(self._cache.topics.values())
        brokers = self._brokers()
        found = summarize_partitions(topics, {broker.broker_id for broker in brokers if broker.active}, now_s)
        counts = {str(topic.topic_id): appended(topic) for topic in topics}
        self._appended.add(now_s, {topic_id: count for topic_id, count in counts.items() if count is not None})
        seen_s = self._load_balancer_seen_s()
        return {
            "status": "success",
            "brokers": [_broker_state(broker, found, now_s) for broker in brokers],
            "read_managers": [_read_manager_state(manager, now_s) for manager in self._read_managers()],
            "load_balancer_age_s": None if seen_s is None else now_s - seen_s,
            "topics": self._busiest(topics),
            "topic_count": len(topics),
            "partition_count": sum(len(topic.partitions) for topic in topics),
            "leaderless": found.leaderless[:MAX_LISTED_PARTITIONS],
            "leaderless_count": len(found.leaderless),
            "under_replicated": found.under_replicated[:MAX_LISTED_PARTITIONS],
            "under_replicated_count": len(found.under_replicated),
            "damaged_count": found.damaged_replicas,
            "consumers": None if consumers is None else self._most_behind(consumers, now_s),
            "jobs": [_job_state(job) for job in self._jobs()],
        }

    def _busiest(self, topics: Iterable[CachedTopic]) -> list[TopicState]:
        states = [topic_state(topic, self._appended.rate(str(topic.topic_id))) for topic in topics]
        states.sort(key=lambda each: (-(each["messages_in_per_s"] or 0), each["topic"]))
        return states[:MAX_LISTED_TOPICS]

    async def _measured(self) -> Sequence[MeasuredConsumer] | None:
        try:
            return (await self._lag.measure()).consumers
        except Unavailable:  # PostgreSQL has not answered since this process became active
            return None

    def _most_behind(self, consumers: Sequence[MeasuredConsumer], now_s: float) -> list[ConsumerBehind]:
        self._unread.add(now_s, {each.consumer_id: each.messages for each in consumers})
        ordered = sorted(consumers, key=lambda each: (-each.messages, each.topic, each.name))
        return [
            {
                "consumer_id": each.consumer_id,
                "topic": each.topic,
                "name": each.name,
                "messages": each.messages,
                "members": len(each.members),
                "growth_per_s": self._unread.change(each.consumer_id),
            }
            for each in ordered[:MAX_LISTED_CONSUMERS]
        ]


def _broker_state(broker: Broker, found: PartitionSummary, now_s: float) -> BrokerState:
    return {
        "broker_id": broker.broker_id,
        "endpoint": broker.row.endpoint,
        "active": broker.active,
        "heartbeat_age_s": now_s - broker.last_heartbeat_s,
        "leaders": found.leaders[broker.broker_id],
        "replicas": found.replicas[broker.broker_id],
        "stored_bytes": found.stored_bytes[broker.broker_id],
    }


def _read_manager_state(manager: ReadManager, now_s: float) -> ReadManagerState:
    return {
        "name": manager.name,
        "endpoint": manager.endpoint,
        "active": manager.active,
        "heartbeat_age_s": now_s - manager.last_heartbeat_s,
    }


def _job_state(job: JobSummary) -> JobState:
    succeeded = job.succeeded_at
    return {
        "job": job.job,
        "failed": job.outcome != "succeeded",
        "succeeded_ms": None if succeeded is None else round(succeeded.timestamp() * 1000),
    }


def add_cluster_state_route(router: Router, states: ClusterStates) -> None:
    async def cluster_state(_: HttpRequest) -> HttpResponse:
        return HttpResponse.json(await states.state())

    router.add(internal.CLUSTER_STATE, cluster_state, quiet=True)
