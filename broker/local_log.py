"""A partition with one replica: committed is what this broker's disk holds."""

from collections.abc import Sequence
from concurrent.futures import Future

from broker.replica import Bounds
from broker.storage.entry import Entry
from broker.storage.log import Log
from broker.storage.writer import Append, Writer
from myqueue.protocol.batch import Header
from myqueue.protocol.marks import Mark, encode_marks

CHECKED_ENTRIES = 1000
CHECKED_BYTES = 16 << 20


class LocalLog:
    def __init__(self, log: Log, writer: Writer) -> None:
        self._log = log
        self._writer = writer

    def load(self) -> None:
        self._log.load(CHECKED_ENTRIES, CHECKED_BYTES)

    def propose(self, header: Header, body: bytes | memoryview, marks: Sequence[Mark]) -> "Future[Entry]":
        return self._writer.submit(Append(self._log, header, body, encode_marks(marks), len(marks)))

    def bounds(self) -> Bounds:
        tail, group = self._log.tail, self._log.group
        return Bounds(
            start_offset=group.start_offset,
            end_offset=tail.end_offset,
            append_time=tail.append_time,
            size_bytes=tail.end_bytes - group.start_bytes,
            term=group.term,
            role="leader",
        )

    def at_offset(self, offset: int) -> Entry:
        return self._log.at_offset(offset)

    def offset_at(self, timestamp: int) -> int:
        return self._log.offset_at(timestamp)

    def recent_marks(self, limit: int) -> list[tuple[int, bytes]]:
        return self._log.recent_marks(limit)
