"""Which brokers and read managers there are, and which of them are alive."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from statistics import median
from uuid import UUID

from db import broker_registry, catalog
from db.broker_registry import StoredBroker
from db.catalog import Founder
from db.primary import Primary
from myqueue.protocol.errors import BrokerNotFound, MetadataUnavailable
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
from write_manager.broker_identity import identify, row_of
from write_manager.directory import Directory, Partition
from write_manager.liveness import judge
from write_manager.members import HeldReplica, is_another_group
from write_manager.read_managers import ReadManagers, check_name

STAMP_INTERVAL_S = 5.0
WAIT_S = 1.5  # for another registration, which waits for PostgreSQL


@dataclass(slots=True)
class Broker:
    row: StoredBroker  # as stored, but for the status
    active: bool
    registered: bool  # in the lifetime of this process: its partitions are known
    heard_s: float
    since_s: float  # it has been active without a break
    clock_ahead_s: float  # of its calendar clock over this process's monotonic one
    held: dict[tuple[str, int], HeldReplica] = field(default_factory=dict)
    stored_active: bool | None = None  # as PostgreSQL has it; None: it may hold something else
    row_in_doubt: bool = False  # a registration had an unknown outcome: another row may be stored

    @property
    def broker_id(self) -> int:
        return self.row.broker_id


@dataclass(frozen=True, slots=True)
class Holding:
    incarnation: str  # of the broker's data
    replicas: dict[tuple[str, int], HeldReplica]


Holdings = dict[int, Holding]


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
        self._lock = threading.RLock()  # of what is in memory: never held while anything waits for PostgreSQL
        self._registering = threading.Lock()  # one registration is stored at a time
        self._storing = threading.Lock()  # what brokers reported is stored by one transaction at a time
        self._brokers: dict[int, Broker] = {}
        self._managers = ReadManagers(ttl_s)
        self._swept_s = 0.0
        self._stamped_s = 0.0
        self._reports: dict[int, dict[tuple[str, int], PartitionReport]] = {}
        self._new_logs: dict[tuple[str, int], tuple[Founder, ...]] = {}  # what is stored of them is of another log

    def load(self) -> None:
        """Who was active gets a fresh time to live: this process has not listened to it yet."""
        now_s = time.monotonic()
        with self._primary.reading() as session:
            rows, managers = broker_registry.brokers(session), broker_registry.managers(session)
        with self._lock:
            self._swept_s = now_s
            self._managers.load(managers, now_s)
            for row in rows:
                active = row.status == "active"
                self._brokers[row.broker_id] = Broker(
                    row, active, False, now_s, now_s, time.time() - now_s, stored_active=active
                )

    def register(self, request: BrokerRegistration) -> BrokerRegistered:
        """A broker that comes back as it was is used at once; anything new about it has to be stored first."""
        self._networks.check_endpoint(request["endpoint"])
        if request.get("data_address"):
            self._networks.check_data_address(request["data_address"])
        with self._lock:
            row = self._returning(request)
            if row is not None:
                self._admit(row, request)
        if row is None:
            if not self._registering.acquire(timeout=WAIT_S):
                raise MetadataUnavailable("another broker's registration takes too long", outcome="not_written")
            try:
                row = self._store_registration(request)
                with self._lock:
                    self._admit(row, request)
            finally:
                self._registering.release()
        self._log.info("broker registered", broker_id=row.broker_id, endpoint=request["endpoint"])
        return {
            "status": "success",
            "broker_id": row.broker_id,
            "heartbeat_interval_s": self._heartbeat_interval_s,
            "peers": self.peers(),
            "clock_ms": self.median_clock_ms(),
        }

    def _returning(self, request: BrokerRegistration) -> StoredBroker | None:
        """What is stored of the broker, if that is what it says of itself."""
        for broker in self._brokers.values():
            if broker.row == row_of(request, broker.broker_id, broker.row.status) and not broker.row_in_doubt:
                return broker.row if request["broker_id"] in (None, broker.broker_id) else None
        return None

    def _store_registration(self, request: BrokerRegistration) -> StoredBroker:
        """Decides by what is stored: of a registration with an unknown outcome nothing is known here."""
        with self._lock:
            active = {broker.broker_id for broker in self._brokers.values() if broker.active}
        try:
            with self._primary.transaction() as transaction:
                broker_id = identify(request, broker_registry.brokers(transaction.session), active)
                if broker_id is None:
                    broker_id = broker_registry.next_broker_id(transaction.session)
                row = row_of(request, broker_id, "active")
                broker_registry.save_broker(transaction.session, row)
        except MetadataUnavailable as error:
            if error.outcome == "unknown":
                with self._lock:
                    for broker in self._brokers.values():
                        if broker.broker_id == request["broker_id"] or broker.row.endpoint == request["endpoint"]:
                            broker.row_in_doubt = True
            raise
        return row

    def _admit(self, row: StoredBroker, request: BrokerRegistration) -> None:
        now_s = time.monotonic()
        known = self._brokers.get(row.broker_id)
        if known is not None and known.row.incarnation != row.incarnation:
            self._log.warning("broker lost its data", broker_id=row.broker_id)
            for partition in self._partitions():
                if partition.leader == row.broker_id:
                    partition.leader = None
        # Its transaction and one that stores who died may have committed in any order: the status is stored again.
        broker = Broker(row, True, True, now_s, now_s, request["clock_ms"] / 1000 - now_s)
        self._brokers[row.broker_id] = broker
        self._reports[row.broker_id] = {}  # what is not stored yet is older than what it says now
        self._take_in(broker, request["partitions"])

    def _partitions(self) -> Iterator[Partition]:
        for topic in list(self._directory.topics.values()):
            yield from topic.partitions

    def heartbeat(self, broker_id: int, request: BrokerHeartbeat) -> None:
        with self._lock:
            broker = self._brokers.get(broker_id)
            if broker is None or not broker.registered or broker.row.incarnation != request["incarnation"]:
                raise BrokerNotFound()
            broker.heard_s = time.monotonic()
            broker.clock_ahead_s = request["clock_ms"] / 1000 - broker.heard_s
            if not broker.active:
                self._set_active(broker, True)
            self._take_in(broker, request["partitions"])

    def _set_active(self, broker: Broker, active: bool) -> None:
        """At once in memory, stored when PostgreSQL takes it: whoever is back is used, whatever PostgreSQL does."""
        broker.active, broker.since_s = active, time.monotonic()
        self._log.warning("broker changed", broker_id=broker.broker_id, active=active)

    def _take_in(self, broker: Broker, reports: Sequence[PartitionReport]) -> None:
        """Leaders' words about their partitions: at once in memory, stored later."""
        waiting = self._reports.setdefault(broker.broker_id, {})
        for report in reports:
            key = (report["topic_id"], report["partition_id"])
            before, broker.held[key] = broker.held.get(key), HeldReplica.of(report)
            waiting[key] = report
            topic = self._directory.topics_by_id.get(report["topic_id"])
            if topic is None or report["partition_id"] >= len(topic.partitions):
                continue
            partition = topic.partitions[report["partition_id"]]
            made_again = before is not None and before.incarnation != report["incarnation"]
            if made_again and partition.leader == broker.broker_id:
                partition.leader = None
            if report["role"] != "leader":
                continue
            if is_another_group(partition.configuration, report["configuration"]):
                self._log.error("another log is served", topic=topic.name, partition=partition.partition_id)
                partition.found(partition.founders)
                self._new_logs[key] = partition.founders
            if report["term"] < partition.term:
                continue
            partition.leader, partition.term = broker.broker_id, report["term"]
            partition.configuration = report["configuration"]
            partition.learn_bounds(report["beginning_offset"], report["end_offset"])
            partition.size_bytes = report["size_bytes"]

    def knows_manager(self, name: str, endpoint: str) -> bool:
        with self._lock:
            return self._managers.endpoint(name) == endpoint

    def manager_heartbeat(self, request: ManagerHeartbeat) -> None:
        name, endpoint, before = request["name"], request["endpoint"], None
        check_name(name)
        if not self.knows_manager(name, endpoint):  # outside the lock: names may take long to resolve
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
            active = self._managers.active()
        return [{"name": manager.name, "endpoint": manager.endpoint} for manager in active]

    def sweep(self) -> None:
        """Who has died. In memory alone: a sweep that waited for PostgreSQL would look like a pause of this process."""
        with self._lock:
            now_s, last_s = time.monotonic(), self._swept_s
            self._swept_s = now_s
            alive = {b.broker_id: b.heard_s for b in self._brokers.values() if b.active}
            verdict = judge(alive, now_s, last_s, self._ttl_s)
            for broker_id, heard_s in verdict.heard_s.items():
                self._brokers[broker_id].heard_s = heard_s
            for broker_id in verdict.died:
                self._set_active(self._brokers[broker_id], False)
            for name in self._managers.sweep(now_s, last_s):
                self._log.warning("read manager is silent", name=name)

    @contextmanager
    def storing(self) -> Iterator[None]:
        """Nothing that brokers reported before is stored after this."""
        with self._storing:
            yield

    def store(self) -> None:
        """Stores changes: who died or came back, what leaders reported, and now and then the heartbeats' time."""
        with self._storing:
            self._store_changes()

    def _store_changes(self) -> None:
        now_s, now = time.monotonic(), datetime.now(UTC)
        with self._lock:
            stamp = now_s - self._stamped_s >= STAMP_INTERVAL_S
            known = list(self._brokers.values())
            changed = [(broker, broker.active) for broker in known if broker.active != broker.stored_active]
            heard = [b.broker_id for b in known if b.active and now_s - b.heard_s <= self._ttl_s]
            managers, forgotten = self._managers.to_store(stamp=stamp), self._managers.to_forget(now_s)
            if not (changed or managers or forgotten or stamp or any(self._reports.values())):
                return
            for broker, _ in changed:  # until it is known to have committed, either value may be in PostgreSQL
                broker.stored_active = None
            self._managers.storing(managers, forgotten)
            reports, self._reports = self._reports, {}
            new_logs, self._new_logs = self._new_logs, {}
        names = {topic_id: topic.name for topic_id, topic in list(self._directory.topics_by_id.items())}
        try:
            with self._primary.transaction() as transaction:
                session = transaction.session
                for broker, active in changed:
                    broker_registry.set_broker_status(session, broker.broker_id, "active" if active else "inactive")
                for (topic_id, partition_id), founders in new_logs.items():
                    catalog.found_again(session, UUID(topic_id), partition_id, founders, founders)
                catalog.record_reports(
                    session, names, {b: by_partition.values() for b, by_partition in reports.items()}
                )
                for manager in managers:
                    status, when = ("active" if manager.active else "inactive"), now - _age(manager.heard_s, now_s)
                    broker_registry.save_manager(session, manager.name, manager.endpoint, status, when)
                if forgotten:
                    broker_registry.forget_managers(session, forgotten)
                if stamp:
                    broker_registry.stamp_brokers(session, heard, now)
        except Exception:
            with self._lock:  # stored again, unless something newer has come in meanwhile
                self._new_logs = new_logs | self._new_logs
                for broker in known:
                    if self._brokers.get(broker.broker_id) is broker:
                        before = reports.get(broker.broker_id, {})
                        self._reports[broker.broker_id] = before | self._reports.get(broker.broker_id, {})
            raise
        with self._lock:
            for broker, active in changed:
                broker.stored_active = active
            self._managers.stored(managers, forgotten)
        if stamp:
            self._stamped_s = now_s

    def endpoint(self, broker_id: int | None) -> str | None:
        """Where a live broker answers; None for one that is not alive."""
        broker = self._brokers.get(broker_id) if broker_id is not None else None
        return broker.row.endpoint if broker is not None and broker.active else None

    def live(self) -> dict[int, str]:
        with self._lock:
            return {b.broker_id: b.row.endpoint for b in self._brokers.values() if b.active}

    def registered_count(self) -> int:
        return len(self._brokers)

    def endpoints(self, leader: int | None, replicas: Sequence[int]) -> list[str]:
        """Of the live ones among the replicas, the leader's first."""
        found = [self.endpoint(broker_id) for broker_id in catalog.leader_first(leader, replicas)]
        return [endpoint for endpoint in found if endpoint is not None]

    def holdings(self) -> Holdings:
        """What live brokers said they hold; only of those that registered with this process."""
        with self._lock:
            known = [broker for broker in self._brokers.values() if broker.active and broker.registered]
            return {b.broker_id: Holding(b.row.incarnation, dict(b.held)) for b in known}

    def note_dropped(self, broker_id: int, topic_id: str, partition_id: int) -> None:
        with self._lock:
            if broker_id in self._brokers:
                self._brokers[broker_id].held.pop((topic_id, partition_id), None)

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
            return [
                {"broker_id": b.broker_id, "raft_address": b.row.raft_address} for b in brokers if b.row.raft_address
            ]

    def data_addresses(self) -> list[DataAddress]:
        """Where the load balancer finds the brokers' data planes."""
        with self._lock:
            brokers = sorted(self._brokers.values(), key=lambda broker: broker.broker_id)
            return [
                {"broker_id": b.broker_id, "data_address": b.row.data_address, "active": b.active}
                for b in brokers
                if b.row.data_address
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
