"""A read manager put together: the one file that knows how its parts fit."""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry

from db.engine import Standby
from myqueue.protocol.internal import Offsets
from myqueue.protocol.routes import ROUTES
from read_manager.api.docs import add_docs
from read_manager.api.public import add_public_routes
from read_manager.catalog import Catalog
from read_manager.config import ReadManagerSettings
from read_manager.heartbeat import Heartbeat
from read_manager.offsets import PartitionOffsets
from read_manager.reading import Dequeue, Listing, Sizes
from read_manager.write_manager_calls import WriteManagerCalls
from service import logs
from service.calls import Caller
from service.fanout import FanOut
from service.heartbeat import Every
from service.lifecycle import Part, Process
from service.listener import FlaskBridge, Listener
from service.web import Readiness, WebApp, encode_error


def run(settings: ReadManagerSettings) -> None:
    log = logs.configure(settings.name, settings.log_level)
    Process(log, drain_timeout_s=settings.drain_timeout_s).run(lambda: build(settings, log))


def build(settings: ReadManagerSettings, log: logs.Log) -> tuple[Sequence[Listener], Sequence[Part]]:
    caller = Caller(settings.cluster_secret.get_secret_value())
    standby = Standby(settings.database, settings.name)
    write_manager = WriteManagerCalls(caller, settings.write_manager_url)
    catalog = Catalog(standby, write_manager, replay_patience_s=settings.replay_patience_s)
    fan_out: FanOut[int, Offsets] = FanOut(16, "offsets")
    offsets = PartitionOffsets(caller, fan_out, timeout_s=settings.leader_wait_s)
    listing = Listing(catalog, offsets)
    sizes = Sizes(catalog, offsets, write_manager, standby)
    dequeue = Dequeue(
        write_manager, caller, log, leader_wait_s=settings.leader_wait_s, max_waiters=settings.max_waiters
    )
    heartbeat = Heartbeat(write_manager, log, settings.name, settings.own_endpoint)
    every = Every(log)
    every.add("heartbeat", settings.heartbeat_interval_s, heartbeat.beat)

    app = WebApp(
        settings.name,
        log,
        readiness=Readiness(
            {"postgres": standby.problem, "brokers": catalog.problem, "write_manager": heartbeat.problem}
        ),
        registry=CollectorRegistry(),
        known_routes=ROUTES,
    )
    add_public_routes(app, listing, dequeue, sizes, write_manager)
    add_docs(app)
    bridge = FlaskBridge(
        app.flask,
        encode_error,
        threads=settings.threads,
        max_waiting=settings.max_waiting_requests,
        max_body_bytes=settings.max_body_bytes,
    )
    return [Listener(bridge, settings.host, settings.port)], [fan_out, every]
