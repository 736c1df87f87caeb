"""The brokers: registration, heartbeats with partition reports, and which of them are active."""

import threading
import time
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

from db import broker_registry, catalog
from db.broker_registry import StoredBroker, StoredFolder
from db.catalog import ReplicaStates, Voter
from db.primary import Primary
from myqueue.protocol.errors import BrokerNotFound, MetadataUnavailable, RegistrationConflict
from myqueue.protocol.internal import (
    BrokerHeartbeat,
    BrokerRegistered,
    BrokerRegistration,
    DataAddress,
    PartitionReport,
    Peer,
)
from service.logs import Log
from write_manager.data_folders import DataFolders, check_folder, folder_of
from write_manager.liveness import check_liveness
from write_manager.metadata_cache import CachedPartition, MetadataCache
from write_manager.reconfiguration import ReportedReplica, is_another_group

REGISTRATION_LOCK_S = 1.5  # another registration holds it while it waits for PostgreSQL

ReplicaKey = tuple[str, int]  # topic id, partition id


@dataclass(slots=True)
class Broker:
    row: StoredBroker  # as stored, but for the status
    active: bool
    registered: bool  # with this process: its replicas are known
    last_heartbeat_s: float
    active_since_s: float  # without a break
    clock_ahead_s: float  # of its calendar clock over this process's monotonic one
    replicas: dict[ReplicaKey, ReportedReplica] = field(default_factory=dict)
    stored_active: bool | None = None  # as PostgreSQL has it; None: it may hold something else
    row_in_doubt: bool = False  # a registration had an unknown outcome: another row may be stored

    @property
    def broker_id(self) -> int:
        return self.row.broker_id


@dataclass(frozen=True, slots=True)
class BrokerReplicas:
    """The replicas that one broker reported."""

    incarnation: str  # of the broker's data
    replicas: dict[ReplicaKey, ReportedReplica]


ReplicasByBroker = dict[int, BrokerReplicas]


@dataclass(frozen=True, slots=True)
class BrokerChanges:
    """Changes that are not stored yet."""

    brokers: list[Broker]  # all, as of then
    statuses: list[tuple[Broker, bool]]  # whether each is active
    reports: dict[int, dict[ReplicaKey, PartitionReport]]  # by broker
    new_logs: dict[ReplicaKey, tuple[Voter, ...]]  # the stored rows of these partitions describe another log
    states: dict[ReplicaKey, ReplicaStates]  # partitions whose damaged or voting replicas are others than before
    folders: list[StoredFolder]

    def __bool__(self) -> bool:
        return bool(self.statuses or self.new_logs or self.states or self.folders or any(self.reports.values()))


class Brokers:
    def __init__(
        self, primary: Primary, cache: MetadataCache, log: Log, *, ttl_s: float, heartbeat_interval_s: float
    ) -> None:
        self._primary = primary
        self._cache = cache
        self._log = log
        self._ttl_s = ttl_s
        self.heartbeat_interval_s = heartbeat_interval_s
        self._lock = threading.RLock()  # of the state in memory: never held during a wait for PostgreSQL
        self._registering = threading.Lock()  # one registration is stored at a time
        self._brokers: dict[int, Broker] = {}
        self._swept_s = 0.0
        self._reports: dict[int, dict[ReplicaKey, PartitionReport]] = {}
        self._new_logs: dict[ReplicaKey, tuple[Voter, ...]] = {}
        self._restated: set[ReplicaKey] = set()
        self._folders = DataFolders()

    def load(self) -> None:
        """Active brokers get a fresh time to live: this process has not received their heartbeats yet."""
        now_s = time.monotonic()
        with self._primary.reading() as session:
            rows = broker_registry.brokers(session)
            folders = broker_registry.folders(session)
        with self._lock:
            self._swept_s = now_s
            self._folders.load(folders, now_s)
            for row in rows:
                active = row.status == "active"
                self._brokers[row.broker_id] = Broker(
                    row, active, False, now_s, now_s, time.time() - now_s, stored_active=active
                )

    def register(self, request: BrokerRegistration) -> BrokerRegistered:
        """A broker that returns unchanged is used at once; any change of its row has to be stored first.

        What its data folder counts is stored later: a restart is not to wait for PostgreSQL.
        """
        with self._lock:
            self._folders.check(folder_of(request, 0))
            row = self._unchanged_row(request)
            if row is not None:
                self._activate(row, request)
        if row is None:
            if not self._registering.acquire(timeout=REGISTRATION_LOCK_S):
                raise MetadataUnavailable("another broker's registration takes too long", outcome="not_written")
            try:
                row = self._store_registration(request)
                with self._lock:
                    self._activate(row, request)
            finally:
                self._registering.release()
        self._log.info("broker registered", broker_id=row.broker_id, endpoint=request["endpoint"])
        return {
            "status": "success",
            "broker_id": row.broker_id,
            "heartbeat_interval_s": self.heartbeat_interval_s,
            "peers": self.peers(),
            "clock_ms": self.median_clock_ms(),
        }

    def _unchanged_row(self, request: BrokerRegistration) -> StoredBroker | None:
        for broker in self._brokers.values():
            if broker.row == _row(request, broker.broker_id, broker.row.status) and not broker.row_in_doubt:
                return broker.row if request["broker_id"] in (None, broker.broker_id) else None
        return None

    def _store_registration(self, request: BrokerRegistration) -> StoredBroker:
        """Decides by the stored rows: a registration of unknown outcome is not known in memory."""
        with self._lock:
            active = {broker.broker_id for broker in self._brokers.values() if broker.active}
        try:
            with self._primary.transaction() as transaction:
                known = {row.broker_id: row for row in broker_registry.brokers(transaction.session)}
                broker_id = identify_broker(request, list(known.values()), active)
                if broker_id is None:
                    broker_id = broker_registry.next_broker_id(transaction.session)
                check_folder(
                    folder_of(request, broker_id), broker_registry.folder(transaction.session, request["incarnation"])
                )
                row = _row(request, broker_id, "active")
                before = known.get(broker_id)
                if before is not None and before.incarnation != row.incarnation:
                    catalog.remove_voter(transaction.session, broker_id)
                broker_registry.save_broker(transaction.session, row)
        except MetadataUnavailable as error:
            if error.outcome == "unknown":
                with self._lock:
                    for broker in self._brokers.values():
                        if broker.broker_id == request["broker_id"] or broker.row.endpoint == request["endpoint"]:
                            broker.row_in_doubt = True
            raise
        return row

    def _activate(self, row: StoredBroker, request: BrokerRegistration) -> None:
        now_s = time.monotonic()
        known = self._brokers.get(row.broker_id)
        if known is not None and known.row.incarnation != row.incarnation:
            self._log.warning("broker lost its data", broker_id=row.broker_id)
            for partition in self._partitions():
                if partition.leader == row.broker_id:
                    partition.leader = None
        # This transaction and one that stores statuses may have committed in any order: the status is stored again.
        broker = Broker(row, True, True, now_s, now_s, request["clock_ms"] / 1000 - now_s)
        self._brokers[row.broker_id] = broker
        self._folders.registered(folder_of(request, row.broker_id))
        self._reports[row.broker_id] = {}  # reports that are not stored yet are older than these
        self._apply_reports(broker, request["partitions"])
        for topic in list(self._cache.topics.values()):
            for partition in topic.partitions:
                key = (str(topic.topic_id), partition.partition_id)
                if key not in broker.replicas:
                    self._set_damage(key, partition, row.broker_id, None)
                self._set_voters(key, partition)

    def _partitions(self) -> Iterator[CachedPartition]:
        for topic in list(self._cache.topics.values()):
            yield from topic.partitions

    def damaged_count(self) -> int:
        return sum(len(partition.damaged) for partition in self._partitions())

    def _set_damage(self, key: ReplicaKey, partition: CachedPartition, broker_id: int, damage: str | None) -> None:
        if partition.damaged.get(broker_id) == damage:
            return
        others = {b: why for b, why in partition.damaged.items() if b != broker_id}
        partition.damaged = others if damage is None else {**others, broker_id: damage}
        self._restated.add(key)

    def _set_voters(self, key: ReplicaKey, partition: CachedPartition) -> None:
        """A member votes if its broker holds that very replica; one that lost its data is a member until removed."""
        if partition.configuration is None:
            return
        voters = []
        for member in partition.configuration["voters"]:
            broker = self._brokers.get(member["broker_id"])
            replica = None if broker is None else broker.replicas.get(key)
            if replica is not None and replica.incarnation == member["incarnation"]:
                voters.append(member["broker_id"])
        if voters != partition.voters:
            partition.voters = voters
            self._restated.add(key)

    def heartbeat(self, broker_id: int, request: BrokerHeartbeat) -> None:
        with self._lock:
            broker = self._brokers.get(broker_id)
            if broker is None or not broker.registered or broker.row.incarnation != request["incarnation"]:
                raise BrokerNotFound()
            if not self._folders.is_registered(request["incarnation"], request.get("session")):
                raise BrokerNotFound()  # it registers again, which refutes one of the two
            self._folders.advanced(request["incarnation"], request.get("sequence"))
            broker.last_heartbeat_s = time.monotonic()
            broker.clock_ahead_s = request["clock_ms"] / 1000 - broker.last_heartbeat_s
            if not broker.active:
                self._set_active(broker, True)
            self._apply_reports(broker, request["partitions"])

    def _set_active(self, broker: Broker, active: bool) -> None:
        """At once in memory, stored later: a broker that is back is used even while PostgreSQL is away."""
        broker.active, broker.active_since_s = active, time.monotonic()
        self._log.warning("broker changed", broker_id=broker.broker_id, active=active)

    def _apply_reports(self, broker: Broker, reports: Sequence[PartitionReport]) -> None:
        """Reports of leaders count at once in memory and are stored later."""
        unstored = self._reports.setdefault(broker.broker_id, {})
        for report in reports:
            key = (report["topic_id"], report["partition_id"])
            before, broker.replicas[key] = broker.replicas.get(key), ReportedReplica.of(report)
            unstored[key] = report
            topic = self._cache.topics_by_id.get(report["topic_id"])
            if topic is None or report["partition_id"] >= len(topic.partitions):
                continue
            partition = topic.partitions[report["partition_id"]]
            made_again = before is not None and before.incarnation != report["incarnation"]
            damage = report.get("damaged")
            self._set_damage(key, partition, broker.broker_id, damage)
            if (made_again or damage is not None) and partition.leader == broker.broker_id:
                partition.leader = None
            if report["role"] != "leader":
                self._set_voters(key, partition)
                continue
            if is_another_group(partition.configuration, report["configuration"]):
                self._log.error("another log is served", topic=topic.name, partition=partition.partition_id)
                partition.reset(partition.initial_voters)
                self._new_logs[key] = partition.initial_voters
            if report["term"] < partition.term or _is_overtaken(report, partition):
                continue
            partition.leader, partition.term = broker.broker_id, report["term"]
            partition.configuration = report["configuration"]
            self._set_voters(key, partition)
            partition.learn_bounds(report["beginning_offset"], report["end_offset"])
            partition.size_bytes = report["size_bytes"]

    def sweep(self) -> None:
        """Expire brokers. In memory only: a wait for PostgreSQL would look like a pause of this process."""
        with self._lock:
            now_s, last_s = time.monotonic(), self._swept_s
            self._swept_s = now_s
            active = {b.broker_id: b.last_heartbeat_s for b in self._brokers.values() if b.active}
            liveness = check_liveness(active, now_s, last_s, self._ttl_s)
            for broker_id, last_heartbeat_s in liveness.last_heartbeats_s.items():
                self._brokers[broker_id].last_heartbeat_s = last_heartbeat_s
            for broker_id in liveness.expired:
                self._set_active(self._brokers[broker_id], False)

    def take_changes(self) -> BrokerChanges:
        """The caller stores them, then calls `changes_stored` or `put_back`."""
        with self._lock:
            brokers = list(self._brokers.values())
            statuses = [(broker, broker.active) for broker in brokers if broker.active != broker.stored_active]
            for broker, _ in statuses:  # until the commit is known, either value may be in PostgreSQL
                broker.stored_active = None
            reports, self._reports = self._reports, {}
            new_logs, self._new_logs = self._new_logs, {}
            restated, self._restated = self._restated, set()
            states = {key: state for key in restated if (state := self._states_of(key)) is not None}
            folders = self._folders.take_changes(time.monotonic())
        return BrokerChanges(brokers, statuses, reports, new_logs, states, folders)

    def _states_of(self, key: ReplicaKey) -> ReplicaStates | None:
        topic = self._cache.topics_by_id.get(key[0])
        if topic is None or key[1] >= len(topic.partitions):
            return None
        partition = topic.partitions[key[1]]
        return ReplicaStates(partition.damaged, partition.voters)

    def changes_stored(self, changes: BrokerChanges) -> None:
        with self._lock:
            for broker, active in changes.statuses:
                broker.stored_active = active

    def put_back(self, changes: BrokerChanges) -> None:
        """They are stored again, unless a newer report or registration has arrived."""
        with self._lock:
            self._new_logs = changes.new_logs | self._new_logs
            self._restated.update(changes.states)
            self._folders.put_back(changes.folders)
            for broker in changes.brokers:
                if self._brokers.get(broker.broker_id) is broker:
                    before = changes.reports.get(broker.broker_id, {})
                    self._reports[broker.broker_id] = before | self._reports.get(broker.broker_id, {})

    def known(self) -> list[Broker]:
        with self._lock:
            return sorted(self._brokers.values(), key=lambda broker: broker.broker_id)

    def endpoint(self, broker_id: int | None) -> str | None:
        """None when the broker is not active."""
        broker = self._brokers.get(broker_id) if broker_id is not None else None
        return broker.row.endpoint if broker is not None and broker.active else None

    def active_ids(self) -> set[int]:
        with self._lock:
            return {b.broker_id for b in self._brokers.values() if b.active}

    def registered_count(self) -> int:
        return len(self._brokers)

    def endpoints(self, leader: int | None, replicas: Sequence[int]) -> list[str]:
        """Of the active brokers among the replicas, the leader's first."""
        found = [self.endpoint(broker_id) for broker_id in catalog.leader_first(leader, replicas)]
        return [endpoint for endpoint in found if endpoint is not None]

    def replicas(self) -> ReplicasByBroker:
        """Of the active brokers that registered with this process."""
        with self._lock:
            known = [broker for broker in self._brokers.values() if broker.active and broker.registered]
            return {b.broker_id: BrokerReplicas(b.row.incarnation, dict(b.replicas)) for b in known}

    def unreported_ids(self) -> set[int]:
        """Active brokers that have not registered with this process yet: their replicas are not known."""
        return self.active_ids() - self.replicas().keys()

    def replica_deleted(self, broker_id: int, topic_id: str, partition_id: int) -> None:
        with self._lock:
            if broker_id in self._brokers:
                self._brokers[broker_id].replicas.pop((topic_id, partition_id), None)

    def is_settled(self, broker_id: int, for_s: float) -> bool:
        """Active for a while, so that short outages do not move leadership; with a recent heartbeat.

        One that died a moment ago still counts as active, but a leadership transfer to it would stop its partitions'
        writes until the leader cancels it.
        """
        broker = self._brokers.get(broker_id)
        if broker is None or not broker.active:
            return False
        now_s = time.monotonic()
        is_recent = now_s - broker.last_heartbeat_s <= 1.5 * self.heartbeat_interval_s
        return now_s - broker.active_since_s >= for_s and is_recent

    def peers(self) -> list[Peer]:
        return [
            {"broker_id": broker.broker_id, "raft_address": broker.row.raft_address}
            for broker in self.known()
            if broker.row.raft_address
        ]

    def data_addresses(self) -> list[DataAddress]:
        """For the load balancer's routes to the data planes."""
        return [
            {"broker_id": broker.broker_id, "data_address": broker.row.data_address, "active": broker.active}
            for broker in self.known()
            if broker.row.data_address
        ]

    def median_clock_ms(self) -> int:
        """The median clock of the active brokers: one whose clock is far from it must not cut by time."""
        with self._lock:
            ahead_s = [b.clock_ahead_s for b in self._brokers.values() if b.active]
        return round((median(ahead_s) + time.monotonic()) * 1000) if ahead_s else time.time_ns() // 1_000_000

    def problem(self) -> str | None:
        return None if self.active_ids() else "no broker is active"


def _row(request: BrokerRegistration, broker_id: int, status: str) -> StoredBroker:
    return StoredBroker(
        broker_id,
        request["endpoint"],
        request["raft_address"],
        request.get("data_address", ""),
        request["hostname"],
        request["incarnation"],
        status,
    )


def identify_broker(request: BrokerRegistration, stored: Sequence[StoredBroker], active: Container[int]) -> int | None:
    """An id belongs to the broker with its incarnation or its endpoint; another active owner keeps it. None: new."""
    by_endpoint = next((row for row in stored if row.endpoint == request["endpoint"]), None)
    wanted = request["broker_id"]
    if wanted is None:
        return None if by_endpoint is None else by_endpoint.broker_id
    if by_endpoint is not None and by_endpoint.broker_id != wanted:
        raise RegistrationConflict(f"{request['endpoint']} is broker {by_endpoint.broker_id}")
    known = next((row for row in stored if row.broker_id == wanted), None)
    same = known is None or known.incarnation == request["incarnation"] or known.endpoint == request["endpoint"]
    if known is not None and not same and wanted in active:
        raise RegistrationConflict(f"broker {wanted} is alive at {known.endpoint}")
    return wanted


def _is_overtaken(report: PartitionReport, partition: CachedPartition) -> bool:
    """A report that came late: the leader of this term has changed the members since."""
    known, reported = partition.configuration, report["configuration"]
    if report["term"] != partition.term or known is None or reported is None:
        return False
    return reported["index"] < known["index"]
