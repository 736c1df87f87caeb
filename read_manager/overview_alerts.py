"""Alerts of the overview: what does not work, or would not survive the next failure, with what to do. No IO.

Thresholds are those of config/monitoring/alerts.yml and job-alerts.yml, without their times: the console shows what is
true now.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from myqueue.protocol.answers import ClusterWriteManager
from myqueue.protocol.overview import Alert, ClusterState, LeaderlessPartition, Overview, OverviewProcess, Severity

FRESH_S = 3.0  # what the write manager said counts for so long
DISK_LOW_BYTES = 5_000_000_000
REPLAY_LAG_BYTES = 64_000_000
CONSUMER_LAG_MESSAGES = 1000
JOB_STALE_S = 900
NAMED_PARTITIONS = 3

_ORDER: tuple[Severity, ...] = ("critical", "warning", "info")
_LOOK = "Its log says why: make logs NAME={0}, or docker compose logs {0}."


def find_alerts(
    overview: Overview, state: ClusterState | None, write_managers: Mapping[str, ClusterWriteManager]
) -> list[Alert]:
    """The worst first. Only processes, brokers and databases are judged while no write manager says how the rest is."""
    found = [
        *_write_managers(write_managers),
        *_brokers(overview),
        *_databases(overview),
        *_disks(overview),
    ]
    if state is not None and overview.state_age_s is not None and overview.state_age_s <= FRESH_S:
        found += _partitions(overview, state)
        found += _processes(overview.processes)
        found += _consumers(state)
        found += _jobs(state, overview.at_ms)
    return sorted(found, key=lambda alert: _ORDER.index(alert.severity))


def _alert(severity: Severity, code: str, text: str, action: str) -> Alert:
    return Alert(severity=severity, code=code, text=text, action=action)


def _write_managers(managers: Mapping[str, ClusterWriteManager]) -> Iterator[Alert]:
    silent = [name for name, manager in managers.items() if manager.state == "inactive"]
    start = f"Start {', '.join(silent)}. {_LOOK.format(silent[0])}" if silent else ""
    active = [manager for manager in managers.values() if manager.state == "active"]
    if not active and len(silent) < len(managers):
        yield _alert(
            "critical",
            "no_write_manager",
            "no write manager is active: writes are refused until the standby has taken over",
            "Wait a few seconds. If it stays so, the standby does not reach PostgreSQL's primary.",
        )
    elif not active:
        yield _alert(
            "critical",
            "no_write_manager",
            "no write manager answers: writes are refused, but those of producers that are open",
            start,
        )
    elif len(managers) > 1 and all(manager.state != "standby" for manager in managers.values()):
        yield _alert(
            "warning",
            "no_standby_write_manager",
            "no write manager stands by: if the active one fails, writes are refused until it is back",
            start or "One of them does not reach PostgreSQL; it stands by again when it does.",
        )


def _brokers(overview: Overview) -> Iterator[Alert]:
    for broker in overview.brokers:
        if broker.healthy:
            continue
        age = "" if broker.heartbeat_age_s is None else f" for {broker.heartbeat_age_s:.0f} s"
        yield _alert(
            "critical",
            "broker_down",
            f"broker {broker.broker_id} sent no heartbeat{age}: it has replicas of {broker.replicas} partitions",
            f"Start it. {_LOOK.format(f'broker-{broker.broker_id}')} Partitions go on while most of their replicas do.",
        )


def _databases(overview: Overview) -> Iterator[Alert]:
    if overview.postgres and not any(each.role == "primary" for each in overview.postgres):
        yield _alert(
            "critical",
            "postgres_no_primary",
            "PostgreSQL has no primary: topics, registrations, consume and commits are refused",
            "Wait for the automatic failover. If none comes: make promote NAME=…, or patronictl list in containers.",
        )
    for server in overview.postgres:
        if not server.healthy:
            yield _alert(
                "warning",
                "postgres_down",
                f"{server.name}: {server.detail}",
                "Start it, or let it be rebuilt: make status, or patronictl list in containers, says which one it is.",
            )
        elif server.replay_lag_bytes is not None and server.replay_lag_bytes > REPLAY_LAG_BYTES:
            yield _alert(
                "warning",
                "postgres_behind",
                f"{server.name} is {server.replay_lag_bytes / 1e6:.0f} MB behind the primary: what it answers is old",
                "Look at its disk and its network; it may also be replaying after a restart.",
            )


def _disks(overview: Overview) -> Iterator[Alert]:
    for broker in overview.brokers:
        if broker.disk_free_bytes is not None and broker.disk_free_bytes < DISK_LOW_BYTES:
            yield _alert(
                "critical",
                "disk_low",
                f"the disk of broker {broker.broker_id} has {broker.disk_free_bytes / 1e9:.1f} GB left; "
                "near 64 MB it refuses messages",
                "Shorten a topic's retention, delete what is not needed, or give it a larger disk.",
            )


def _partitions(overview: Overview, state: ClusterState) -> Iterator[Alert]:
    if state["leaderless_count"]:
        yield _alert(
            "critical",
            "partition_leaderless",
            f"{_count(state['leaderless_count'], 'partition has', 'partitions have')} no leader and take and serve "
            f"nothing: {_partition_names(overview.leaderless, state['leaderless_count'])}",
            "A leader is elected within seconds while most of the replicas are there: start their brokers.",
        )
    if state["under_replicated_count"]:
        yield _alert(
            "warning",
            "under_replicated",
            f"{_count(state['under_replicated_count'], 'partition has', 'partitions have')} fewer copies than wanted: "
            f"{_partition_names(overview.under_replicated, state['under_replicated_count'])}",
            "Start the brokers that are missing; replicas catch up by themselves, which may take a while.",
        )
    if state["damaged_count"]:
        yield _alert(
            "warning",
            "damaged_replicas",
            f"{_count(state['damaged_count'], 'replica is', 'replicas are')} damaged and not rebuilt yet",
            "myqueue doctor says which, and what to do.",
        )


def _processes(processes: Iterable[OverviewProcess]) -> Iterator[Alert]:
    for process in processes:
        if process.healthy:
            continue
        if process.role == "read_manager":
            yield _alert(
                "warning",
                "process_down",
                f"{process.name} does not answer: {process.detail}",
                "Reads go to the others. " + _LOOK.format(process.name),
            )
        elif process.role == "load_balancer":
            yield _alert(
                "warning",
                "load_balancer_down",
                f"nginx {process.detail}: new brokers and read managers do not get requests",
                "Start it. " + _LOOK.format("nginx"),
            )


def _consumers(state: ClusterState) -> Iterator[Alert]:
    if state["consumers"] is None:
        yield _alert(
            "info",
            "consumers_not_measured",
            "how far consumers are behind is not known",
            "It will be once PostgreSQL's primary answers.",
        )
    for consumer in state["consumers"] or ():
        growth = consumer["growth_per_s"]
        if consumer["messages"] > CONSUMER_LAG_MESSAGES and (growth is None or growth >= 0):
            nobody = consumer["members"] == 0
            yield _alert(
                "warning",
                "consumer_behind",
                f"{consumer['name']} has {consumer['messages']:,} messages of {consumer['topic']} to read"
                + (", and no member reads them" if nobody else " and does not catch up"),
                "Start it. The consumer's page explains why nothing is read."
                if nobody
                else "Start more members, up to one a partition, or make the handling of a message faster.",
            )


def _jobs(state: ClusterState, now_ms: int) -> Iterator[Alert]:
    for job in state["jobs"]:
        age_s = None if job["succeeded_ms"] is None else (now_ms - job["succeeded_ms"]) / 1000
        if job["failed"]:
            yield _alert(
                "warning",
                "job_failing",
                f"the last run of the Spark job {job['job']} has failed",
                "The Spark page and /v1/stats/runs say why.",
            )
        elif age_s is None or age_s > JOB_STALE_S:
            ago = "ever" if age_s is None else f"for {age_s / 60:.0f} minutes"
            yield _alert(
                "warning",
                "job_stale",
                f"the Spark job {job['job']} has not succeeded {ago}: its figures are stale",
                "Is the scheduler running? Start it by make spark, or the service spark in containers.",
            )


def _count(number: int, one: str, more: str) -> str:
    return f"{number} {one if number == 1 else more}"


def _partition_names(partitions: Sequence[LeaderlessPartition], count: int) -> str:
    named = [f"{each.topic}/{each.partition_id}" for each in partitions[:NAMED_PARTITIONS]]
    return ", ".join(named) + (f" and {count - len(named)} more" if count > len(named) else "")
