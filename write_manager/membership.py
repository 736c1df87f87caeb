"""Which brokers and read managers there are, and which of them are alive."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from statistics import median

from db import catalog, membership
from db.engine import Primary
from db.membership import BrokerRow
from myqueue.protocol.errors import BrokerNotFound, RegistrationConflict
from myqueue.protocol.internal import (
    BrokerHeartbeat,
    BrokerRegistered,
    BrokerRegistration,
    DataAddress,
    ManagerAddress,
    ManagerHeartbeat,
    PartitionReport,
    Peer,
)
from service.logs import Log
from write_manager.addresses import Networks
from write_manager.directory import Directory
from write_manager.liveness import judge
from write_manager.read_managers import ReadManager, ReadManagers, check_name

STAMP_INTERVAL_S = 5.0


@dataclass(slots=True)
class Broker:
    broker_id: int
    endpoint: str
    raft_address: str
    data_address: str  # empty: it has none, or has not told yet
    hostname: str
    incarnation: str
    active: bool
    registered: bool  # in the lifetime of this process: its partitions are known
    heard_s: float
    since_s: float  # it has been active without a break
    clock_ahead_s: float  # of its calendar clock over this process's monotonic one
    held: dict[tuple[str, int], str] = field(default_factory=dict)  # partition -> incarnation of the replica


Holdings = dict[int, dict[tuple[str, int], str]]


class Membership:
    def __init__(
        self,
        primary: Primary,
        directory: Directory,
        log: Log,
        *,
        ttl_s: float,
        heartbeat_interval_s: float,
        networks: Sequence[str],
    ) -> None:
        self._primary = primary
        self._directory = directory
        self._log = log
        self._ttl_s = ttl_s
        self._heartbeat_interval_s = heartbeat_interval_s
        self._networks = Networks(networks)
        self._lock = threading.RLock()
        self._brokers: dict[int, Broker] = {}
        self._managers = ReadManagers(ttl_s)
        self._stamped_s = 0.0
        self._reports: dict[int, dict[tuple[str, int], PartitionReport]] = {}

    def load(self) -> None:
        """Who is known gets a fresh time to live: this process has not listened to them yet."""
        now_s = time.monotonic()
        with self._primary.reading() as session:
            rows, managers = membership.brokers(session), membership.managers(session)
        with self._lock:
            self._managers.load(managers, now_s)
            for row in rows:
                self._brokers[row.broker_id] = Broker(
                    row.broker_id,
                    row.endpoint,
                    row.raft_address,
                    row.data_address,
                    row.hostname,
                    row.incarnation,
                    row.status == "active",
                    False,
                    now_s,
                    now_s,
                    time.time() - now_s,
                )

    def register(self, request: BrokerRegistration) -> BrokerRegistered:
        self._networks.check_endpoint(request["endpoint"])
        if request.get("data_address"):
            self._networks.check_data_address(request["data_address"])
        with self._directory.changing(self._primary):
            with self._lock:
                known = self._identify(request)
            broker_id = self._store(request, known)
            reborn = known is not None and known.incarnation != request["incarnation"]
            with self._lock:
                now_s = time.monotonic()
                self._brokers[broker_id] = Broker(
                    broker_id,
                    request["endpoint"],
                    request["raft_address"],
                    request.get("data_address", ""),
                    request["hostname"],
                    request["incarnation"],
                    True,
                    True,
                    now_s,
                    now_s,
                    request["clock_ms"] / 1000 - now_s,
                    _held(request["partitions"]),
                )
                self._take_in(broker_id, request["partitions"])
        self._log.info("broker registered", broker_id=broker_id, endpoint=request["endpoint"], new_incarnation=reborn)
        return {
            "status": "success",
            "broker_id": broker_id,
            "heartbeat_interval_s": self._heartbeat_interval_s,
            "peers": self.peers(),
            "clock_ms": self.median_clock_ms(),
        }

    def _store(self, request: BrokerRegistration, known: Broker | None) -> int:
        """Outside the lock: heartbeats of the others must not wait for PostgreSQL."""
        with self._primary.transaction() as transaction:
            broker_id = request["broker_id"] if known is None else known.broker_id
            if broker_id is None:
                broker_id = membership.next_broker_id(transaction.session)
            row = BrokerRow(
                broker_id,
                request["endpoint"],
                request["raft_address"],
                request.get("data_address", ""),
                request["hostname"],
                request["incarnation"],
                "active",
            )
            membership.save_broker(transaction.session, row)
        return broker_id

    def _identify(self, request: BrokerRegistration) -> Broker | None:
        """An id belongs to whoever has its incarnation or its endpoint; a live other owner keeps it."""
        by_endpoint = next((b for b in self._brokers.values() if b.endpoint == request["endpoint"]), None)
        if request["broker_id"] is None:
            return by_endpoint
        known = self._brokers.get(request["broker_id"])
        if by_endpoint is not None and by_endpoint is not known:
            raise RegistrationConflict(f"{request['endpoint']} is broker {by_endpoint.broker_id}")
        if known is None:
            return None
        same = known.incarnation == request["incarnation"] or known.endpoint == request["endpoint"]
        if not same and known.active:
            raise RegistrationConflict(f"broker {known.broker_id} is alive at {known.endpoint}")
        return known

    def heartbeat(self, broker_id: int, request: BrokerHeartbeat) -> None:
        with self._lock:
            broker = self._brokers.get(broker_id)
            if broker is None or not broker.registered or broker.incarnation != request["incarnation"]:
                raise BrokerNotFound()
            broker.heard_s = time.monotonic()
            broker.clock_ahead_s = request["clock_ms"] / 1000 - broker.heard_s
            broker.held |= _held(request["partitions"])
            self._take_in(broker_id, request["partitions"])

    def _take_in(self, broker_id: int, reports: Sequence[PartitionReport]) -> None:
        """Leaders' words about their partitions: at once in memory, stored with the next sweep."""
        waiting = self._reports.setdefault(broker_id, {})
        for report in reports:
            waiting[report["topic_id"], report["partition_id"]] = report
            topic = self._directory.topics_by_id.get(report["topic_id"])
            if topic is None or report["role"] != "leader" or report["partition_id"] >= len(topic.partitions):
                continue
            partition = topic.partitions[report["partition_id"]]
            if report["term"] < partition.term:
                continue
            partition.leader, partition.term = broker_id, report["term"]
            partition.configuration = report["configuration"]
            partition.learn_bounds(report["beginning_offset"], report["end_offset"])
            partition.size_bytes = report["size_bytes"]

    def manager_heartbeat(self, request: ManagerHeartbeat) -> None:
        name, endpoint, before = request["name"], request["endpoint"], None
        check_name(name)
        with self._lock:
            is_known = self._managers.endpoint(name) == endpoint
        if not is_known:  # outside the lock: names may take long to resolve
            self._networks.check_endpoint(endpoint)
        with self._lock:
            if request.get("leaving"):
                self._managers.left(name, time.monotonic())
            else:
                before = self._managers.heard(name, endpoint, time.monotonic())
        if before is not None:
            self._log.warning(
                "read manager moved; again and again means that two have the same --name",
                name=name,
                endpoint=endpoint,
                before=before,
            )

    def manager_addresses(self) -> list[ManagerAddress]:
        """Where the load balancer finds the read managers that are there."""
        with self._lock:
            alive = self._managers.alive(time.monotonic())
        return [{"name": manager.name, "endpoint": manager.endpoint} for manager in alive]

    def sweep(self) -> None:
        """Stores changes: who died or came back, what leaders reported, and now and then the heartbeats' time."""
        now_s, now = time.monotonic(), datetime.now(UTC)
        with self._lock:
            heard = {b.broker_id: b.heard_s for b in self._brokers.values()}
            active = {b.broker_id: b.active for b in self._brokers.values()}
            verdict = judge(heard, active, now_s, self._ttl_s)
            stamp = now_s - self._stamped_s >= STAMP_INTERVAL_S
            managers, forgotten = self._managers.to_store(now_s, stamp=stamp), self._managers.to_forget(now_s)
            reports, self._reports = self._reports, {}
        names = {topic_id: topic.name for topic_id, topic in self._directory.topics_by_id.items()}
        if not (verdict.died or verdict.revived or managers or forgotten or stamp or any(reports.values())):
            return
        try:
            with self._primary.transaction() as transaction:
                session = transaction.session
                for broker_id in verdict.died:
                    membership.set_broker_status(session, broker_id, "inactive")
                for broker_id in verdict.revived:
                    membership.set_broker_status(session, broker_id, "active")
                catalog.record_reports(
                    session, names, {b: by_partition.values() for b, by_partition in reports.items()}
                )
                for manager in managers:
                    status, when = ("active" if manager.active else "inactive"), now - _age(manager.heard_s, now_s)
                    membership.save_manager(session, manager.name, manager.endpoint, status, when)
                if forgotten:
                    membership.forget_managers(session, forgotten)
                if stamp:
                    membership.stamp_brokers(session, (i for i, s in heard.items() if now_s - s <= self._ttl_s), now)
        except Exception:
            with self._lock:  # reported again, unless something newer has come in meanwhile
                for broker_id, by_partition in reports.items():
                    self._reports[broker_id] = by_partition | self._reports.get(broker_id, {})
            raise
        self._apply(verdict.died, verdict.revived, managers, forgotten)
        if stamp:
            self._stamped_s = now_s

    def _apply(
        self,
        died: Sequence[int],
        revived: Sequence[int],
        managers: Sequence[ReadManager],
        forgotten: Sequence[str],
    ) -> None:
        with self._lock:
            for broker_id in (*died, *revived):
                self._brokers[broker_id].active = broker_id in revived
                self._brokers[broker_id].since_s = time.monotonic()
                self._log.warning("broker changed", broker_id=broker_id, active=broker_id in revived)
            self._managers.stored(managers, forgotten)

    def endpoint(self, broker_id: int | None) -> str | None:
        """Where a live broker answers; None for one that is not alive."""
        broker = self._brokers.get(broker_id) if broker_id is not None else None
        return broker.endpoint if broker is not None and broker.active else None

    def live(self) -> dict[int, str]:
        with self._lock:
            return {b.broker_id: b.endpoint for b in self._brokers.values() if b.active}

    def registered_count(self) -> int:
        return len(self._brokers)

    def endpoints(self, leader: int | None, replicas: Sequence[int]) -> list[str]:
        """Of the live ones among the replicas, the leader's first."""
        found = [self.endpoint(broker_id) for broker_id in catalog.leader_first(leader, replicas)]
        return [endpoint for endpoint in found if endpoint is not None]

    def holdings(self) -> Holdings:
        """What live brokers said they hold; only of those that registered with this process."""
        with self._lock:
            return {b.broker_id: dict(b.held) for b in self._brokers.values() if b.active and b.registered}

    def note_dropped(self, broker_id: int, topic_id: str, partition_id: int) -> None:
        with self._lock:
            if broker_id in self._brokers:
                self._brokers[broker_id].held.pop((topic_id, partition_id), None)

    def incarnation(self, broker_id: int) -> str:
        return self._brokers[broker_id].incarnation

    def settled(self, broker_id: int, for_s: float) -> bool:
        """Active for a while, so that leaders do not follow every hiccup; and heard of just now.

        One that died a moment ago still counts as active, but handing over to it would stop its partitions' writes
        until the leader gives up waiting for it.
        """
        broker = self._brokers.get(broker_id)
        if broker is None or not broker.active:
            return False
        now_s = time.monotonic()
        return now_s - broker.since_s >= for_s and now_s - broker.heard_s <= 1.5 * self._heartbeat_interval_s

    def peers(self) -> list[Peer]:
        with self._lock:
            brokers = sorted(self._brokers.values(), key=lambda broker: broker.broker_id)
            return [{"broker_id": b.broker_id, "raft_address": b.raft_address} for b in brokers if b.raft_address]

    def data_addresses(self) -> list[DataAddress]:
        """Where the load balancer finds the brokers' data planes."""
        with self._lock:
            brokers = sorted(self._brokers.values(), key=lambda broker: broker.broker_id)
            return [
                {"broker_id": b.broker_id, "data_address": b.data_address, "active": b.active}
                for b in brokers
                if b.data_address
            ]

    def median_clock_ms(self) -> int:
        """What most live brokers would say the time is: one whose clock is far from it must not judge ages."""
        with self._lock:
            ahead_s = [b.clock_ahead_s for b in self._brokers.values() if b.active]
        return round((median(ahead_s) + time.monotonic()) * 1000) if ahead_s else time.time_ns() // 1_000_000

    def problem(self) -> str | None:
        return None if self.live() else "no broker is active"


def _age(heard_s: float, now_s: float) -> timedelta:
    return timedelta(seconds=now_s - heard_s)


def _held(reports: Sequence[PartitionReport]) -> dict[tuple[str, int], str]:
    return {(report["topic_id"], report["partition_id"]): report["incarnation"] for report in reports}
