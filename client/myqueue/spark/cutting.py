"""Which rows travel together: messages of one partition wait for more of them until they fill a batch. Pure."""

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

import numpy as np
import pyarrow as pa

from myqueue.spark.rows import sizes_of

Place = TypeVar("Place", bound=Hashable)

HELD_BYTES = 32 << 20  # of all partitions together


class Cutter(Generic[Place]):
    def __init__(self, batch_bytes: int, held_bytes: int = HELD_BYTES) -> None:
        self._batch_bytes = batch_bytes
        self._held_bytes = held_bytes
        self._parts: dict[Place, list[pa.RecordBatch]] = {}
        self._sizes: dict[Place, int] = {}
        self._held = 0

    def add(self, place: Place, messages: pa.RecordBatch) -> Iterator[tuple[Place, pa.RecordBatch]]:
        """Batches that are to go now: full ones, and the largest others when too much is waiting."""
        size = int(sizes_of(messages).sum())
        self._parts.setdefault(place, []).append(messages)
        self._sizes[place] = self._sizes.get(place, 0) + size
        self._held += size
        if self._sizes[place] >= self._batch_bytes:
            *full, last = cut(self._take(place), self._batch_bytes)
            yield from ((place, batch) for batch in full)
            yield from self.add(place, _own(last)) if sizes_of(last).sum() < self._batch_bytes else [(place, last)]
        while self._held > self._held_bytes:
            largest = max(self._sizes, key=lambda one: self._sizes[one])
            yield largest, self._take(largest)

    def rest(self) -> Iterator[tuple[Place, pa.RecordBatch]]:
        for place in list(self._parts):
            yield place, self._take(place)

    def _take(self, place: Place) -> pa.RecordBatch:
        self._held -= self._sizes.pop(place)
        return pa.concat_batches(self._parts.pop(place))


def cut(messages: pa.RecordBatch, batch_bytes: int) -> list[pa.RecordBatch]:
    """The messages in order, in parts of at most so many bytes, but for a single message that is larger."""
    ends = np.cumsum(sizes_of(messages))
    parts = []
    start, before = 0, 0
    while start < len(ends):
        end = max(start + 1, int(np.searchsorted(ends, before + batch_bytes, side="right")))
        parts.append(messages.slice(start, end - start))
        start, before = end, int(ends[end - 1])
    return parts


def _own(messages: pa.RecordBatch) -> pa.RecordBatch:
    """A copy: a slice that waits would keep all the memory that it is a slice of."""
    return messages.take(pa.array(np.arange(messages.num_rows)))
