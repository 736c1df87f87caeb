"""The cursor decisions of one consumer: claim, repeat, give back. No IO; the caller holds the consumer's lock."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

REMEMBERED_CLAIMS = 64


@dataclass(slots=True)
class Cursor:
    offset: int  # the next one to read; never goes back
    given_back: list[int] = field(default_factory=list)  # below it, claimed but received by nobody; ascending
    skipped: int = 0  # gone before they were read

    def skip_to(self, beginning: int) -> bool:
        """Past what is no longer stored; True when that was something this consumer had not read."""
        kept = [offset for offset in self.given_back if offset >= beginning]
        gone = len(self.given_back) - len(kept) + max(0, beginning - self.offset)
        self.given_back = kept
        self.offset = max(self.offset, beginning)
        self.skipped += gone
        return gone > 0


@dataclass(slots=True)
class Claimed:
    partition_id: int
    offset: int
    attempt: int


class ConsumerState:
    def __init__(self, cursors: dict[int, Cursor], next_partition: int, recent: Iterable[tuple[str, Claimed]]) -> None:
        self.cursors = cursors
        self.next_partition = next_partition
        self.recent: OrderedDict[str, Claimed] = OrderedDict(recent)
        self.moved: set[int] = set()  # partitions whose cursor is not stored yet

    def claim(self, identity: str, partition_id: int | None, known: Mapping[int, tuple[int, int]]) -> Claimed | None:
        """The message for this request: the one it got before if it asked before, else the next; None if all read.

        `known` are beginning and end of the partitions. Without a partition they take turns, empty ones are skipped.
        """
        repeated = self.recent.get(identity)
        if repeated is not None:
            repeated.attempt += 1
            return repeated
        for candidate in self._turns(partition_id):
            offset = self._take(candidate, *known.get(candidate, (0, 0)))
            if offset is None:
                continue
            if partition_id is None:
                self.next_partition = candidate + 1
            claimed = Claimed(candidate, offset, 1)
            self._remember(identity, claimed)
            self.moved.add(candidate)
            return claimed
        return None

    def _turns(self, partition_id: int | None) -> list[int]:
        if partition_id is not None:
            return [partition_id]
        partitions = sorted(self.cursors)
        return [p for p in partitions if p >= self.next_partition] + [p for p in partitions if p < self.next_partition]

    def _take(self, partition_id: int, beginning: int, end: int) -> int | None:
        cursor = self.cursors[partition_id]
        if cursor.skip_to(beginning):
            self.moved.add(partition_id)
        if cursor.given_back:
            return cursor.given_back.pop(0)
        if cursor.offset >= end:
            return None
        cursor.offset += 1
        return cursor.offset - 1

    def _remember(self, identity: str, claimed: Claimed) -> None:
        self.recent[identity] = claimed
        while len(self.recent) > REMEMBERED_CLAIMS:
            self.recent.popitem(last=False)

    def give_back(self, identity: str, attempt: int) -> Claimed | None:
        """Nobody received the message: it is read again before anything newer.

        Only the last attempt may say so. An earlier one that was slow does not know that a later one delivered.
        """
        claimed = self.recent.get(identity)
        if claimed is None or claimed.attempt != attempt:
            return None
        del self.recent[identity]
        cursor = self.cursors[claimed.partition_id]
        cursor.given_back = sorted({*cursor.given_back, claimed.offset})
        self.moved.add(claimed.partition_id)
        return claimed

    def recent_rows(self) -> list[list[Any]]:
        return [[identity, c.partition_id, c.offset, c.attempt] for identity, c in self.recent.items()]


def recent_from_rows(rows: Iterable[Any]) -> list[tuple[str, Claimed]]:
    return [(identity, Claimed(partition_id, offset, attempt)) for identity, partition_id, offset, attempt in rows]
