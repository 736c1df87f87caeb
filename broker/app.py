"""The broker put together: storage, Raft driver, partitions, API, registration."""

import asyncio
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from prometheus_client import CollectorRegistry

from broker.append import AppendRoutes
from broker.commands import CommandRoutes
from broker.config import BrokerSettings
from broker.data_plane_access import DataPlaneAccess, GrantCache
from broker.driver import Driver
from broker.fetch import FetchRoutes
from broker.leader_requests import RequestTimeouts
from broker.long_poll import LongPolls
from broker.metrics import Metrics
from broker.offsets import OffsetRoutes
from broker.partitions import Partitions
from broker.peers.transport import Transport
from broker.raft.configuration import MemberId
from broker.raft.context import RaftSettings
from broker.registration import Registration
from broker.replica import Replica
from broker.retention import Retention, SharedClock
from broker.storage.cache import ReadCache
from broker.storage.checkpoints import Checkpoints
from broker.storage.database import Database, StorageRefused, set_meta
from broker.storage.log import Log
from broker.storage.opening import open_database
from broker.storage.pace import Pace
from broker.storage.space import Space, free_bytes_of
from broker.storage.writer import Change, Writer
from broker.tail_cache import TailCache
from myqueue.protocol.errors import RegistrationConflict
from myqueue.protocol.internal import Peer
from myqueue.protocol.limits import MAX_BATCH_BYTES
from service.body_budget import BodyBudget
from service.calls import Caller
from service.flask_app import FlaskApp
from service.lifecycle import Part, Process
from service.listener import Listener, RsgiApp
from service.logs import Log as Logger
from service.logs import configure
from service.operations import Readiness, add_operations
from service.request_observer import RequestObserver
from service.router import Router
from service.scheduler import Scheduler

_UPKEEP_INTERVAL_S = 1.0
_SLOW_DISK_INTERVAL_S = 5.0
_TRANSFER_S = 2.0
_THREAD_SLICE_S = 0.0005
_PREPARED_WAL_BYTES = 16 << 20


class Storage:
    """The file is open from the start, so that the listener never sees half of the partitions."""

    def __init__(self, settings: BrokerSettings, metrics: Metrics, logger: Logger) -> None:
        folder = settings.folder
        self.pace = Pace()

        def observe_commit(seconds: float) -> None:
            metrics.commit_seconds.observe(seconds)
            self.pace.observe(seconds)

        self.database = open_database(
            folder,
            logger,
            read_connections=settings.read_connections,
            observe_commit=observe_commit,
        )
        self.space = Space(None if folder is None else free_bytes_of(folder), settings.disk_reserve_bytes)
        prepared_bytes = min(_PREPARED_WAL_BYTES, settings.checkpoint_wal_bytes)
        if self.space.fits(prepared_bytes):
            self.database.prepare_wal(prepared_bytes)
        self.writer = Writer(
            self.database,
            self.space,
            logger,
            max_waiting=settings.max_waiting_appends,
            max_waiting_bytes=settings.max_waiting_append_bytes,
            max_round_bytes=settings.max_commit_bytes,
            observe_round=metrics.commit_writes.observe,
        )
        self.checkpoints = Checkpoints(self.database, logger, wal_bytes=settings.checkpoint_wal_bytes)
        metrics.bind_storage(lambda: self.writer.waiting, self.space.free_bytes)

    def start(self) -> None:
        self.checkpoints.start()
        self.writer.start()

    def stop(self) -> None:
        self.writer.stop()
        self.checkpoints.stop()
        self.database.close()

    def keep(self, name: str, value: str) -> None:
        self.writer.submit(Change(lambda round_: set_meta(round_.connection, name, value), uses_reserve=True)).result(5)


class RaftService:
    """The Raft driver and its connections to the other brokers."""

    def __init__(
        self, settings: BrokerSettings, storage: Storage, metrics: Metrics, logger: Logger, broker_id: int | None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._storage = storage
        self._logger = logger
        self.transport = Transport(
            host=settings.host,
            port=settings.raft_port,
            broker_id=lambda: self.driver.broker_id,
            secret=settings.cluster_secret.get_secret_value(),
            log=logger,
            on_frame=lambda frame: self.driver.receive(frame),
        )
        self.driver = Driver(
            self._loop,
            storage.writer,
            self.transport.send,
            logger,
            settings=RaftSettings(keys_window=settings.dedupe_window_messages),
        )
        metrics.bind_driver(self.driver.counts)
        metrics.bind_peers(self.transport.counters)
        # As last known: groups elect their leaders also while the write manager is down.
        self._peers: list[Peer] = json.loads(storage.database.meta("peers") or "[]")
        self._connect()
        if broker_id is not None:
            self.driver.begin(broker_id)

    def start(self) -> None:
        asyncio.run_coroutine_threadsafe(self.transport.start(), self._loop).result()

    def stop(self) -> None:
        self.driver.stop()
        asyncio.run_coroutine_threadsafe(self.transport.stop(), self._loop).result()

    def begin(self, broker_id: int) -> None:
        """The id is durable before any frame carries it, and never changes afterwards."""
        if self.driver.broker_id is not None:
            raise RegistrationConflict(f"this is broker {self.driver.broker_id}; it cannot become broker {broker_id}")
        self._storage.keep("broker_id", str(broker_id))
        self.driver.call(lambda: self.driver.begin(broker_id))
        self._connect()

    def set_peers(self, peers: list[Peer]) -> None:
        if peers != self._peers:
            self._storage.keep("peers", json.dumps(peers))
            self._peers = peers
            self._connect()

    def _connect(self) -> None:
        own_id = self.driver.broker_id
        self.transport.set_peers(
            {peer["broker_id"]: peer["raft_address"] for peer in self._peers if peer["broker_id"] != own_id}
        )

    def check_disk_speed(self) -> None:
        if self._storage.pace.is_slow():
            self._logger.warning("the disk is slow; others are asked to lead")
            self.driver.call(self.driver.start_transfers)

    async def transfer_all(self) -> None:
        await self.driver.transfer_all(_TRANSFER_S)


def build(settings: BrokerSettings, logger: Logger) -> tuple[Sequence[Listener], Sequence[Part]]:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    storage = Storage(settings, metrics, logger)
    broker_id = known_broker_id(settings.broker_id, storage.database)
    raft = RaftService(settings, storage, metrics, logger, broker_id)
    driver = raft.driver
    tail_cache = TailCache(settings.read_cache_bytes * 3 // 4)
    cache = ReadCache(settings.read_cache_bytes // 4)
    timeouts = RequestTimeouts(settings.leader_wait_s, settings.append_timeout_s)

    def make_replica(log: Log, me: MemberId) -> Replica:
        return Replica(log, me, driver, cache, tail_cache, storage.writer.check_room, timeouts)

    partitions = Partitions(storage.database, storage.writer, driver, make_replica, logger)
    partitions.load()

    clock = SharedClock()
    scheduler = Scheduler(logger)
    for name, job in (
        ("sweep", partitions.sweep),
        ("repair", partitions.repair),
        ("retention", Retention(partitions.all, clock).run),
        ("snapshots", driver.write_snapshots),
    ):
        scheduler.add(name, _UPKEEP_INTERVAL_S, job)
    scheduler.add("disk", _SLOW_DISK_INTERVAL_S, raft.check_disk_speed)
    secret = settings.cluster_secret.get_secret_value()
    registration = Registration(
        Caller(secret),
        scheduler,
        partitions,
        logger,
        write_manager_url=settings.write_manager_url,
        endpoint=settings.own_endpoint,
        raft_address=settings.own_raft_address,
        data_address=settings.own_data_address,
        broker_id=broker_id,
        incarnation=storage.database.incarnation,
        keep_broker_id=raft.begin,
        set_peers=raft.set_peers,
        clock=clock,
    )
    driver.on_lead = registration.nudge

    pool = ThreadPoolExecutor(settings.read_connections, thread_name_prefix="read")
    long_polls = LongPolls(settings.max_open_requests * 3 // 4)  # the rest stays free for appends
    metrics.bind_partitions(lambda: len(partitions.all()), lambda: len(long_polls))
    access = DataPlaneAccess(lambda: driver.broker_id, partitions, GrantCache(secret))

    observer = RequestObserver(registry, logger)
    internal = Router(logger, observer, flask_app=FlaskApp("broker", threads=settings.threads), secret=secret)
    readiness = Readiness({"registration": registration.problem, "storage": storage.writer.problem})
    add_operations(internal, "broker", readiness, registry)
    data_plane = Router(logger, observer)
    AppendRoutes(partitions, access, pool, metrics).add_to(internal, data_plane)
    FetchRoutes(partitions, access, pool, long_polls, metrics).add_to(internal, data_plane)
    OffsetRoutes(partitions, pool, long_polls, settings.leader_wait_s).add_to(internal)
    CommandRoutes(partitions, driver.run).add_to(internal)
    internal.on_stop(long_polls.stop)
    data_plane.on_stop(long_polls.stop)

    bodies = BodyBudget(settings.max_open_body_bytes)
    internal_app = RsgiApp(
        internal,
        max_on_loop=settings.max_open_requests,
        max_on_threads=settings.threads + settings.max_waiting_requests,
        max_body_bytes=settings.max_body_bytes,
        bodies=bodies,
    )
    data_app = RsgiApp(
        data_plane,
        max_on_loop=settings.max_open_requests,
        max_body_bytes=MAX_BATCH_BYTES,
        bodies=bodies,
        leave_body_bytes=bodies.cluster_share_bytes,
    )
    listeners = [
        Listener(app, settings.host, port, raft.transfer_all)
        for app, port in ((internal_app, settings.port), (data_app, settings.data_port))
    ]
    return listeners, [storage, raft, registration, scheduler]


def known_broker_id(configured: int | None, database: Database) -> int | None:
    """A data file belongs to one broker: under another id it would answer for partitions it does not hold."""
    stored = database.meta("broker_id")
    if configured is not None and stored is not None and int(stored) != configured:
        raise StorageRefused(f"{database.path} belongs to broker {stored}, not to broker {configured}")
    return configured if stored is None else int(stored)


def run(settings: BrokerSettings) -> None:
    # An append changes threads several times; each change would wait for the running thread to use up its time slice.
    sys.setswitchinterval(_THREAD_SLICE_S)
    logger = configure("broker", settings.log_level)
    Process(logger, drain_timeout_s=settings.drain_timeout_s).run(lambda: build(settings, logger))
