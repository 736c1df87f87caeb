"""The composition root of a read manager."""

import asyncio
from collections.abc import Sequence

from prometheus_client import CollectorRegistry

from db.standby import Standby
from myqueue.protocol import batch
from myqueue.protocol.internal import ScrapeTarget
from myqueue.protocol.routes import ROUTES
from read_manager.answer_cache import AnswerCache
from read_manager.browse import BrowseHandler
from read_manager.cluster import READ_INTERVAL_S, ClusterHandler
from read_manager.config import ReadManagerSettings
from read_manager.console_page import Console
from read_manager.consume import ConsumeHandler
from read_manager.consumer_explain import ExplainHandler
from read_manager.delivery_reports import DeliveryReporter
from read_manager.docs_page import add_docs
from read_manager.federation import Federation
from read_manager.heartbeat import Heartbeat
from read_manager.lag import LagHandler
from read_manager.leader_offsets import LeaderOffsets
from read_manager.lease_watch import LeaseWatch
from read_manager.long_poll import LongPolls
from read_manager.memory_budget import MemoryBudget
from read_manager.metadata import Metadata, MetadataHandler
from read_manager.metadata_cache import MetadataCache
from read_manager.metrics import register_metrics
from read_manager.overview_collector import OverviewCollector
from read_manager.partitions import PartitionsHandler
from read_manager.poll import PollHandler
from read_manager.ranges import RangeHandler
from read_manager.replica_fetch import ReplicaFetcher
from read_manager.shared_reads import SharedReads
from read_manager.topic_events import TopicEventsHandler
from read_manager.write_manager_client import AsyncWriteManagerClient, WriteManagerClient
from service import logs
from service.active_manager import FOLLOW_INTERVAL_S, AsyncManagerCaller, ManagerCaller, WriteManagerFollower
from service.async_calls import AsyncCaller
from service.body_budget import BodyBudget
from service.calls import Caller
from service.flask_app import FlaskApp
from service.http_app import HttpApp
from service.lifecycle import Part, Process
from service.listener import Listener
from service.operations import Readiness, add_operations
from service.request_observer import RequestObserver
from service.router import Router
from service.scheduler import Scheduler

MAX_WATCHED_TOPICS = 1000
PROBE_INTERVAL_S = 1.0  # of the database servers


def run(settings: ReadManagerSettings) -> None:
    log = logs.configure(settings.own_name, settings.log_level)
    Process(log, drain_timeout_s=settings.drain_timeout_s).run(lambda: build(settings, log))


def build(settings: ReadManagerSettings, log: logs.Log) -> tuple[Sequence[Listener], Sequence[Part]]:
    secret = settings.cluster_secret.get_secret_value()
    batch.encode_body([batch.Message(b"")])  # pyarrow's first array is slow: make it before requests wait for it
    standby = Standby(settings.database, settings.own_name)
    active = WriteManagerFollower(settings.write_manager_urls)
    managers = ManagerCaller(Caller(secret), active)
    write_manager = WriteManagerClient(managers)
    metadata = Metadata(standby, write_manager, replay_timeout_s=settings.replay_patience_s)
    scheduler = Scheduler(log)
    heartbeat = Heartbeat(
        write_manager, scheduler, log, settings.own_name, settings.own_endpoint, leave_s=settings.leave_s
    )
    heartbeat.schedule()
    scheduler.add("standbys", PROBE_INTERVAL_S, standby.probe)
    scheduler.add("write manager", FOLLOW_INTERVAL_S, managers.follow)

    caller = AsyncCaller(secret)
    async_write_manager = AsyncWriteManagerClient(AsyncManagerCaller(AsyncCaller(secret), active))
    topics = MetadataCache(metadata)
    offsets = LeaderOffsets(caller, timeout_s=settings.leader_wait_s)
    replicas = ReplicaFetcher(caller, topics, leader_wait_s=settings.leader_wait_s)
    long_polls = LongPolls(
        AsyncCaller(secret, connections_per_host=MAX_WATCHED_TOPICS), topics, log, max_waiters=settings.max_waiters
    )
    deliveries = DeliveryReporter(async_write_manager, asyncio.get_running_loop(), log)
    memory = MemoryBudget(settings.answer_memory_bytes)
    registry = CollectorRegistry()

    router = Router(
        log,
        RequestObserver(registry, log),
        flask_app=FlaskApp(settings.own_name, threads=settings.threads),
        known_routes=ROUTES,
    )
    readiness = Readiness(
        {"postgres": standby.problem, "brokers": metadata.problem, "write_manager": heartbeat.problem}
    )
    add_operations(router, settings.own_name, readiness, registry)
    Console().add_routes(router)
    add_docs(router)
    answers = AnswerCache(topics)
    MetadataHandler(metadata, write_manager, cached=answers.cached).add_routes(router)
    cluster = ClusterHandler(metadata, standby, write_manager, managers, cached=answers.cached)
    cluster.add_routes(router)
    scheduler.add("cluster", READ_INTERVAL_S, cluster.read_catalog, at_once=True)
    own: ScrapeTarget = {
        "role": "read_manager",
        "process": settings.own_name,
        "endpoint": settings.own_endpoint,
    }
    Federation(caller, async_write_manager, active.urls, own).add_routes(router)
    OverviewCollector(caller, async_write_manager, active.urls, standby).add_routes(router)
    PartitionsHandler(topics, offsets, secret=secret, grant_s=settings.grant_s).add_routes(router)
    LagHandler(topics, offsets, async_write_manager, standby).add_routes(router)
    ExplainHandler(topics, offsets, async_write_manager).add_routes(router)
    ConsumeHandler(async_write_manager, replicas, topics, long_polls, deliveries, log).add_routes(router)
    lease_watch = LeaseWatch(AsyncWriteManagerClient(AsyncManagerCaller(AsyncCaller(secret), active)), log)
    PollHandler(async_write_manager, replicas, topics, long_polls, memory, lease_watch).add_routes(router)
    BrowseHandler(replicas, offsets, topics, long_polls, memory).add_routes(router)
    RangeHandler(replicas, topics, memory).add_routes(router)
    reads = SharedReads(replicas, memory)
    TopicEventsHandler(reads, offsets, metadata, topics, long_polls, async_write_manager).add_routes(router)
    router.on_stop(long_polls.stop)
    router.on_stop(lease_watch.stop)
    app = HttpApp(
        router,
        max_on_loop=settings.max_open_requests,
        max_on_threads=settings.threads + settings.max_waiting_requests,
        max_streams=settings.max_streams,
        max_body_bytes=settings.max_body_bytes,
        bodies=BodyBudget(settings.max_open_body_bytes),
    )
    register_metrics(registry, long_polls, lambda: standby.servers, lambda: app.streams)
    return [Listener(app, settings.host, settings.port, heartbeat.leave)], [topics, scheduler, deliveries]
