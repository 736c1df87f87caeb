"""The write manager put together: the one file that knows how its parts fit."""

import asyncio
import os
import signal
from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge

from db.primary import Primary
from myqueue.protocol.routes import ROUTES
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
from write_manager.api.heartbeats import add_heartbeat_routes
from write_manager.api.hot import add_cursor_routes, add_message_routes
from write_manager.api.internal import add_internal_routes
from write_manager.api.jobs import add_job_routes
from write_manager.api.public import add_public_routes
from write_manager.api.registrations import add_registration_routes
from write_manager.appends import Appends
from write_manager.broker_calls import BrokerCalls
from write_manager.cleanup import Cleanup
from write_manager.config import WriteManagerSettings
from write_manager.consume import Consuming
from write_manager.cursors import Cursors
from write_manager.directory import metadata_cache
from write_manager.membership import Membership
from write_manager.offsets import FreshOffsets
from write_manager.on_loop import OnLoop
from write_manager.produce import Producing
from write_manager.reconciler import Reconciler
from write_manager.registration_groups import RegistrationGroups
from write_manager.registrations import Registrations
from write_manager.results import Results
from write_manager.runs import Runs
from write_manager.start_offsets import StartOffsets
from write_manager.startup import Startup
from write_manager.topic_creation_limit import TopicCreationLimit
from write_manager.topics import Topics

EXPIRY_GRACE_S = 3600.0


def run(settings: WriteManagerSettings) -> None:
    log = logs.configure(settings.name, settings.log_level)
    Process(log, drain_timeout_s=settings.drain_timeout_s).run(lambda: build(settings, log))


def build(settings: WriteManagerSettings, log: logs.Log) -> tuple[Sequence[Listener], Sequence[Part]]:
    loop = asyncio.get_running_loop()
    on_loop = OnLoop(loop)
    secret = settings.cluster_secret.get_secret_value()
    primary = Primary(settings.database, settings.name, on_fenced=lambda: os.kill(os.getpid(), signal.SIGTERM))
    directory = metadata_cache(primary, nameless_ttl_s=settings.nameless_ttl_s)
    members = Membership(
        primary,
        directory,
        log,
        ttl_s=settings.broker_ttl_s,
        heartbeat_interval_s=settings.heartbeat_interval_s,
        networks=settings.broker_networks,
    )
    startup = Startup(primary, directory, members, log, name=settings.name, timeout_s=settings.start_timeout_s)
    calls = BrokerCalls(Caller(secret))
    async_caller = AsyncCaller(secret)
    offsets = FreshOffsets(async_caller, members, timeout_s=settings.leader_wait_s)
    registry = CollectorRegistry()
    expired = Counter(
        "myqueue_claims_expired",
        "Claims that were not reported as delivered in time: their messages are read again and may come twice",
        registry=registry,
    )
    cursors = Cursors(
        primary,
        log,
        loop,
        lease_s=settings.lease_s,
        claim_s=settings.claim_s,
        max_in_flight=settings.max_claims_in_flight,
        on_expired=expired.inc,
    )
    in_flight = Gauge("myqueue_claims_in_flight", "Claimed messages that are not delivered yet", registry=registry)
    in_flight.set_function(lambda: cursors.in_flight)
    topics = Topics(
        primary,
        directory,
        members,
        calls,
        log,
        max_partitions=settings.max_partitions,
        broker_timeout_s=settings.leader_wait_s,
        restart_cursors=lambda topic_id, partition_id: on_loop.run(cursors.restart(topic_id, partition_id)),
    )
    groups = RegistrationGroups(primary, directory, log, loop)
    registrations = Registrations(primary, directory, topics, StartOffsets(offsets), cursors, groups, on_loop)
    appends = Appends(
        async_caller,
        members,
        log,
        leader_wait_s=settings.leader_wait_s,
        timeout_s=settings.request_timeout_s,
    )
    producing = Producing(directory, appends)
    consuming = Consuming(directory, cursors, offsets, members, lease_s=settings.lease_s)
    reconciler = Reconciler(
        directory,
        members,
        topics,
        calls,
        log,
        timeout_s=settings.leader_wait_s,
        settle_s=settings.settle_s,
    )
    runs = Runs(primary, log, lease_s=settings.run_lease_s, history_days=settings.stats_history_days)
    results = Results(primary, runs, log, history_days=settings.stats_history_days)
    cleanup = Cleanup(
        primary,
        directory,
        members,
        cursors,
        on_loop,
        log,
        nameless_ttl_s=settings.nameless_ttl_s,
        deleted_topic_ttl_s=settings.deleted_topic_ttl_s,
        grace_s=min(EXPIRY_GRACE_S, settings.nameless_ttl_s),
    )
    scheduler = Scheduler(log)
    scheduler.add("sweep", settings.heartbeat_interval_s, members.sweep)
    scheduler.add("store", settings.heartbeat_interval_s, members.store)
    scheduler.add("cursors", settings.lease_s, lambda: on_loop.run(cursors.sweep()))
    scheduler.add("reconcile", settings.reconcile_interval_s, reconciler.reconcile)
    scheduler.add("cleanup", settings.cleanup_interval_s, cleanup.run)
    scheduler.add("runs", settings.run_lease_s / 3, runs.sweep)

    readiness = Readiness({"postgres": startup.problem, "brokers": members.problem})
    public = Router(
        log,
        RequestObserver(registry, log),
        flask_app=FlaskApp(settings.name, threads=settings.threads),
        gate=startup.refusal,
        known_routes=ROUTES,
    )
    creations = TopicCreationLimit(settings.topic_creations_per_minute)
    add_operations(public, settings.name, readiness, registry)
    add_public_routes(public, topics, registrations)
    add_registration_routes(public, registrations, directory, creations)
    add_message_routes(public, producing, consuming)

    internal_name = f"{settings.name} internal"
    internal_registry = CollectorRegistry()
    internal = Router(
        log,
        RequestObserver(internal_registry, log),
        flask_app=FlaskApp(internal_name, threads=settings.threads),
        secret=secret,
        gate=startup.refusal,
    )
    add_operations(internal, internal_name, readiness, internal_registry)
    add_internal_routes(internal, members, directory, topics, registrations, primary, on_loop)
    add_job_routes(internal, runs, results)
    add_cursor_routes(internal, consuming)
    add_heartbeat_routes(internal, members)

    bodies = BodyBudget(settings.max_open_body_bytes)

    def listener(router: Router, port: int, *, leave_body_bytes: int = 0) -> Listener:
        app = RsgiApp(
            router,
            max_on_loop=settings.max_open_requests,
            max_on_threads=settings.threads + settings.max_waiting_requests,
            max_body_bytes=settings.max_body_bytes,
            bodies=bodies,
            leave_body_bytes=leave_body_bytes,
        )
        return Listener(app, settings.host, port)

    return (
        [
            listener(public, settings.port, leave_body_bytes=bodies.cluster_share_bytes),
            listener(internal, settings.internal_port),
        ],
        [startup, cursors, groups, scheduler],
    )
