"""The broker put together: storage, partitions, API, registration."""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry

from broker.api.routes import Routes
from broker.config import BrokerSettings
from broker.local_log import LocalLog
from broker.metrics import Metrics
from broker.partitions import Partitions
from broker.registration import Registration
from broker.replica import Replica
from broker.storage.cache import ReadCache
from broker.storage.checkpoints import Checkpoints
from broker.storage.database import Database, StorageRefused, set_meta
from broker.storage.log import Group, Log
from broker.storage.space import Space, free_bytes_of
from broker.storage.writer import Change, Writer
from service.calls import Caller
from service.heartbeat import Every
from service.lifecycle import Part, Process
from service.listener import FlaskBridge, Listener
from service.logs import Log as Logger
from service.logs import configure
from service.web import Readiness, WebApp, encode_error

_SWEEP_INTERVAL_S = 1.0


class Storage:
    """The file is open from the start, so that the listener never sees half of the partitions."""

    def __init__(self, settings: BrokerSettings, metrics: Metrics, logger: Logger) -> None:
        folder = settings.folder
        self.database = Database(
            folder,
            read_connections=settings.read_connections,
            observe_commit=metrics.commit_seconds.observe,
        )
        self.space = Space(None if folder is None else free_bytes_of(folder), settings.disk_reserve_bytes)
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
        metrics.gauge("myqueue_broker_waiting_writes", "Writes that wait for the disk", lambda: self.writer.waiting)
        metrics.gauge(
            "myqueue_broker_disk_free_bytes", "Free space of the data folder", lambda: self.space.free_bytes() or 0
        )

    def start(self) -> None:
        self.checkpoints.start()
        self.writer.start()

    def stop(self) -> None:
        self.writer.stop()
        self.checkpoints.stop()
        self.database.close()

    def keep_broker_id(self, broker_id: int) -> None:
        self.writer.submit(Change(lambda c: set_meta(c, "broker_id", str(broker_id)), uses_reserve=True)).result(5)


def build(settings: BrokerSettings, logger: Logger) -> tuple[Sequence[Listener], Sequence[Part]]:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    storage = Storage(settings, metrics, logger)
    cache = ReadCache(settings.read_cache_bytes)

    def make_replica(group: Group) -> Replica:
        return Replica(
            group.topic_id,
            group.partition_id,
            group.topic,
            group.group_id,
            LocalLog(Log(storage.database, group), storage.writer),
            cache,
            dedupe_window=settings.dedupe_window_messages,
            append_timeout_s=settings.append_timeout_s,
        )

    partitions = Partitions(storage.database, storage.writer, make_replica, logger)
    partitions.load()
    metrics.gauge("myqueue_broker_partitions", "Partitions held", lambda: len(partitions.all()))

    every = Every(logger)
    every.add("sweep", _SWEEP_INTERVAL_S, partitions.sweep)
    secret = settings.cluster_secret.get_secret_value()
    registration = Registration(
        Caller(secret),
        every,
        partitions,
        logger,
        write_manager_url=settings.write_manager_url,
        endpoint=settings.own_endpoint,
        broker_id=known_broker_id(settings.broker_id, storage.database),
        incarnation=storage.database.incarnation,
        interval_s=settings.heartbeat_interval_s,
        keep_broker_id=storage.keep_broker_id,
    )

    web = WebApp(
        "broker",
        logger,
        readiness=Readiness({"registration": registration.problem, "storage": storage.writer.problem}),
        registry=registry,
        secret=secret,
    )
    Routes(partitions, metrics).add_to(web)
    bridge = FlaskBridge(
        web.flask,
        encode_error,
        threads=settings.threads,
        max_waiting=settings.max_waiting_requests,
        max_body_bytes=settings.max_body_bytes,
    )
    return [Listener(bridge, settings.host, settings.port)], [storage, registration, every]


def known_broker_id(told: int | None, database: Database) -> int | None:
    """A data file belongs to one broker: started under another id it would speak for partitions it does not hold."""
    stored = database.meta("broker_id")
    if told is not None and stored is not None and int(stored) != told:
        raise StorageRefused(f"{database.path} belongs to broker {stored}, not to broker {told}")
    return told if stored is None else int(stored)


def run(settings: BrokerSettings) -> None:
    logger = configure("broker", settings.log_level)
    Process(logger, drain_timeout_s=settings.drain_timeout_s).run(lambda: build(settings, logger))
