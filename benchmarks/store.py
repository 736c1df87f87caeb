"""The storage of one broker without the broker, as the benchmarks call it."""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import structlog

from broker.raft.configuration import GroupId
from broker.raft.effects import Persist
from broker.raft.entry import Kind, LogEntry
from broker.raft.snapshot import HardState
from broker.storage.group import Group, Settings
from broker.storage.journal import Journal
from broker.storage.real_disk import RealDisk
from broker.storage.recovery import open_store
from broker.storage.round import Round
from broker.storage.space import FreeSpace
from broker.storage.upkeep import Upkeep
from broker.storage.writer import Writer
from myqueue.protocol.batch import HEADER_BYTES, header_for

_TOPIC_ID = UUID(int=1)


class BenchStore:
    """One partition; commits are made on the caller's thread, upkeep runs beside them as in a broker."""

    def __init__(self, folder: Path) -> None:
        logger = structlog.wrap_logger(None, wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
        self._disk = RealDisk(folder)
        self._store = open_store(self._disk, Journal(self._disk), logger, broker_id=1, segment_bytes=64 << 20)
        self._writer = Writer(
            self._store,
            FreeSpace(self._disk.free_bytes, 0),
            logger,
            max_waiting=1,
            max_waiting_bytes=1 << 30,
        )
        self._upkeep = Upkeep(
            self._store, self._writer, logger, scrub_interval_s=1e9, on_damage=lambda _, what: print(what)
        )
        self._data = self._batch = b""
        self._upkeep.start()
        round_ = Round(self._store)
        group = Group(self._store.new_group_id(), _TOPIC_ID, 0, 1, Settings("bench"), HardState())
        self._log = self._store.open_log(round_, group)
        self._writer.write(round_)
        while self._store.journal.prefill(8 << 20):
            """Blocks that were written before, as those of a broker that has run for a while."""

    def commit(self, data: bytes) -> None:
        """A batch with so many bytes is on disk when this returns."""
        if data is not self._data:  # the batch is the client's work, once
            self._data, body = data, data[HEADER_BYTES:]
            self._batch = header_for(_TOPIC_ID, 0, body, 1).pack() + body
        tail = self._log.tail
        entry = LogEntry(tail.next_index, 1, Kind.MESSAGES, tail.end_offset, 0, 1, body=self._batch)
        round_ = Round(self._store)
        round_.persist(self._log, Persist(GroupId(_TOPIC_ID, 0), HardState(1), None, None, (entry,)))
        self._writer.write(round_)
        self._writer.on_written()

    def read(self) -> bytes | memoryview:
        """The batch that was committed first, from the file."""
        entry = self._log.at_index(self._log.group.first_index)
        assert entry is not None
        return entry.body

    def close(self) -> None:
        self._upkeep.stop()
        self._store.close()
        self._disk.close()


@contextlib.contextmanager
def opened_store(folder: Path) -> Iterator[BenchStore]:
    store = BenchStore(folder)
    try:
        yield store
    finally:
        store.close()
