"""Storage and Raft of a broker as parts of its process: the data file, the driver, connections to the other brokers."""

import asyncio
import json

from broker.config import BrokerSettings
from broker.driver import Driver
from broker.metrics import Metrics
from broker.peers.transport import Transport
from broker.raft.context import RaftSettings
from broker.storage.checkpoints import Checkpoints
from broker.storage.database import set_meta
from broker.storage.opening import open_database
from broker.storage.pace import Pace
from broker.storage.space import Space, free_bytes_of
from broker.storage.writer import Change, Writer
from myqueue.protocol.errors import RegistrationConflict
from myqueue.protocol.internal import Peer
from service.logs import Log

_TRANSFER_S = 2.0
_PREPARED_WAL_BYTES = 16 << 20


class Storage:
    """The file is open from the start, so that the listener never sees half of the partitions."""

    def __init__(self, settings: BrokerSettings, metrics: Metrics, logger: Log) -> None:
        folder = settings.folder
        self.pace = Pace()

        def observe_commit(seconds: float) -> None:
            metrics.commit_seconds.observe(seconds)
            self.pace.observe(seconds)

        self.database = open_database(
            folder,
            logger,
            read_connections=settings.read_threads,
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
        self, settings: BrokerSettings, storage: Storage, metrics: Metrics, logger: Log, broker_id: int | None
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
            self._logger.warning("the disk is slow; leadership is transferred")
            self.driver.call(self.driver.start_transfers)

    async def transfer_all(self) -> None:
        await self.driver.transfer_all(_TRANSFER_S)
