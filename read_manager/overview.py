"""The overview of the cluster, put together from what was collected. No IO."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from db.servers import DatabaseServer
from myqueue.protocol.answers import ClusterWriteManager
from myqueue.protocol.overview import (
    BehindConsumer,
    BrokerState,
    ClusterState,
    LeaderlessPartition,
    Overview,
    OverviewBroker,
    OverviewDatabase,
    OverviewProcess,
    OverviewRates,
    OverviewTopic,
    UnderReplicatedPartition,
)
from read_manager.broker_counters import COUNTERS, BrokerCounters, BrokerRates
from read_manager.cluster import database
from read_manager.overview_alerts import FRESH_S, find_alerts
from read_manager.replay_lag import ReplayTimes, replay_lag_bytes, written_position

LOAD_BALANCER_SILENT_S = 5.0  # it asks the active write manager every second


@dataclass(frozen=True, slots=True)
class KnownWriteManager:
    name: str
    address: str
    status: ClusterWriteManager


@dataclass(frozen=True, slots=True)
class Collected:
    at_ms: int
    now_s: float
    state: ClusterState | None  # None: no write manager has answered yet
    state_s: float  # when it was answered
    write_managers: Sequence[KnownWriteManager]
    databases: Sequence[DatabaseServer]
    timeline: int  # the current one of PostgreSQL
    counters: Mapping[int, BrokerCounters]  # of the brokers that answered
    refused: frozenset[int]  # brokers at whose address nothing listens

    @property
    def state_age_s(self) -> float | None:
        return None if self.state is None else self.now_s - self.state_s

    @property
    def is_fresh(self) -> bool:
        return self.state_age_s is not None and self.state_age_s <= FRESH_S


class OverviewAssembler:
    """Keeps the samples that rates and lags are made from."""

    def __init__(self) -> None:
        self._rates = BrokerRates()
        self._replay = ReplayTimes()

    def assemble(self, collected: Collected) -> Overview:
        self._rates.add(collected.now_s, collected.counters)
        brokers = self._brokers(collected)
        postgres = self._databases(collected)
        state = collected.state
        counted = list(collected.counters)
        overview = Overview(
            at_ms=collected.at_ms,
            state_age_s=_rounded(collected.state_age_s),
            processes=_processes(collected, brokers, postgres),
            rates=OverviewRates.model_validate(
                {f"{name}_per_s": _rounded(self._rates.total(counted, name)) for name in COUNTERS}
            ),
            topic_count=None if state is None else state["topic_count"],
            partition_count=None if state is None else state["partition_count"],
            under_replicated=[
                UnderReplicatedPartition.model_validate(each) for each in (state["under_replicated"] if state else ())
            ],
            under_replicated_count=None if state is None else state["under_replicated_count"],
            leaderless=[
                LeaderlessPartition(topic=each["topic"], partition_id=each["partition_id"])
                for each in (state["leaderless"] if state else ())
            ],
            leaderless_count=None if state is None else state["leaderless_count"],
            brokers=brokers,
            postgres=postgres,
            topics=[
                OverviewTopic.model_validate({**each, "messages_in_per_s": _rounded(each["messages_in_per_s"])})
                for each in (state["topics"] if state else ())
            ],
            consumers=_consumers(state),
            alerts=[],
        )
        write_managers = {known.name: known.status for known in collected.write_managers}
        return overview.model_copy(update={"alerts": find_alerts(overview, state, write_managers)})

    def _brokers(self, collected: Collected) -> list[OverviewBroker]:
        state = collected.state
        return [self._broker(each, collected) for each in (state["brokers"] if state else ())]

    def _broker(self, state: BrokerState, collected: Collected) -> OverviewBroker:
        broker_id = state["broker_id"]
        counters = collected.counters.get(broker_id)
        is_alive = state["active"] if collected.is_fresh else counters is not None
        age_s = state["heartbeat_age_s"] + (collected.state_age_s or 0)
        return OverviewBroker(
            broker_id=broker_id,
            healthy=is_alive and broker_id not in collected.refused,
            leaders=state["leaders"],
            replicas=state["replicas"],
            disk_used_bytes=state["stored_bytes"],
            disk_free_bytes=None if counters is None else counters.disk_free_bytes,
            heartbeat_age_s=round(age_s, 1),
            address=state["endpoint"].removeprefix("http://"),
            messages_in_per_s=_rounded(self._rates.rate(broker_id, "messages_in")),
            messages_out_per_s=_rounded(self._rates.rate(broker_id, "messages_out")),
        )

    def _databases(self, collected: Collected) -> list[OverviewDatabase]:
        written = written_position(collected.databases)
        self._replay.add(collected.now_s, written)
        found = []
        for place, server in enumerate(collected.databases, 1):
            described = database(server, collected.timeline)
            lag_bytes = replay_lag_bytes(server, written)
            replayed = None if lag_bytes is None or server.state is None else server.state.position
            found.append(
                OverviewDatabase(
                    name=f"postgres-{place}",
                    role=described.role,
                    healthy=described.state == "active" and described.problem is None,
                    detail=described.problem or described.role or "",
                    replay_lag_bytes=lag_bytes,
                    replay_lag_s=None if replayed is None else _rounded(self._replay.lag_s(collected.now_s, replayed)),
                )
            )
        return found


def _processes(
    collected: Collected, brokers: Sequence[OverviewBroker], postgres: Sequence[OverviewDatabase]
) -> list[OverviewProcess]:
    found = []
    if collected.state is not None:
        age_s = collected.state["load_balancer_age_s"]
        is_silent = age_s is None or age_s > LOAD_BALANCER_SILENT_S
        # Nobody knows while no write manager is active: it asks none of the others.
        if collected.is_fresh:
            detail = "has not asked the write manager for addresses lately" if is_silent else ""
            found.append(_process("nginx", "load_balancer", not is_silent, detail))
        for manager in collected.state["read_managers"]:
            age_s = manager["heartbeat_age_s"] + (collected.state_age_s or 0)
            detail = "" if manager["active"] else f"no heartbeat for {age_s:.0f} s"
            address = manager["endpoint"].removeprefix("http://")
            found.append(_process(manager["name"], "read_manager", manager["active"], detail, address))
    for known in collected.write_managers:
        status = known.status
        detail = status.problem or ("does not answer" if status.state == "inactive" else status.state)
        is_healthy = status.state != "inactive" and status.problem is None
        found.append(_process(known.name, "write_manager", is_healthy, detail, known.address))
    for broker in brokers:
        detail = "" if broker.healthy else f"no heartbeat for {broker.heartbeat_age_s or 0:.0f} s"
        found.append(_process(f"broker-{broker.broker_id}", "broker", broker.healthy, detail, broker.address))
    found += [_process(each.name, "postgres", each.healthy, each.detail) for each in postgres]
    return found


def _process(name: str, role: str, healthy: bool, detail: str, address: str | None = None) -> OverviewProcess:
    return OverviewProcess.model_validate(
        {"name": name, "role": role, "healthy": healthy, "detail": detail, "address": address}
    )


def _consumers(state: ClusterState | None) -> list[BehindConsumer] | None:
    if state is None or state["consumers"] is None:
        return None
    return [BehindConsumer.model_validate(each) for each in state["consumers"] if each["messages"] > 0]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
