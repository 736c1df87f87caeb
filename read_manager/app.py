"""A read manager put together: the one file that knows how its parts fit."""

import asyncio
from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Gauge

from db.servers import ServerRoles
from db.standby import Standby
from myqueue.protocol import batch as wire
from myqueue.protocol.routes import ROUTES
from read_manager.api.docs import add_docs
from read_manager.api.hot import add_async_routes
from read_manager.api.public import add_public_routes
from read_manager.backlog import Backlog
from read_manager.catalog import Catalog
from read_manager.config import ReadManagerSettings
from read_manager.consuming import Dequeue
from read_manager.deliveries import Deliveries
from read_manager.fetching import Messages
from read_manager.heartbeat import Heartbeat
from read_manager.leader_offsets import LeaderOffsets
from read_manager.listing import Listing
from read_manager.polling import Polling
from read_manager.replicas import Replicas
from read_manager.room import Room
from read_manager.topics import Topics
from read_manager.watches import Watches
from read_manager.write_manager_calls import WriteManagerAsks, WriteManagerCalls
from service import logs
from service.async_calls import AsyncCaller
from service.body_budget import BodyBudget
from service.calls import Caller
from service.flask_app import FlaskApp
from service.lifecycle import Part, Process
from service.listener import Listener, RsgiApp
from service.operations import Readiness, add_operations
from service.request_observer import RequestObserver
from service.router import Router
from service.scheduler import Scheduler

MAX_WATCHED_TOPICS = 1000
PROBE_INTERVAL_S = 2.0  # of database servers that failed; longer than the deadlines of all of them together


def run(settings: ReadManagerSettings) -> None:
    log = logs.configure(settings.own_name, settings.log_level)
    Process(log, drain_timeout_s=settings.drain_timeout_s).run(lambda: build(settings, log))


def build(settings: ReadManagerSettings, log: logs.Log) -> tuple[Sequence[Listener], Sequence[Part]]:
    secret = settings.cluster_secret.get_secret_value()
    wire.encode_body([wire.Message(b"")])  # the first array that pyarrow makes takes it long: not while others wait
    standby = Standby(settings.database, settings.own_name)
    write_manager = WriteManagerCalls(Caller(secret), settings.write_manager_url)
    servers = ServerRoles(settings.database, settings.own_name)
    catalog = Catalog(standby, servers, write_manager, replay_patience_s=settings.replay_patience_s)
    heartbeat = Heartbeat(write_manager, log, settings.own_name, settings.own_endpoint, leave_s=settings.leave_s)
    scheduler = Scheduler(log)
    scheduler.add("heartbeat", settings.heartbeat_interval_s, heartbeat.beat)
    scheduler.add("standbys", PROBE_INTERVAL_S, standby.probe)

    caller = AsyncCaller(secret)
    asks = WriteManagerAsks(AsyncCaller(secret), settings.write_manager_url)
    topics = Topics(catalog)
    offsets = LeaderOffsets(caller, timeout_s=settings.leader_wait_s)
    replicas = Replicas(caller, topics, leader_wait_s=settings.leader_wait_s)
    watches = Watches(
        AsyncCaller(secret, connections_per_host=MAX_WATCHED_TOPICS), topics, log, max_waiters=settings.max_waiters
    )
    deliveries = Deliveries(asks, asyncio.get_running_loop(), log)
    room = Room(settings.answer_memory_bytes)
    registry = CollectorRegistry()
    waiting = Gauge("myqueue_waiting_requests", "Requests that wait for messages", registry=registry)
    waiting.set_function(lambda: watches.waiting)

    router = Router(
        log,
        RequestObserver(registry, log),
        flask_app=FlaskApp(settings.own_name, threads=settings.threads),
        known_routes=ROUTES,
    )
    readiness = Readiness({"postgres": standby.problem, "brokers": catalog.problem, "write_manager": heartbeat.problem})
    add_operations(router, settings.own_name, readiness, registry)
    add_public_routes(router, catalog, write_manager)
    add_docs(router)
    add_async_routes(
        router,
        Listing(topics, offsets, secret=secret, grant_s=settings.grant_s),
        Backlog(topics, offsets, asks, standby),
        Dequeue(asks, replicas, topics, watches, log),
        deliveries,
        Messages(replicas, offsets, topics, watches, room),
        Polling(asks, replicas, topics, watches, room),
    )
    router.on_stop(watches.stop)
    app = RsgiApp(
        router,
        max_on_loop=settings.max_open_requests,
        max_on_threads=settings.threads + settings.max_waiting_requests,
        max_body_bytes=settings.max_body_bytes,
        bodies=BodyBudget(settings.max_open_body_bytes),
    )
    return [Listener(app, settings.host, settings.port, heartbeat.leave)], [topics, scheduler, deliveries]
