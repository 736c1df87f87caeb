"""One entry of the Raft log.

Only messages take offsets. Of a batch the core sees its count and its identity (`stamp`, `dedup_records`); the bytes
are opaque. The leader sets index, term, base offset and append time when it appends the entry; storage writes the same
values into the batch header.
"""

from dataclasses import dataclass
from enum import IntEnum

from broker.raft.configuration import GroupConfiguration
from myqueue.protocol.dedup_records import DedupRecord

_FIXED_BYTES = 64
_DEDUP_RECORD_BYTES = 28


class Kind(IntEnum):
    MESSAGES = 0
    NOOP = 1
    CONFIGURATION = 2
    TRUNCATE = 3


@dataclass(frozen=True, slots=True)
class Stamp:
    """An idempotent producer's name for a batch: sequence of its first message, CRC of its body."""

    producer_id: int
    epoch: int
    sequence: int
    crc: int


@dataclass(frozen=True, slots=True)
class LogStart:
    """Everything before `start_index` is cut; the message there, or the next one after it, has `start_offset`."""

    start_index: int
    start_offset: int


Body = bytes | GroupConfiguration | LogStart | None


@dataclass(frozen=True, slots=True)
class LogEntry:
    index: int
    term: int
    kind: Kind
    base_offset: int  # for entries without messages: the next message's offset
    append_time: int
    count: int = 0
    stamp: Stamp | None = None
    dedup_records: tuple[DedupRecord, ...] = ()
    body: Body = None

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.count

    @property
    def is_whole(self) -> bool:
        """False for messages whose batch was left on disk."""
        return self.body is not None or self.kind is not Kind.MESSAGES

    @property
    def size(self) -> int:
        body = len(self.body) if isinstance(self.body, bytes) else 0
        return _FIXED_BYTES + body + _DEDUP_RECORD_BYTES * len(self.dedup_records)
