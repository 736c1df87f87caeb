"""The cursor decisions of one consumer: claim, repeat, give back, commit, seek. No IO; one caller at a time."""

import hashlib
from collections import OrderedDict
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from myqueue.protocol.errors import IdempotencyConflict, PastEnd, StaleCommit

REMEMBERED_CLAIMS = 64
REMEMBERED_COMMITS = 64


@dataclass(slots=True)
class Cursor:
    offset: int  # the next one to read
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
    def __init__(
        self,
        cursors: dict[int, Cursor],
        next_partition: int,
        recent: Iterable[tuple[str, Claimed]],
        commits: Iterable[tuple[str, str]] = (),
    ) -> None:
        self.cursors = cursors
        self.next_partition = next_partition
        self.recent: OrderedDict[str, Claimed] = OrderedDict(recent)
        self.commits: OrderedDict[str, str] = OrderedDict(commits)  # identity -> what it committed, as a digest
        self.moved: set[int] = set()  # partitions whose cursor is not stored yet

    def claim(
        self,
        identity: str,
        partition_id: int | None,
        known: Mapping[int, tuple[int, int]],
        leased: Container[int] = (),
    ) -> Claimed | None:
        """The message for this request: the one it got before if it asked before, else the next; None if all read.

        `known` are beginning and end of the partitions. Without a partition they take turns; empty ones are skipped,
        and so are those that a member has on lease.
        """
        repeated = self.recent.get(identity)
        if repeated is not None:
            repeated.attempt += 1
            return repeated
        for candidate in self._turns(partition_id):
            if candidate in leased:
                continue
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

    def committed(self, identity: str, offsets: Mapping[int, int]) -> bool:
        """True when a commit of this identity was made before."""
        digest = self.commits.get(identity)
        if digest is not None and digest != _digest(offsets):
            raise IdempotencyConflict("Idempotency-Key was used before with another commit")
        return digest is not None

    def commit(self, identity: str | None, offsets: Mapping[int, int], ends: Mapping[int, int]) -> None:
        """All of the cursors move forward, or none. `ends` are the ends of the partitions.

        What was given back below them stays to be claimed: no member has read it.
        """
        for partition_id, offset in offsets.items():
            cursor = self.cursors[partition_id]
            if offset < cursor.offset:
                raise StaleCommit(
                    f"the cursor of partition {partition_id} is at {cursor.offset}, past {offset}",
                    details={"partition_id": partition_id, "cursor": cursor.offset},
                )
            if offset > ends[partition_id]:
                raise PastEnd(
                    f"offset {offset} is past the end of partition {partition_id}, {ends[partition_id]}",
                    details={"partition_id": partition_id, "end_offset": ends[partition_id]},
                )
        for partition_id, offset in offsets.items():
            self.cursors[partition_id].offset = offset
            self.moved.add(partition_id)
        if identity is not None:
            self.commits[identity] = _digest(offsets)
            while len(self.commits) > REMEMBERED_COMMITS:
                self.commits.popitem(last=False)

    def seek(self, offsets: Mapping[int, int]) -> None:
        """The one way back. Claims made before are forgotten: giving one back must not undo the seek."""
        for partition_id, offset in offsets.items():
            cursor = self.cursors[partition_id]
            cursor.offset, cursor.given_back = offset, []
            self.moved.add(partition_id)
        for identity in [identity for identity, c in self.recent.items() if c.partition_id in offsets]:
            del self.recent[identity]

    def recent_rows(self) -> list[list[Any]]:
        return [[identity, c.partition_id, c.offset, c.attempt] for identity, c in self.recent.items()]

    def commit_rows(self) -> list[list[str]]:
        return [[identity, digest] for identity, digest in self.commits.items()]


def recent_from_rows(rows: Iterable[Any]) -> list[tuple[str, Claimed]]:
    return [(identity, Claimed(partition_id, offset, attempt)) for identity, partition_id, offset, attempt in rows]


def commits_from_rows(rows: Iterable[Any]) -> list[tuple[str, str]]:
    return [(identity, digest) for identity, digest in rows]


def _digest(offsets: Mapping[int, int]) -> str:
    named = ",".join(f"{partition_id}:{offset}" for partition_id, offset in sorted(offsets.items()))
    return hashlib.blake2b(named.encode(), digest_size=8).hexdigest()
