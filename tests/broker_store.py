"""The storeys of a broker below its API, put together for tests, on disk or in memory: a group of one replica."""

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import structlog

from broker.batch_dedupe import KeyedBatch
from broker.driver import Driver
from broker.leader_requests import RequestTimeouts
from broker.partitions import Partitions
from broker.raft.configuration import MemberId
from broker.raft.context import RaftSettings
from broker.replica import Replica
from broker.storage.cache import ReadCache
from broker.storage.disk import PAGE_BYTES, Disk
from broker.storage.group import Settings
from broker.storage.journal import Journal
from broker.storage.memory_disk import MemoryDisk
from broker.storage.partition_file import FILE_HEADER_BYTES
from broker.storage.partition_log import PartitionLog
from broker.storage.real_disk import RealDisk
from broker.storage.record import parse
from broker.storage.recovery import open_store
from broker.storage.space import FreeSpace
from broker.storage.upkeep import Upkeep
from broker.storage.writer import Writer
from broker.tail_cache import TailCache
from myqueue.protocol import batch as batches
from myqueue.protocol.batch import Message
from myqueue.protocol.dedup_records import DedupRecord, decode_dedup_records, encode_dedup_records, message_crc
from myqueue.protocol.message_calls import (
    AppendAnswer,
)
from service.logs import Log as Logger
from tests.waiting import until

T = TypeVar("T")

TOPIC_ID = UUID("6b2d1c1e-6d0f-4a39-9a52-0a4f1f5f9f10")
BROKER_ID = 1
NOW_MS = 1_700_000_000_000
RESERVE_BYTES = 1000


class Loop:
    """An event loop on a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, action: Callable[[], None]) -> None:
        async def call() -> None:
            action()

        asyncio.run_coroutine_threadsafe(call(), self.loop).result(20)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()


class Store:
    def __init__(
        self,
        folder: Path | Disk | None,
        *,
        dedupe_window: int = 1000,
        cache_bytes: int = 1 << 20,
        free_bytes: Callable[[], int] | None = None,
        clock_ms: Callable[[], int] = lambda: NOW_MS,
        max_waiting: int = 100,
        segment_bytes: int = 1 << 20,
        journal_segment_bytes: int = 8 << 20,
        scrub_interval_s: float = 1e9,
        started: bool = True,
    ) -> None:
        self._logger: Logger = structlog.wrap_logger(
            None, wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL)
        )
        self._closed = False
        self._owns_disk = folder is None or isinstance(folder, Path)
        self.failures: list[str] = []
        self.disk: Disk = MemoryDisk() if folder is None else RealDisk(folder) if isinstance(folder, Path) else folder
        self._free_bytes: Callable[[], int | None] = free_bytes or self.disk.free_bytes
        self._max_waiting = max_waiting
        self._segment_bytes = segment_bytes
        self._journal_segment_bytes = journal_segment_bytes
        self._scrub_interval_s = scrub_interval_s
        self._cache_bytes = cache_bytes
        self._settings = RaftSettings(keys_window=dedupe_window)
        self._clock_ms = clock_ms
        self._loop = Loop()
        try:
            self._open()
        except BaseException:
            self._loop.close()
            self._close_disk()
            raise
        if started:
            self.start()

    def _open(self) -> None:
        self.journal = Journal(self.disk, segment_bytes=self._journal_segment_bytes)
        self.store = open_store(
            self.disk, self.journal, self._logger, broker_id=BROKER_ID, segment_bytes=self._segment_bytes
        )
        self.writer = Writer(
            self.store,
            FreeSpace(self._free_bytes, reserve_bytes=RESERVE_BYTES),
            self._logger,
            max_waiting=self._max_waiting,
            max_waiting_bytes=1 << 20,
            on_failure=lambda: self.failures.append("writer"),
        )
        self.upkeep = Upkeep(
            self.store,
            self.writer,
            self._logger,
            scrub_interval_s=self._scrub_interval_s,
            on_damage=lambda log, what: self.partitions.damaged(log, what),
            on_failure=lambda: self.failures.append("upkeep"),
        )
        self.cache = ReadCache(self._cache_bytes)
        self.tail_cache = TailCache(self._cache_bytes)
        self._loop.run(self._build)

    def start(self) -> None:
        self.upkeep.start()
        self.writer.start()
        self._loop.run(self.partitions.serve)
        self.await_leads()

    def _build(self) -> None:
        self.driver = Driver(
            self._loop.loop,
            self.writer,
            lambda _broker_id, _frame: None,
            lambda: None,
            self._logger,
            settings=self._settings,
            on_failure=lambda: self.failures.append("driver"),
        )
        self.driver.begin(BROKER_ID)
        timeouts = RequestTimeouts(leader_s=5, answer_s=10)

        def make(log: PartitionLog, me: MemberId) -> Replica:
            return Replica(
                log, me, self.driver, self.cache, self.tail_cache, self.writer.check_room, timeouts, self._clock_ms
            )

        self.partitions = Partitions(self.store, self.writer, self.driver, make, self._logger)
        self.partitions.load()

    @property
    def me(self) -> MemberId:
        return MemberId(BROKER_ID, int(self.store.incarnation, 16))

    def create(
        self, partition_id: int = 0, initial_voters: Sequence[MemberId] = (), settings: Settings | None = None
    ) -> bool:
        return self.partitions.create(
            TOPIC_ID, partition_id, settings or Settings("orders"), list(initial_voters) or [self.me]
        )

    def replica(self, partition_id: int = 0) -> Replica:
        self.create(partition_id)
        return self.partitions.get(TOPIC_ID, partition_id)

    def reload(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        """The process starts again on what the disk holds; something may happen to that in between."""
        self._stop()
        meanwhile()
        self._open()
        self.start()

    def await_flushed(self) -> None:
        """Everything acknowledged is in the partitions' files, so that reads come from there."""
        until(lambda: not self.store.unflushed_bytes(), within_s=10, pause_s=0.002, what="upkeep flushes")

    def await_leads(self) -> None:
        """A group of one leads itself, but for a moment after it is opened."""
        until(lambda: not any(map(self._will_lead, self.partitions.all())), within_s=20, pause_s=0.002)

    def _will_lead(self, replica: Replica) -> bool:
        return replica.votes and not replica.view.ready and self._leads(replica)

    def _leads(self, replica: Replica) -> bool:
        return self.driver.statuses()[replica.name].configuration.voters == (replica.me,)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._stop()
        self._close_disk()
        self._loop.close()

    def _stop(self) -> None:
        self.driver.stop()
        self.writer.stop()
        self.upkeep.stop()
        self.store.close()

    def _close_disk(self) -> None:
        if self._owns_disk and isinstance(self.disk, RealDisk | MemoryDisk):
            self.disk.close()


def flip_stored(disk: Disk, folder: str, needle: bytes, at: int = 0) -> str:
    """Turns one bit of the byte `at` behind the start of the needle; the name of the file that holds it."""
    return _flip(disk, [f"{folder}/{name}" for name in disk.names(folder)], needle, lambda place: place + at)


def flip_journal(disk: Disk, needle: bytes) -> None:
    _flip(disk, _journal(disk), needle, lambda place: place)


def flip_frame(disk: Disk, needle: bytes) -> None:
    """In the header of the frame of the journal that holds these bytes; it begins at a page."""
    _flip(disk, _journal(disk), needle, lambda place: place // PAGE_BYTES * PAGE_BYTES + 20)


def _journal(disk: Disk) -> list[str]:
    return [name for name in disk.names() if name.startswith("journal-")]


def flip_record(disk: Disk, folder: str, number: int, at: int) -> None:
    """One bit of a record in the partition's first file, `at` behind the record's start."""
    name = min(name for name in disk.names(folder) if name.endswith(".log"))
    data = contents(disk, folder)[name]
    place = FILE_HEADER_BYTES
    for _ in range(number):
        place += parse(data, place).size_bytes
    flip_byte(disk, f"{folder}/{name}", place + at)


def flip_byte(disk: Disk, name: str, at: int) -> None:
    _write(disk, name, at, bytes([_read(disk, name, at, 1)[0] ^ 4]))


def _flip(disk: Disk, names: Sequence[str], needle: bytes, chosen: Callable[[int], int]) -> str:
    for name in sorted(names):
        place = _read(disk, name, 0, 1 << 30).find(needle)
        if place >= 0:
            flip_byte(disk, name, chosen(place))
            return name
    raise AssertionError(f"{needle!r} is in none of {names}")


def contents(disk: Disk, folder: str) -> dict[str, bytes]:
    """Of the files in it, by name."""
    return {name: _read(disk, f"{folder}/{name}", 0, 1 << 30) for name in disk.names(folder)}


def _read(disk: Disk, name: str, at: int, size: int) -> bytes:
    file = disk.open(name)
    try:
        return bytes(file.read(at, min(size, file.size_bytes)))
    finally:
        file.close()


def _write(disk: Disk, name: str, at: int, data: bytes) -> None:
    file = disk.open(name)
    try:
        file.write([data], at, sync=True)
    finally:
        file.close()


def key_of(name: str) -> bytes:
    return name.encode().rjust(16, b"\x01")


def marks_for(messages: Sequence[Message], keys: Sequence[str | None]) -> list[DedupRecord]:
    return [
        DedupRecord(position, 7, message_crc(messages[position]), key_of(key))
        for position, key in enumerate(keys)
        if key is not None
    ]


def append(replica: Replica, values: Sequence[bytes], keys: Sequence[str | None] = ()) -> AppendAnswer:
    messages = [Message(value) for value in values]
    marks = marks_for(messages, keys)
    data = batches.encode(replica.topic_id, replica.partition_id, messages)
    return append_batch(replica, data, marks)


def append_batch(replica: Replica, data: bytes, marks: Sequence[DedupRecord] = ()) -> AppendAnswer:
    header, body, _ = batches.split(data)
    draft = KeyedBatch(header, data + encode_dedup_records(marks), batches.validate(header, body), list(marks))
    appended = on_loop(replica, replica.leader_requests.append(header, draft))
    return {
        "status": "success",
        "results": draft.results(),
        "append_time": appended.append_time,
        "end_offset": appended.end_offset,
    }


def on_loop(replica: Replica, work: Coroutine[Any, Any, T]) -> T:
    driver = replica.leader_requests._driver
    assert isinstance(driver, Driver)
    return driver.run(work)


def opened(data: bytes) -> tuple[batches.Header, list[bytes], list[DedupRecord]]:
    """Header, values and marks of a fetched batch, checked as a reader would."""
    header, body, rest = batches.split(data)
    values = [message.value for message in batches.messages_of(batches.validate(header, body))]
    return header, values, decode_dedup_records(rest, header.count)


def read_all(replica: Replica, limit: int = 1_000_000) -> list[bytes]:
    """Every value in order; offsets must follow each other without a gap."""
    values: list[bytes] = []
    while (data := replica.messages(len(values), limit)) is not None:
        header, found, _ = opened(data)
        assert header.base_offset == len(values)
        assert header.count == len(found)
        values += found
    return values
