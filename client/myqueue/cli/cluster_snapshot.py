"""Snapshots of a cluster, and the rates between two of them."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import myqueue
from myqueue.cli.output import Cell, Styled, bytes_text, duration_text, plural
from myqueue.descriptions import ClusterInfo, PartitionInfo, Readiness
from myqueue.protocol.errors import TopicNotFound

THREADS = 8
PROCESS_COLUMNS = ("name", "state", "leads", "holds", "heard")
TOPIC_COLUMNS = ("topic", "partitions", "messages", "size", "in/s")

Rates = dict[str, float]  # of topics


@dataclass(frozen=True, slots=True)
class TopicSnapshot:
    partitions: int
    messages: int
    size_bytes: int
    end: int  # messages ever appended, over all partitions
    leaderless: tuple[int, ...]
    under_replicated: tuple[int, ...]  # partitions with a replica on a broker that is away


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    at_s: float  # monotonic
    now_ms: int
    ready: Readiness
    cluster: ClusterInfo
    topics: dict[str, TopicSnapshot]

    @property
    def is_ready(self) -> bool:
        return self.ready.ready and not self.leaderless

    @property
    def messages(self) -> int:
        return sum(topic.messages for topic in self.topics.values())

    @property
    def size_bytes(self) -> int:
        return sum(topic.size_bytes for topic in self.topics.values())

    @property
    def leaderless(self) -> list[str]:
        return [f"{name}/{number}" for name, topic in self.topics.items() for number in topic.leaderless]

    @property
    def under_replicated(self) -> list[str]:
        return [f"{name}/{number}" for name, topic in self.topics.items() for number in topic.under_replicated]


def take_snapshot(admin: "myqueue.Admin", at_s: float, now_ms: int) -> ClusterSnapshot:
    """Takes one snapshot."""
    ready, cluster = admin.ready(), admin.cluster()
    away = frozenset(broker.broker_id for broker in cluster.brokers if broker.state != "active")

    def topic_snapshot_of(name: str) -> TopicSnapshot | None:
        try:
            return topic_snapshot(admin.partitions(name), away)
        except TopicNotFound:
            return None  # deleted meanwhile

    names = admin.list_topics(internal=True)
    with ThreadPoolExecutor(THREADS) as workers:
        found = zip(names, workers.map(topic_snapshot_of, names), strict=True)
        return ClusterSnapshot(
            at_s, now_ms, ready, cluster, {name: topic for name, topic in found if topic is not None}
        )


def topic_snapshot(partitions: Sequence[PartitionInfo], away: frozenset[int]) -> TopicSnapshot:
    return TopicSnapshot(
        partitions=len(partitions),
        messages=sum(partition.size for partition in partitions),
        size_bytes=sum(partition.size_bytes for partition in partitions),
        end=sum(partition.end_offset for partition in partitions),
        leaderless=tuple(partition.partition for partition in partitions if partition.leader is None),
        under_replicated=tuple(partition.partition for partition in partitions if away & set(partition.replicas)),
    )


def rates(before: ClusterSnapshot | None, after: ClusterSnapshot) -> Rates | None:
    """Messages per second appended to each topic since the last snapshot; topics that are new have no rate."""
    if before is None or after.at_s <= before.at_s:
        return None
    seconds = after.at_s - before.at_s
    return {
        name: (topic.end - before.topics[name].end) / seconds
        for name, topic in after.topics.items()
        if name in before.topics and topic.end >= before.topics[name].end  # else the topic was recreated
    }


def headline(seen: ClusterSnapshot) -> Styled:
    if seen.is_ready:
        return Styled("ready", "green")
    wrong = [f"{what}: {problem}" for what, problem in seen.ready.checks.items() if problem != "ok"]
    if seen.leaderless:
        wrong.append(f"{plural(len(seen.leaderless), 'partition')} without leader")
    return Styled(f"not ready ({'; '.join(wrong)})", "bold red")


def process_rows(seen: ClusterSnapshot) -> list[list[Cell]]:
    """Their states are current only while the write manager runs, which receives their heartbeats."""
    cluster = seen.cluster
    rows: list[list[Cell]] = []
    reachable = seen.ready.checks.get("write_manager", "ok") == "ok"
    writer = cluster.write_manager
    if len(cluster.write_managers) > 1:
        rows.extend(
            [each.name or "write manager", _state(each.state == "active", each.state), None, None, None]
            for each in cluster.write_managers
        )
    else:
        state = _state(reachable and writer is not None)
        rows.append([writer.name if writer else "write manager", state, None, None, None])
    for manager in cluster.read_managers:
        age = _age(seen.now_ms, manager.last_heartbeat)
        rows.append([manager.name, _state(manager.state == "active"), None, None, age])
    for broker in cluster.brokers:
        age = _age(seen.now_ms, broker.last_heartbeat)
        state = _state(broker.state == "active")
        rows.append([f"broker-{broker.broker_id}", state, broker.leads, broker.holds, age])
    rows.extend(
        [f"PostgreSQL {server.role or 'server'}", _state(server.state == "active"), None, None, None]
        for server in cluster.databases
    )
    return rows


def topic_rows(seen: ClusterSnapshot, known: Rates | None, most: int) -> list[list[Cell]]:
    """The busiest first."""
    per_s = known or {}
    order = sorted(seen.topics, key=lambda name: (-per_s.get(name, 0.0), -seen.topics[name].messages, name))
    return [
        [
            name,
            seen.topics[name].partitions,
            seen.topics[name].messages,
            bytes_text(seen.topics[name].size_bytes),
            round(per_s[name]) if name in per_s else None,
        ]
        for name in order[:most]
    ]


def summary(seen: ClusterSnapshot) -> str:
    """One line about the whole cluster."""
    stored = f"{plural(seen.messages, 'message')} ({bytes_text(seen.size_bytes)})"
    return (
        f"{plural(len(seen.topics), 'topic')}, {plural(seen.cluster.partitions, 'partition')}, {stored}; "
        f"without leader: {len(seen.leaderless)}, under-replicated: {len(seen.under_replicated)}"
    )


def line(seen: ClusterSnapshot, per_s: Rates | None, clock: str) -> str:
    """A snapshot as one line of a log."""
    cluster = seen.cluster
    brokers = sum(broker.state == "active" for broker in cluster.brokers)
    managers = sum(manager.state == "active" for manager in cluster.read_managers)
    incoming = "-" if per_s is None else f"{sum(per_s.values()):.0f}"
    return (
        f"{clock} {headline(seen).text} brokers={brokers}/{len(cluster.brokers)} "
        f"read_managers={managers}/{len(cluster.read_managers)} topics={len(seen.topics)} "
        f"partitions={cluster.partitions} leaderless={len(seen.leaderless)} "
        f"under_replicated={len(seen.under_replicated)} messages={seen.messages} in_per_s={incoming}"
    )


def as_json(seen: ClusterSnapshot, per_s: Rates | None = None) -> dict[str, Any]:
    cluster = seen.cluster
    body: dict[str, Any] = {
        "timestamp": seen.now_ms,
        "ready": seen.is_ready,
        "checks": seen.ready.checks,
        "brokers": [
            {
                "broker_id": broker.broker_id,
                "state": broker.state,
                "leads": broker.leads,
                "holds": broker.holds,
                "last_heartbeat": broker.last_heartbeat,
            }
            for broker in cluster.brokers
        ],
        "read_managers": [
            {"name": manager.name, "state": manager.state, "last_heartbeat": manager.last_heartbeat}
            for manager in cluster.read_managers
        ],
        "write_manager": (
            None
            if cluster.write_manager is None
            else {"name": cluster.write_manager.name, "epoch": cluster.write_manager.epoch}
        ),
        "write_managers": [
            {"name": each.name, "state": each.state, "epoch": each.epoch, "problem": each.problem}
            for each in cluster.write_managers
        ],
        "databases": [
            {"role": server.role, "state": server.state, "problem": server.problem} for server in cluster.databases
        ],
        "degraded": list(cluster.degraded),
        "topics": len(seen.topics),
        "partitions": cluster.partitions,
        "messages": seen.messages,
        "size_bytes": seen.size_bytes,
        "without_leader": seen.leaderless,
        "under_replicated": seen.under_replicated,
    }
    if per_s is not None:
        body["messages_per_s"] = {name: round(rate, 1) for name, rate in per_s.items()}
    return body


def _state(active: bool, otherwise: str = "inactive") -> Styled:
    if active:
        return Styled("active", "green")
    return Styled(otherwise, "green" if otherwise == "standby" else "bold red")


def _age(now_ms: int, then_ms: int) -> str:
    return f"{duration_text(max(0, now_ms - then_ms) / 1000)} ago"
