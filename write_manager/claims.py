"""The cursor decisions of one consumer: claim, deliver, give back, expire, commit, seek. No IO; one caller at a time.

A claim is in flight until a read manager reports that its message was delivered. One that is not reported in time
expires, and its message is read again before anything newer of its partition: a message may be delivered twice, but it
is never skipped.
"""

import hashlib
from bisect import insort
from collections import OrderedDict
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from myqueue.protocol.errors import IdempotencyConflict, Overloaded, PastEnd, StaleCommit
from myqueue.protocol.internal import KEY_IDENTITY

MAX_IN_FLIGHT = 1024
REMEMBERED_CLAIMS = 64  # of those delivered, by request id
REMEMBERED_KEYS = 256  # and by client's key: clients repeat later than the load balancer does
REMEMBERED_COMMITS = 64


@dataclass(slots=True)
class CursorState:
    offset: int  # the next one to read
    given_back: list[int] = field(default_factory=list)  # below it, claimed but not delivered; ascending
    skipped: int = 0  # deleted by retention before they were read

    def give_back(self, offset: int) -> None:
        if offset not in self.given_back:
            insort(self.given_back, offset)

    def skip_to(self, beginning: int) -> bool:
        """Skip offsets below the log's beginning; True when the consumer had not read them."""
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
    lifetime_s: float = 0.0  # how long it may stay in flight
    expires_s: float = 0.0


class ConsumerState:
    def __init__(
        self,
        cursors: dict[int, CursorState],
        next_partition: int,
        in_flight: Iterable[tuple[str, Claimed]] = (),
        delivered: Iterable[tuple[str, Claimed]] = (),
        commits: Iterable[tuple[str, str]] = (),
        *,
        max_in_flight: int = MAX_IN_FLIGHT,
    ) -> None:
        self.cursors = cursors
        self.next_partition = next_partition
        self.max_in_flight = max_in_flight
        # The first to expire first. A claim that is not below its cursor is of a log that was replaced.
        self.in_flight: OrderedDict[str, Claimed] = OrderedDict(
            (identity, claimed)
            for identity, claimed in in_flight
            if claimed.offset < cursors[claimed.partition_id].offset
        )
        # Delivered claims are kept so that a repeated request gets the same message. Clients' keys have a ring of
        # their own: requests without one must not evict them.
        self.delivered_requests: OrderedDict[str, Claimed] = OrderedDict()
        self.delivered_keys: OrderedDict[str, Claimed] = OrderedDict()
        for identity, claimed in delivered:
            self._remember(identity, claimed)
        self.commits: OrderedDict[str, str] = OrderedDict(commits)  # identity -> digest of the committed offsets
        self.moved: set[int] = set()  # partitions whose cursor is not stored yet

    def claim(
        self,
        identity: str,
        partition_id: int | None,
        known: Mapping[int, tuple[int, int]],
        leased: Container[int] = (),
        *,
        now_s: float,
        lifetime_s: float,
    ) -> Claimed | None:
        """The message for this request: the same as before if it is repeated, else the next; None at the end.

        `known` are beginning and end of the partitions. Without a `partition_id`, partitions are read round robin;
        empty ones are skipped, and so are those leased to a member.
        """
        self.expire(now_s)
        repeated = self._repeat(identity, now_s, lifetime_s)
        if repeated is not None:
            return repeated
        if len(self.in_flight) >= self.max_in_flight:  # backpressure
            raise Overloaded(
                f"the consumer has {self.max_in_flight} messages in flight; ask again when some are delivered",
                outcome="not_written",
                retry_after_s=1,
            )
        for candidate in self._candidates(partition_id):
            if candidate in leased:
                continue
            offset = self._take(candidate, *known.get(candidate, (0, 0)))
            if offset is None:
                continue
            if partition_id is None:
                self.next_partition = candidate + 1
            claimed = Claimed(candidate, offset, 1, lifetime_s, now_s + lifetime_s)
            self.in_flight[identity] = claimed
            self.moved.add(candidate)
            return claimed
        return None

    def _repeat(self, identity: str, now_s: float, lifetime_s: float) -> Claimed | None:
        claimed = self.in_flight.get(identity)
        if claimed is not None:
            self.in_flight.move_to_end(identity)
        else:
            claimed = self._ring(identity).get(identity)
        if claimed is not None:
            claimed.attempt += 1
            claimed.lifetime_s, claimed.expires_s = lifetime_s, now_s + lifetime_s
        return claimed

    def _candidates(self, partition_id: int | None) -> list[int]:
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

    def deliver(self, identity: str, partition_id: int, offset: int) -> bool:
        """A read manager has sent the message. False when the claim is not in flight: it expired or was reported.

        A late report of an expired claim does not apply to a later claim of the same identity.
        """
        claimed = self.in_flight.get(identity)
        if claimed is None or (claimed.partition_id, claimed.offset) != (partition_id, offset):
            return False
        del self.in_flight[identity]
        self._remember(identity, claimed)
        return True

    def _ring(self, identity: str) -> OrderedDict[str, Claimed]:
        return self.delivered_keys if identity.startswith(KEY_IDENTITY) else self.delivered_requests

    def _remember(self, identity: str, claimed: Claimed) -> None:
        ring = self._ring(identity)
        ring[identity] = claimed
        while len(ring) > (REMEMBERED_KEYS if ring is self.delivered_keys else REMEMBERED_CLAIMS):
            ring.popitem(last=False)

    def give_back(self, identity: str, attempt: int) -> Claimed | None:
        """The message was not delivered: it is read again before anything newer.

        Only the last attempt may give a claim back: a later one may have delivered after an earlier, slow one began.
        """
        holders = self.in_flight if identity in self.in_flight else self._ring(identity)
        claimed = holders.get(identity)
        if claimed is None or claimed.attempt != attempt:
            return None
        del holders[identity]
        self._read_again(claimed)
        return claimed

    def expire(self, now_s: float) -> int:
        """Give back the claims that were not reported as delivered in time; returns their number."""
        expired = 0
        while self.in_flight:
            identity, claimed = next(iter(self.in_flight.items()))
            if claimed.expires_s > now_s:
                break
            del self.in_flight[identity]
            self._read_again(claimed)
            expired += 1
        return expired

    def _read_again(self, claimed: Claimed) -> None:
        self.cursors[claimed.partition_id].give_back(claimed.offset)
        self.moved.add(claimed.partition_id)

    def committed(self, identity: str, offsets: Mapping[int, int]) -> bool:
        """True when a commit of this identity was made before."""
        digest = self.commits.get(identity)
        if digest is not None and digest != _digest(offsets):
            raise IdempotencyConflict("Idempotency-Key was used before with another commit")
        return digest is not None

    def commit(self, identity: str | None, offsets: Mapping[int, int], ends: Mapping[int, int]) -> None:
        """All of the cursors move forward, or none. `ends` are the ends of the partitions.

        Offsets given back below them are still claimed later: no member has read them.
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
        """The one way to move a cursor back. Earlier claims are dropped: giving one back must not undo the seek."""
        for partition_id, offset in offsets.items():
            cursor = self.cursors[partition_id]
            cursor.offset, cursor.given_back = offset, []
            self.moved.add(partition_id)
        for claims in (self.in_flight, self.delivered_requests, self.delivered_keys):
            for identity in [identity for identity, c in claims.items() if c.partition_id in offsets]:
                del claims[identity]

    def in_flight_rows(self) -> list[list[Any]]:
        return [
            [identity, c.partition_id, c.offset, c.attempt, round(c.lifetime_s * 1000)]
            for identity, c in self.in_flight.items()
        ]

    def delivered_rows(self) -> list[list[Any]]:
        return [
            [identity, c.partition_id, c.offset, c.attempt]
            for ring in (self.delivered_requests, self.delivered_keys)
            for identity, c in ring.items()
        ]

    def commit_rows(self) -> list[list[str]]:
        return [[identity, digest] for identity, digest in self.commits.items()]


def in_flight_from_rows(rows: Iterable[Any], now_s: float) -> list[tuple[str, Claimed]]:
    """Each gets its whole lifetime again: its start was measured on another process's clock.

    So a claim never expires here before the read manager that made it stops delivering it.
    """
    claims = [
        (identity, Claimed(partition_id, offset, attempt, lifetime_ms / 1000, now_s + lifetime_ms / 1000))
        for identity, partition_id, offset, attempt, lifetime_ms in rows
    ]
    return sorted(claims, key=lambda claim: claim[1].expires_s)


def delivered_from_rows(rows: Iterable[Any]) -> list[tuple[str, Claimed]]:
    return [(identity, Claimed(partition_id, offset, attempt)) for identity, partition_id, offset, attempt in rows]


def commits_from_rows(rows: Iterable[Any]) -> list[tuple[str, str]]:
    return [(identity, digest) for identity, digest in rows]


def _digest(offsets: Mapping[int, int]) -> str:
    named = ",".join(f"{partition_id}:{offset}" for partition_id, offset in sorted(offsets.items()))
    return hashlib.blake2b(named.encode(), digest_size=8).hexdigest()
