"""The storeys of a broker below its API, put together for tests, on disk or in memory."""

from collections.abc import Callable, Sequence
from pathlib import Path
from uuid import UUID

import structlog

from broker.local_log import LocalLog
from broker.partitions import Partitions
from broker.replica import Replica
from broker.storage.cache import ReadCache
from broker.storage.database import Database
from broker.storage.log import Group, Log
from broker.storage.space import Space
from broker.storage.writer import Writer
from myqueue.protocol import batch as batches
from myqueue.protocol.batch import Message
from myqueue.protocol.internal import AppendAnswer
from myqueue.protocol.marks import Mark, decode_marks, message_crc
from service.logs import Log as Logger

TOPIC_ID = UUID("6b2d1c1e-6d0f-4a39-9a52-0a4f1f5f9f10")


class Store:
    def __init__(
        self,
        folder: Path | None,
        *,
        dedupe_window: int = 1000,
        cache_bytes: int = 1 << 20,
        free_bytes: Callable[[], int] | None = None,
        clock_ms: Callable[[], int] = lambda: 1_700_000_000_000,
        max_waiting: int = 100,
        started: bool = True,
    ) -> None:
        logger: Logger = structlog.get_logger()
        self.failures: list[str] = []
        self.database = Database(folder)
        self.writer = Writer(
            self.database,
            Space(free_bytes, reserve_bytes=1000),
            logger,
            max_waiting=max_waiting,
            max_waiting_bytes=1 << 20,
            max_round_bytes=1 << 20,
            clock_ms=clock_ms,
            on_failure=lambda: self.failures.append("stopped"),
        )
        self.cache = ReadCache(cache_bytes)
        self.logs: dict[int, Log] = {}

        def make(group: Group) -> Replica:
            log = self.logs[group.partition_id] = Log(self.database, group)
            return Replica(
                group.topic_id,
                group.partition_id,
                group.topic,
                group.group_id,
                LocalLog(log, self.writer),
                self.cache,
                dedupe_window=dedupe_window,
                append_timeout_s=10,
            )

        self.partitions = Partitions(self.database, self.writer, make, logger)
        self.partitions.load()
        if started:
            self.writer.start()

    def replica(self, partition_id: int = 0) -> Replica:
        self.partitions.create(TOPIC_ID, partition_id, "orders")
        return self.partitions.get(TOPIC_ID, partition_id)

    def close(self) -> None:
        self.writer.stop()
        self.database.close()


def key_of(name: str) -> bytes:
    return name.encode().rjust(16, b"\x01")


def append(replica: Replica, values: Sequence[bytes], keys: Sequence[str | None] = ()) -> AppendAnswer:
    messages = [Message(value) for value in values]
    marks = [
        Mark(position, 7, message_crc(messages[position]), key_of(key))
        for position, key in enumerate(keys)
        if key is not None
    ]
    header, body, _ = batches.split(batches.encode(replica.topic_id, replica.partition_id, messages))
    return replica.append(header, body, batches.validate(header, body), marks)


def opened(data: bytes) -> tuple[batches.Header, list[bytes], list[Mark]]:
    """Header, values and marks of a fetched batch, checked as a reader would."""
    header, body, rest = batches.split(data)
    values = [message.value for message in batches.messages_of(batches.validate(header, body))]
    return header, values, decode_marks(rest, header.count)


def read_all(replica: Replica, limit: int = 1_000_000) -> list[bytes]:
    """Every value in order; offsets must follow each other without a gap."""
    values: list[bytes] = []
    while (data := replica.fetch(len(values), limit)) is not None:
        header, found, _ = opened(data)
        assert header.base_offset == len(values)
        assert header.count == len(found)
        values += found
    return values
