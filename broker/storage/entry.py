"""An entry of a partition's log, and the checksum that chains it to the entry before it."""

import struct
from dataclasses import dataclass
from enum import IntEnum

from crc32c import crc32c

_CHAINED = struct.Struct("<QQBQIQI")


class Kind(IntEnum):
    MESSAGE = 0
    NOOP = 1
    CONFIG = 2
    TRUNCATE = 3


@dataclass(frozen=True, slots=True)
class Entry:
    index: int
    term: int
    kind: int
    base_offset: int
    count: int
    append_time: int
    marks: bytes
    batch: bytes

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.count

    @property
    def size_bytes(self) -> int:
        return len(self.marks) + len(self.batch)


def chained_crc(previous: int, entry: Entry) -> int:
    """Covers everything the entry says and, through `previous`, everything before it.

    The length of the marks is covered too: else bytes could move between marks and batch unnoticed.
    """
    head = _CHAINED.pack(
        entry.index, entry.term, entry.kind, entry.base_offset, entry.count, entry.append_time, len(entry.marks)
    )
    crc: int = crc32c(entry.batch, crc32c(entry.marks, crc32c(head, previous)))
    return crc


@dataclass(frozen=True, slots=True)
class Tail:
    """Where the next entry of a log goes."""

    next_index: int
    end_offset: int
    append_time: int
    end_bytes: int
    crc: int

    def after(self, entry: Entry) -> "Tail":
        return Tail(
            next_index=entry.index + 1,
            end_offset=entry.end_offset,
            append_time=entry.append_time,
            end_bytes=self.end_bytes + entry.size_bytes,
            crc=chained_crc(self.crc, entry),
        )
