"""The tail of every partition in memory: most fetches read the newest batches.

Used on the event loop only. Cached entries are committed, so they never change.
"""

from bisect import bisect_right
from collections import deque

from broker.raft.entry import LogEntry
from broker.storage.entry import Entry, entry_of

_OVERHEAD_BYTES = 600  # of the objects around a small batch
_COMPACTED = 64


class _PartitionTail:
    """In order of offsets; the oldest are evicted first, by moving `gone`."""

    __slots__ = ("bases", "entries", "gone")

    def __init__(self) -> None:
        self.bases: list[int] = []
        self.entries: list[LogEntry | Entry | None] = []
        self.gone = 0

    def drop_first(self) -> None:
        self.entries[self.gone] = None
        self.gone += 1
        if self.gone >= _COMPACTED and self.gone * 2 >= len(self.bases):
            del self.bases[: self.gone]
            del self.entries[: self.gone]
            self.gone = 0


class TailCache:
    """First in, first out over all partitions, bounded by bytes."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.size_bytes = 0
        self._groups: dict[int, _PartitionTail] = {}
        self._order: deque[tuple[int, int]] = deque()  # group and size, oldest first

    def put(self, group_id: int, entry: LogEntry) -> None:
        size = entry.size + _OVERHEAD_BYTES
        if not entry.count or size > self._max_bytes:
            return
        group = self._groups.setdefault(group_id, _PartitionTail())
        if group.bases and entry.base_offset <= group.bases[-1]:
            return
        group.bases.append(entry.base_offset)
        group.entries.append(entry)
        self._order.append((group_id, size))
        self.size_bytes += size
        while self.size_bytes > self._max_bytes:
            oldest, freed = self._order.popleft()
            kept = self._groups[oldest]
            kept.drop_first()
            if kept.gone == len(kept.bases):
                del self._groups[oldest]
            self.size_bytes -= freed

    def find(self, group_id: int, offset: int) -> Entry | None:
        """The entry that holds the message at `offset`."""
        for entry in self.run(group_id, offset, 0):
            return entry
        return None

    def run(self, group_id: int, offset: int, max_bytes: int) -> list[Entry]:
        """Entries one after the other, the first holds the message at `offset`; at least one fits."""
        group = self._groups.get(group_id)
        if group is None:
            return []
        first = bisect_right(group.bases, offset) - 1
        if first < group.gone:
            return []
        found: list[Entry] = []
        entries = group.entries
        for position in range(first, len(entries)):
            if found and max_bytes <= 0:
                break
            entry = entries[position]
            assert entry is not None
            if isinstance(entry, LogEntry):
                entry = entries[position] = entry_of(entry)
            max_bytes -= entry.size_bytes
            if found and (max_bytes < 0 or entry.base_offset != offset):
                break
            if offset >= entry.end_offset:
                break
            found.append(entry)
            offset = entry.end_offset
        return found
