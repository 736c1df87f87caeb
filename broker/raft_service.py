"""Storage and Raft of a broker as parts of its process: the store, the driver, connections to the other brokers."""

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import Future

from broker.config import BrokerSettings
from broker.confirmation import FolderCheck
from broker.driver import Driver
from broker.metrics import Metrics
from broker.peers.folder_starts import FolderStarts
from broker.peers.transport import Transport
from broker.raft.context import RaftSettings
from broker.storage.disk import Disk, StorageRefused
from broker.storage.journal import Journal
from broker.storage.memory_disk import MemoryDisk
from broker.storage.partition_log import PartitionLog
from broker.storage.real_disk import RealDisk
from broker.storage.recovery import open_store
from broker.storage.slow_disk import SlowDisk
from broker.storage.space import FreeSpace
from broker.storage.store import COMMAND_EPOCH
from broker.storage.upkeep import Upkeep
from broker.storage.writer import Change, Writer
from myqueue.protocol.errors import RegistrationConflict, Unavailable
from myqueue.protocol.internal import Peer
from service.logs import Log

_TRANSFER_S = 2.0
_MEMORY_SEGMENT_BYTES = 20 << 20
_OLD_FILE = "broker.db"
_PEER_STARTS = "peer_starts"
_KEEP_TIMEOUT_S = 5.0


class Storage:
    """The store is recovered from the start on, so that the listener never sees half of the partitions."""

    def __init__(self, settings: BrokerSettings, metrics: Metrics, logger: Log) -> None:
        self.slow_disk = SlowDisk()

        def observe_commit(seconds: float) -> None:
            metrics.commit_seconds.observe(seconds)
            self.slow_disk.observe(seconds)

        disk = _disk(settings)
        is_memory = settings.folder is None
        self.journal = Journal(
            disk, segment_bytes=_MEMORY_SEGMENT_BYTES if is_memory else settings.journal_segment_bytes
        )
        self.store = open_store(
            disk, self.journal, logger, broker_id=settings.broker_id, segment_bytes=settings.segment_bytes
        )
        self.found_sequence = self.store.found_sequence
        self.space = FreeSpace(disk.free_bytes, settings.disk_reserve_bytes)
        self.writer = Writer(
            self.store,
            self.space,
            logger,
            max_waiting=settings.max_waiting_appends,
            max_waiting_bytes=settings.max_waiting_append_bytes,
            observe_commit=observe_commit,
            observe_round=metrics.commit_writes.observe,
        )
        self.on_damage: Callable[[PartitionLog, str], None] = lambda *_: None
        self.upkeep = Upkeep(
            self.store,
            self.writer,
            logger,
            scrub_interval_s=settings.scrub_interval_s,
            on_damage=lambda log, what: self.on_damage(log, what),
        )
        metrics.bind_storage(lambda: self.writer.waiting, self.space.free_bytes)

    def start(self) -> None:
        self.upkeep.start()
        self.writer.start()

    def stop(self) -> None:
        self.writer.stop()
        self.upkeep.stop()
        self.store.close()

    def problem(self) -> str | None:
        return self.writer.problem() if self.upkeep.is_alive else "the upkeep thread does not run"

    def keep(self, name: str, value: str) -> None:
        self.submit(name, value).result(_KEEP_TIMEOUT_S)

    def keep_command_epoch(self, epoch: int) -> None:
        try:
            self.keep(COMMAND_EPOCH, str(epoch))
        except TimeoutError:
            raise Unavailable("the broker's disk is slow", outcome="not_written") from None

    def submit(self, name: str, value: str) -> "Future[None]":
        return self.writer.submit(Change(lambda round_: self.store.set_value(round_, name, value), uses_reserve=True))


def _disk(settings: BrokerSettings) -> Disk:
    folder = settings.folder
    if folder is None:
        return MemoryDisk(settings.memory_limit_bytes)
    if (folder / _OLD_FILE).exists():
        raise StorageRefused(
            f"{folder / _OLD_FILE} is the data file of a release before 0.9, which this one does not read. "
            "Upgrade the write manager and the read managers first, then one broker at a time: stop it, empty its "
            "folder, start it with this release, and wait until `myqueue doctor` finds nothing; the partitions are "
            "copied from the other brokers meanwhile. Topics with one replica or two do not survive that: read "
            "their messages out with the old release first, delete them, and make them again afterwards."
        )
    return RealDisk(folder)


class RaftService:
    """The Raft driver and its connections to the other brokers."""

    def __init__(
        self,
        settings: BrokerSettings,
        storage: Storage,
        folder_check: FolderCheck,
        metrics: Metrics,
        logger: Log,
        broker_id: int | None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._storage = storage
        self._folder_check = folder_check
        self._logger = logger
        starts = {(b, i): n for b, i, n in json.loads(storage.store.values.get(_PEER_STARTS, "[]"))}
        self._folder_starts = FolderStarts(starts, self._remember_starts)
        self.transport = Transport(
            host=settings.host,
            port=settings.raft_port,
            broker_id=lambda: self.driver.broker_id,
            secret=settings.cluster_secret.get_secret_value(),
            log=logger,
            on_frame=lambda frame: self.driver.receive(frame),
            folder=folder_check.folder,
            folder_starts=self._folder_starts,
            on_accepted=folder_check.accepted,
            on_refuted=folder_check.refuted_by_peer,
        )
        self.driver = Driver(
            self._loop,
            storage.writer,
            self.transport.send,
            self.transport.flush,
            logger,
            settings=RaftSettings(keys_window=settings.dedupe_window_messages),
        )
        metrics.bind_driver(self.driver.counts)
        metrics.bind_peers(self.transport.counters)
        # As last known: groups elect their leaders also while the write manager is down.
        self._peers: list[Peer] = json.loads(storage.store.values.get("peers", "[]"))
        if broker_id is not None:
            self.driver.begin(broker_id)
        self._connect()

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

    def _remember_starts(self, *_: int) -> None:
        """On the loop: written without waiting for it."""
        known = [(broker_id, incarnation, n) for (broker_id, incarnation), n in self._folder_starts.known().items()]
        self._storage.submit(_PEER_STARTS, json.dumps(known))

    def _connect(self) -> None:
        own_id = self.driver.broker_id
        self._folder_check.set_brokers(own_id, [peer["broker_id"] for peer in self._peers])
        self.transport.set_peers(
            {peer["broker_id"]: peer["raft_address"] for peer in self._peers if peer["broker_id"] != own_id}
        )

    def check_disk_speed(self) -> None:
        if self._storage.slow_disk.is_slow():
            self._logger.warning("the disk is slow; leadership is transferred")
            self.driver.call(self.driver.start_transfers)

    async def transfer_all(self) -> None:
        await self.driver.transfer_all(_TRANSFER_S)
