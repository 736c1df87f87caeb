"""The write manager put together: the one file that knows how its parts fit."""

import os
import signal
from collections.abc import Sequence

from prometheus_client import CollectorRegistry

from db.engine import Primary
from myqueue.protocol.internal import Offsets
from myqueue.protocol.routes import ROUTES
from service import logs
from service.calls import Caller
from service.fanout import FanOut
from service.heartbeat import Every
from service.lifecycle import Part, Process
from service.listener import FlaskBridge, Listener
from service.web import Readiness, WebApp, encode_error
from write_manager.api.internal import add_internal_routes
from write_manager.api.public import add_public_routes
from write_manager.broker_calls import BrokerCalls
from write_manager.config import WriteManagerSettings
from write_manager.consume import Consuming
from write_manager.cursors import Cursors
from write_manager.directory import Directory
from write_manager.membership import Membership
from write_manager.offsets import FreshOffsets
from write_manager.produce import Producing
from write_manager.reconciler import Reconciler
from write_manager.registrations import Registrations
from write_manager.startup import Startup
from write_manager.topics import Topics


def run(settings: WriteManagerSettings) -> None:
    log = logs.configure(settings.name, settings.log_level)
    Process(log, drain_timeout_s=settings.drain_timeout_s).run(lambda: build(settings, log))


def build(settings: WriteManagerSettings, log: logs.Log) -> tuple[Sequence[Listener], Sequence[Part]]:
    secret = settings.cluster_secret.get_secret_value()
    directory = Directory()
    primary = Primary(settings.database, settings.name, on_fenced=lambda: os.kill(os.getpid(), signal.SIGTERM))
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
    fan_out: FanOut[int, Offsets] = FanOut(16, "offsets")
    offsets = FreshOffsets(calls, members, fan_out, timeout_s=settings.leader_wait_s)
    cursors = Cursors(primary, log)
    topics = Topics(
        primary,
        directory,
        members,
        calls,
        log,
        max_partitions=settings.max_partitions,
        broker_timeout_s=settings.leader_wait_s,
    )
    registrations = Registrations(primary, directory, topics, offsets)
    producing = Producing(
        directory, members, calls, leader_wait_s=settings.leader_wait_s, timeout_s=settings.request_timeout_s
    )
    consuming = Consuming(directory, cursors, offsets, members)
    reconciler = Reconciler(
        directory,
        members,
        topics,
        calls,
        log,
        timeout_s=settings.leader_wait_s,
        settle_s=settings.settle_s,
    )
    every = Every(log)
    every.add("sweep", settings.heartbeat_interval_s, members.sweep)
    every.add("reconcile", settings.reconcile_interval_s, reconciler.reconcile)

    readiness = Readiness({"postgres": startup.problem, "brokers": members.problem})
    public = WebApp(
        settings.name,
        log,
        readiness=readiness,
        registry=CollectorRegistry(),
        known_routes=ROUTES,
        gate=startup.refusal,
    )
    add_public_routes(public, topics, registrations, producing)
    inside = WebApp(
        f"{settings.name} internal",
        log,
        readiness=readiness,
        registry=CollectorRegistry(),
        secret=secret,
        gate=startup.refusal,
    )
    add_internal_routes(inside, members, directory, topics, registrations, consuming)

    def listener(app: WebApp, port: int) -> Listener:
        bridge = FlaskBridge(
            app.flask,
            encode_error,
            threads=settings.threads,
            max_waiting=settings.max_waiting_requests,
            max_body_bytes=settings.max_body_bytes,
        )
        return Listener(bridge, settings.host, port)

    return (
        [listener(public, settings.port), listener(inside, settings.internal_port)],
        [startup, fan_out, cursors, every],
    )
