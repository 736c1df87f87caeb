"""The broker put together: storage, Raft driver, partitions, API, heartbeat."""

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from prometheus_client import CollectorRegistry

from broker.append import AppendRoutes
from broker.command_fence import CommandFence
from broker.commands import CommandRoutes
from broker.config import BrokerSettings
from broker.confirmation import FolderCheck
from broker.data_plane_access import DataPlaneAccess, GrantCache
from broker.fetch import FetchRoutes
from broker.heartbeat import WriteManagerHeartbeat
from broker.leader_requests import RequestTimeouts
from broker.long_poll import LongPolls
from broker.metrics import Metrics
from broker.offsets import OffsetRoutes
from broker.partitions import Partitions
from broker.raft.configuration import MemberId
from broker.raft_service import RaftService, Storage
from broker.replica import Replica
from broker.retention import Retention, SharedClock
from broker.storage.cache import ReadCache
from broker.storage.partition_log import PartitionLog
from broker.tail_cache import TailCache
from myqueue.protocol.limits import MAX_BATCH_BYTES
from service.active_manager import ManagerCaller, WriteManagerFollower
from service.body_budget import BodyBudget
from service.calls import Caller
from service.flask_app import FlaskApp
from service.http_app import HttpApp
from service.lifecycle import Part, Process
from service.listener import Listener
from service.logs import Log as Logger
from service.logs import configure
from service.operations import Readiness, add_operations
from service.request_observer import RequestObserver
from service.router import Router
from service.scheduler import Scheduler

_UPKEEP_INTERVAL_S = 1.0
_SLOW_DISK_INTERVAL_S = 5.0
_THREAD_SLICE_S = 0.0005


def build(settings: BrokerSettings, logger: Logger) -> tuple[Sequence[Listener], Sequence[Part]]:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    storage = Storage(settings, metrics, logger)
    broker_id = storage.store.broker_id
    folder_check = FolderCheck(storage.store, logger)
    raft = RaftService(settings, storage, folder_check, metrics, logger, broker_id)
    driver = raft.driver
    tail_cache = TailCache(settings.read_cache_bytes * 3 // 4)
    cache = ReadCache(settings.read_cache_bytes // 4)
    timeouts = RequestTimeouts(settings.leader_wait_s, settings.append_timeout_s)

    def make_replica(log: PartitionLog, me: MemberId) -> Replica:
        return Replica(log, me, driver, cache, tail_cache, storage.writer.check_room, timeouts)

    partitions = Partitions(storage.store, storage.writer, driver, make_replica, logger)
    partitions.load()
    storage.on_damage = partitions.damaged
    folder_check.bind(partitions)

    fence = CommandFence(storage.store.command_epoch, storage.keep_command_epoch)
    clock = SharedClock()
    scheduler = Scheduler(logger)
    for name, job in (
        ("folder", folder_check.check),
        ("aside", partitions.remove_aside),
        ("disk space", driver.check_disk_space),
        ("retention", Retention(partitions.all, clock).run),
        ("snapshots", driver.write_snapshots),
    ):
        scheduler.add(name, _UPKEEP_INTERVAL_S, job)
    scheduler.add("disk", _SLOW_DISK_INTERVAL_S, raft.check_disk_speed)
    secret = settings.cluster_secret.get_secret_value()
    heartbeat = WriteManagerHeartbeat(
        ManagerCaller(Caller(secret), WriteManagerFollower(settings.write_manager_urls)),
        scheduler,
        partitions,
        logger,
        endpoint=settings.own_endpoint,
        raft_address=settings.own_raft_address,
        data_address=settings.own_data_address,
        broker_id=broker_id,
        folder=folder_check.folder,
        found_sequence=storage.found_sequence,
        sequence=lambda: storage.journal.sequence,
        keep_broker_id=raft.begin,
        set_peers=raft.set_peers,
        registered=folder_check.registered,
        refuted=folder_check.refuted,
        unreachable=folder_check.unreachable,
        clock=clock,
        fence=fence,
    )
    driver.on_lead = heartbeat.send_soon
    partitions.on_damage = heartbeat.send_soon

    readers = ThreadPoolExecutor(settings.read_threads, thread_name_prefix="read")
    validators = ThreadPoolExecutor(settings.validate_threads, thread_name_prefix="validate")
    long_polls = LongPolls(settings.max_open_requests * 3 // 4)  # the rest stays free for appends
    metrics.bind_partitions(lambda: len(partitions.all()), lambda: len(long_polls))
    access = DataPlaneAccess(lambda: driver.broker_id, partitions, GrantCache(secret))

    observer = RequestObserver(registry, logger)
    internal = Router(logger, observer, flask_app=FlaskApp("broker", threads=settings.threads), secret=secret)
    readiness = Readiness({"registration": heartbeat.problem, "storage": storage.problem})
    add_operations(internal, "broker", readiness, registry)
    data_plane = Router(logger, observer)
    AppendRoutes(partitions, access, validators, metrics, observer, logger).add_to(internal, data_plane)
    FetchRoutes(partitions, access, readers, long_polls, metrics).add_to(internal, data_plane)
    OffsetRoutes(partitions, readers, long_polls, settings.leader_wait_s).add_to(internal)
    CommandRoutes(partitions, driver.run, fence).add_to(internal)
    internal.on_stop(long_polls.stop)
    data_plane.on_stop(long_polls.stop)

    bodies = BodyBudget(settings.max_open_body_bytes)
    internal_app = HttpApp(
        internal,
        max_on_loop=settings.max_open_requests,
        max_on_threads=settings.threads + settings.max_waiting_requests,
        max_body_bytes=settings.max_body_bytes,
        bodies=bodies,
    )
    data_app = HttpApp(
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
    # Started in this order, stopped in reverse.
    return listeners, [storage, raft, heartbeat, scheduler]


def run(settings: BrokerSettings) -> None:
    # An append changes threads several times; each change would wait for the running thread to use up its time slice.
    sys.setswitchinterval(_THREAD_SLICE_S)
    logger = configure("broker", settings.log_level)
    Process(logger, drain_timeout_s=settings.drain_timeout_s).run(lambda: build(settings, logger))
