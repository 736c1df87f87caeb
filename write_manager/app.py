"""The composition root of the write manager."""

import asyncio
import os
import signal
from collections.abc import Coroutine, Sequence
from typing import Any

from db.manager_lease import ManagerLease
from db.primary import Primary
from db.timelines import CurrentTimeline
from myqueue.protocol.routes import ROUTES
from service import logs
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
from write_manager.activation import Activation
from write_manager.active_state import ActiveState, add_status_route
from write_manager.append_connections import AppendConnections
from write_manager.batch_sender import BatchSender
from write_manager.broker_commands import BrokerCommands
from write_manager.brokers import Brokers
from write_manager.cleanup import Cleanup
from write_manager.cluster_metrics import ClusterMetrics
from write_manager.cluster_state import ClusterStates, add_cluster_state_route
from write_manager.config import WriteManagerSettings
from write_manager.consume import Consuming, add_claim_routes, add_cursor_routes
from write_manager.consumer_lag import REFRESH_S, ConsumerLag, add_lag_routes
from write_manager.cursors import Cursors
from write_manager.heartbeats import AllowedNetworks, Heartbeats, add_heartbeat_routes
from write_manager.job_results import JobResults, add_job_result_routes
from write_manager.job_runs import JobRuns, add_job_run_routes
from write_manager.leader_offsets import LeaderOffsets, StartOffsets
from write_manager.lease_changes import LeaseChanges, add_lease_change_routes
from write_manager.manager_lease_renewal import ManagerLeaseRenewal
from write_manager.metadata_cache import MetadataCache
from write_manager.metrics import WriteManagerMetrics
from write_manager.produce import Producing, add_produce_routes
from write_manager.read_managers import ReadManagers
from write_manager.reconciler import Reconciler
from write_manager.registration_store import RegistrationStore
from write_manager.registrations import (
    Registrations,
    TopicCreationLimit,
    add_internal_registration_routes,
    add_registration_routes,
)
from write_manager.stats_history import HistoryTiers
from write_manager.takeover import VERIFIED_SHARE
from write_manager.topics import Topics, add_catalog_routes, add_topic_routes

EXPIRY_GRACE_S = 3600.0


def run(settings: WriteManagerSettings) -> None:
    log = logs.configure(settings.name, settings.log_level)
    Process(log, drain_timeout_s=settings.drain_timeout_s).run(lambda: build(settings, log))


def build(settings: WriteManagerSettings, log: logs.Log) -> tuple[Sequence[Listener], Sequence[Part]]:
    loop = asyncio.get_running_loop()
    secret = settings.cluster_secret.get_secret_value()
    metrics = WriteManagerMetrics()
    timeline = CurrentTimeline()
    lease = ManagerLease(settings.database, settings.name, current=timeline)
    primary = Primary(
        settings.database,
        lease.application,
        on_fenced=lambda: end("another write manager has taken over"),
        current=timeline,
    )
    verified_for_s = VERIFIED_SHARE * settings.standby_takeover_s
    renewal = ManagerLeaseRenewal(
        lease,
        lambda why: end(why),
        log,
        interval_s=settings.standby_renew_s,
        verified_for_s=verified_for_s,
    )
    state = ActiveState(settings.name, renewal, max_pause_s=verified_for_s)
    cache = MetadataCache(primary, nameless_ttl_s=settings.nameless_ttl_s, is_verified=state.is_verified)
    brokers = Brokers(
        primary, cache, log, ttl_s=settings.broker_ttl_s, heartbeat_interval_s=settings.heartbeat_interval_s
    )
    metrics.watch_damaged_replicas(brokers.damaged_count)
    read_managers = ReadManagers(settings.broker_ttl_s)
    heartbeats = Heartbeats(
        primary,
        cache,
        brokers,
        read_managers,
        AllowedNetworks(settings.broker_networks),
        log,
        ttl_s=settings.broker_ttl_s,
    )
    commands = BrokerCommands(primary, Caller(secret), log)
    async_caller = AsyncCaller(secret)
    offsets = LeaderOffsets(async_caller, brokers, timeout_s=settings.leader_wait_s)
    lease_changes = LeaseChanges(lambda: primary.epoch)
    cursors = Cursors(
        primary,
        log,
        loop,
        lease_s=settings.lease_s,
        claim_s=settings.claim_s,
        max_in_flight=settings.max_claims_in_flight,
        on_expired=metrics.claims_expired.inc,
        on_reassigned=lease_changes.publish,
        decides_since_s=state.verified_since_s,
    )
    metrics.watch_claims_in_flight(lambda: cursors.in_flight)
    lag = ConsumerLag(primary, cache, cursors, max_cursors=settings.max_measured_cursors)

    def is_active() -> bool:
        return state.refusal() is None

    metrics.watch_active(is_active)
    metrics.registry.register(
        ClusterMetrics(cache, brokers.active_ids, lambda: lag.measure_from_thread(loop), is_active)
    )

    def on_loop(work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, loop).result()

    topics = Topics(
        primary,
        cache,
        brokers,
        commands,
        log,
        max_partitions=settings.max_partitions,
        broker_timeout_s=settings.leader_wait_s,
        check_verified=state.check_verified,
    )
    reconciler = Reconciler(
        primary,
        cache,
        brokers,
        heartbeats,
        topics,
        commands,
        log,
        timeout_s=settings.leader_wait_s,
        settle_s=settings.settle_s,
        restart_cursors=lambda topic_id, partition_id: on_loop(cursors.restart(topic_id, partition_id)),
    )
    registration_store = RegistrationStore(primary, cache, log, loop)
    registrations = Registrations(primary, cache, topics, StartOffsets(offsets), cursors, registration_store, loop)
    sender = BatchSender(
        AppendConnections(secret),
        brokers,
        log,
        leader_wait_s=settings.leader_wait_s,
        timeout_s=settings.request_timeout_s,
    )
    producing = Producing(cache, sender)
    consuming = Consuming(cache, cursors, offsets, brokers, state, lease_s=settings.lease_s)
    runs = JobRuns(
        primary, log, lease_s=settings.run_lease_s, history_days=settings.stats_history_days, metrics=metrics
    )
    results = JobResults(
        primary,
        runs,
        log,
        history_days=settings.stats_history_days,
        tiers=HistoryTiers.parse(settings.stats_history),
    )
    states = ClusterStates(
        cache, brokers.known, read_managers.known, lambda: runs.summaries, lag, lambda: heartbeats.load_balancer_seen_s
    )
    cleanup = Cleanup(
        primary,
        cache,
        brokers,
        cursors,
        loop,
        log,
        nameless_ttl_s=settings.nameless_ttl_s,
        deleted_topic_ttl_s=settings.deleted_topic_ttl_s,
        grace_s=min(EXPIRY_GRACE_S, settings.nameless_ttl_s),
    )
    scheduler = Scheduler(log)
    scheduler.add("sweep", settings.heartbeat_interval_s, heartbeats.sweep)
    scheduler.add("store", settings.heartbeat_interval_s, heartbeats.store)
    scheduler.add("cursors", settings.lease_s, lambda: on_loop(cursors.sweep()))
    scheduler.add("reconcile", settings.reconcile_interval_s, reconciler.reconcile)
    scheduler.add("cleanup", settings.cleanup_interval_s, cleanup.run)
    scheduler.add("lag", REFRESH_S, lag.refresh)
    scheduler.add("runs", settings.run_lease_s / 3, runs.sweep)

    activation = Activation(
        lease,
        renewal,
        state,
        primary,
        cache,
        heartbeats,
        scheduler,
        loop,
        log,
        name=settings.name,
        takeover_s=settings.standby_takeover_s,
        lease_s=settings.lease_s,
        exit_process=lambda: os.kill(os.getpid(), signal.SIGTERM),
    )

    def end(why: str) -> None:
        activation.end(why)

    readiness = Readiness({"active": state.problem, "postgres": activation.problem, "brokers": brokers.problem})
    observer = RequestObserver(metrics.registry, log)
    public = Router(
        log,
        observer,
        flask_app=FlaskApp(settings.name, threads=settings.threads),
        gate=state.refusal,
        known_routes=ROUTES,
    )
    add_operations(public, settings.name, readiness, metrics.registry)
    add_topic_routes(public, topics)
    add_registration_routes(public, registrations, cache, TopicCreationLimit(settings.topic_creations_per_minute))
    add_produce_routes(public, producing)
    add_cursor_routes(public, consuming)

    internal_name = f"{settings.name} internal"
    internal = Router(
        log,
        observer,
        flask_app=FlaskApp(internal_name, threads=settings.threads),
        secret=secret,
        gate=state.internal_refusal,
        more_headers=state.headers,
    )
    add_operations(internal, internal_name, readiness, metrics.registry)
    add_status_route(internal, state)
    add_catalog_routes(internal, topics, cache, primary, state.check_verified)
    add_internal_registration_routes(internal, registrations)
    add_job_run_routes(internal, runs)
    add_job_result_routes(internal, results)
    add_claim_routes(internal, consuming)
    add_lease_change_routes(internal, lease_changes)
    add_lag_routes(internal, lag)
    add_cluster_state_route(internal, states)
    add_heartbeat_routes(internal, heartbeats, brokers, commands)

    bodies = BodyBudget(settings.max_open_body_bytes)

    async def no_more_jobs() -> None:
        """Before anything stops that they use."""
        scheduler.pause()

    def listener(router: Router, port: int, *, leave_body_bytes: int = 0, opens_late: bool = False) -> Listener:
        app = HttpApp(
            router,
            max_on_loop=settings.max_open_requests,
            max_on_threads=settings.threads + settings.max_waiting_requests,
            max_body_bytes=settings.max_body_bytes,
            bodies=bodies,
            leave_body_bytes=leave_body_bytes,
        )
        return Listener(app, settings.host, port, no_more_jobs, opens_late=opens_late)

    return (
        [
            listener(public, settings.port, leave_body_bytes=bodies.cluster_share_bytes, opens_late=True),
            listener(internal, settings.internal_port),
        ],
        [activation, cursors, registration_store],
    )
