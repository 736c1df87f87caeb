"""The sparse index of a segment: where a record begins, about every 32 KiB; derived from the segment, so only a hint.

An entry, 56 bytes:

    index           8
    term            8
    base offset     8
    append time     8
    end bytes       8    of the log before the record
    position        4    in the segment
    chain           4    of the log before the record
    reserved        4
    CRC             4    of the above

An entry is used only with the record it points to, whose chain it must continue: a stale or damaged entry is noticed
and the index is made again from the segment. So it needs no sync to be safe, only to be there after a power failure.
"""

import struct
import threading
from collections import OrderedDict
from typing import NamedTuple

from crc32c import crc32c

from broker.storage.entry import Corrupted

GAP_BYTES = 32 << 10  # between records that are indexed
INDEX_ENTRY = struct.Struct("<QQQQQIIII")
INDEX_ENTRY_BYTES = INDEX_ENTRY.size
_CHECKED_BYTES = INDEX_ENTRY_BYTES - 4
_CRC = struct.Struct("<I")
_INDEX, _BASE_OFFSET, _APPEND_TIME, _END_BYTES, _POSITION = 0, 2, 3, 4, 5


class IndexEntry(NamedTuple):
    entry_index: int
    term: int
    base_offset: int
    append_time: int
    end_bytes: int
    position: int
    chain: int


def index_entry_bytes(entry: IndexEntry) -> bytes:
    packed = INDEX_ENTRY.pack(*entry, 0, 0)[:_CHECKED_BYTES]
    return packed + _CRC.pack(crc32c(packed))


class SparseIndex:
    """Grows at the end only: readers may use it while the upkeep thread adds to it. Cutting makes another one."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes | bytearray = b"") -> None:
        self._data = bytearray(data[: len(data) - len(data) % INDEX_ENTRY_BYTES])

    def __len__(self) -> int:
        return len(self._data) // INDEX_ENTRY_BYTES

    @property
    def size_bytes(self) -> int:
        return len(self._data)

    def add(self, entries: bytes | bytearray) -> None:
        self._data += entries

    def part(self, begin: int, end: int) -> bytes:
        return bytes(self._data[begin:end])

    def entry(self, number: int) -> IndexEntry:
        """Raises Corrupted."""
        at = number * INDEX_ENTRY_BYTES
        *fields, reserved, crc = INDEX_ENTRY.unpack_from(self._data, at)
        if reserved or crc32c(self._data[at : at + _CHECKED_BYTES]) != crc:
            raise Corrupted(f"entry {number} of the index does not match its checksum")
        return IndexEntry._make(fields)

    def cut(self, index: int) -> "SparseIndex":
        """What points to entries before `index`."""
        return SparseIndex(self._data[: self._count(_INDEX, index) * INDEX_ENTRY_BYTES])

    def last_before_index(self, index: int) -> int:
        """Number of the last entry for a record before `index`; -1 when there is none."""
        return self._count(_INDEX, index) - 1

    def last_up_to_offset(self, offset: int) -> int:
        return self._count(_BASE_OFFSET, offset + 1) - 1

    def last_appended_before(self, timestamp: int) -> int:
        return self._count(_APPEND_TIME, timestamp) - 1

    def last_beginning_within(self, end_bytes: int) -> int:
        return self._count(_END_BYTES, end_bytes + 1) - 1

    def last_up_to_position(self, position: int) -> int:
        return self._count(_POSITION, position + 1) - 1

    def _count(self, field: int, limit: int) -> int:
        """How many entries have a value below the limit; the values never decrease. Raises Corrupted."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self.entry(middle)[field] < limit:
                low = middle + 1
            else:
                high = middle
        return low


def sound_before(index: SparseIndex, end: int) -> SparseIndex:
    """Its entries before `end`; none of them when it is damaged: then it is made again from the segment."""
    try:
        return index.cut(end)
    except Corrupted:
        return SparseIndex()


class IndexCache:
    """Indexes of sealed segments, least recently used first out, bounded by bytes."""

    def __init__(self, max_bytes: int = 16 << 20) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._indexes: OrderedDict[str, SparseIndex] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, name: str) -> SparseIndex | None:
        with self._lock:
            found = self._indexes.get(name)
            if found is not None:
                self._indexes.move_to_end(name)
            return found

    def put(self, name: str, index: SparseIndex) -> None:
        self.drop(name)
        with self._lock:
            self._indexes[name] = index
            self._bytes += index.size_bytes
            while self._bytes > self._max_bytes and len(self._indexes) > 1:
                self._bytes -= self._indexes.popitem(last=False)[1].size_bytes

    def drop(self, name: str) -> None:
        with self._lock:
            dropped = self._indexes.pop(name, None)
            if dropped is not None:
                self._bytes -= dropped.size_bytes
