"""Entries that were read lately, so that reading a large batch message by message does not read it again each time."""

import threading
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from broker.storage.entry import Entry
from myqueue.protocol import batch as batches
from myqueue.protocol.batch import Header
from myqueue.protocol.dedup_records import DedupRecord, decode_dedup_records


@dataclass(frozen=True)
class Decoded:
    """An entry as read and checked; its parts are decoded when somebody first asks."""

    entry: Entry

    @cached_property
    def header(self) -> Header:
        return batches.decode_header(self.entry.head)

    @cached_property
    def record_batch(self) -> pa.RecordBatch:
        return batches.decode_body(self.entry.body)

    @cached_property
    def size_bytes(self) -> int:
        """In memory: the decoded batch shares the bytes of the entry unless it was compressed."""
        unpacked: int = self.record_batch.nbytes if self.header.codec != batches.CODEC_NONE else 0
        return self.entry.size_bytes + unpacked

    @cached_property
    def dedup_records(self) -> list[DedupRecord]:
        return decode_dedup_records(self.entry.dedup_records, self.entry.count)


class ReadCache:
    """Least recently used first out, bounded by bytes, over all partitions."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._entries: OrderedDict[tuple[int, int], Decoded] = OrderedDict()  # by group and base offset
        self._bases: dict[int, list[int]] = {}  # base offsets held of a group, in order
        self._lock = threading.Lock()

    def find(self, group_id: int, offset: int) -> Decoded | None:
        """The entry of the group that holds the message at `offset`."""
        with self._lock:
            bases = self._bases.get(group_id, [])
            position = bisect_right(bases, offset) - 1
            if position < 0:
                return None
            key = (group_id, bases[position])
            found = self._entries[key]
            if offset >= found.entry.end_offset:
                return None
            self._entries.move_to_end(key)
            return found

    def put(self, group_id: int, decoded: Decoded) -> None:
        if decoded.entry.count < 2 or decoded.size_bytes > self._max_bytes:
            return  # a message on its own is read at most once per reader
        key = (group_id, decoded.entry.base_offset)
        with self._lock:
            if key in self._entries:
                return
            self._entries[key] = decoded
            insort(self._bases.setdefault(group_id, []), decoded.entry.base_offset)
            self._bytes += decoded.size_bytes
            while self._bytes > self._max_bytes:
                (group, base_offset), old = self._entries.popitem(last=False)
                bases = self._bases[group]
                del bases[bisect_left(bases, base_offset)]
                self._bytes -= old.size_bytes
