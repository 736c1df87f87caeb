"""An entry as the file keeps it, and the checksum that chains it to the entry before it."""

import struct
from dataclasses import dataclass

from crc32c import crc32c

_CHAINED = struct.Struct("<QQBQIQII")


@dataclass(frozen=True, slots=True)
class Entry:
    """Of a batch, header and body are apart: what identifies it is read without its body."""

    index: int
    term: int
    kind: int
    base_offset: int
    count: int
    append_time: int
    head: bytes  # the batch's header; empty for entries without messages
    marks: bytes
    body: bytes | memoryview  # the batch's body, or what another kind of entry says

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.count

    @property
    def size_bytes(self) -> int:
        return len(self.head) + len(self.marks) + len(self.body)

    @property
    def data(self) -> bytes:
        """The batch with its marks, as it travels."""
        return b"".join((self.head, self.body, self.marks))


def chained_crc(previous: int, entry: Entry) -> int:
    """Covers everything the entry says and, through `previous`, everything before it.

    The lengths are covered too: else bytes could move from one part to the next unnoticed.
    """
    head = _CHAINED.pack(
        entry.index,
        entry.term,
        entry.kind,
        entry.base_offset,
        entry.count,
        entry.append_time,
        len(entry.head),
        len(entry.marks),
    )
    crc: int = crc32c(entry.body, crc32c(entry.marks, crc32c(entry.head, crc32c(head, previous))))
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
