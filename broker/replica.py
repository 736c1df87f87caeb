"""One replica of a partition on this broker: its state, and everything that can be read from it.

Readable is what is committed by the group, up to `view.end_offset`: this replica's high watermark. On this disk is
what is applied, up to `view.applied_offset`. On a leader whose followers were faster than its own disk the two differ
for a moment: what lies between them is read from the tail cache.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from uuid import UUID

from broker import batch_slices
from broker.driver import Driver
from broker.leader_requests import LeaderRequests, RequestTimeouts
from broker.long_poll import OffsetWaiters
from broker.raft.configuration import GroupId, MemberId
from broker.raft.effects import Applied, CommittedEntries, Dropped, Role, RoleChanged
from broker.raft.entry import LogEntry
from broker.storage.cache import Decoded, ReadCache
from broker.storage.disk import DiskError
from broker.storage.entry import Corrupted, Entry, log_entry_of
from broker.storage.partition_log import PartitionLog
from broker.tail_cache import TailCache
from myqueue.protocol import errors
from myqueue.protocol.batch import CODEC_NONE
from myqueue.protocol.dedup_records import encode_dedup_records


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """The replica's state in its group; everything up to the end is committed."""

    role: Role = Role.FOLLOWER
    term: int = 0
    leader: MemberId | None = None
    ready: bool = False
    applied: int = 0
    applied_offset: int = 0
    end_offset: int = 0
    start_offset: int = 0


@dataclass(frozen=True, slots=True)
class Bounds:
    start_offset: int
    end_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class StoredSince:
    """Size and age of the messages from an offset on."""

    size_bytes: int | None  # None: not requested
    oldest: int | None  # append time of the first one; None at the end


class Replica:
    """`view` is replaced on the event loop; reads of the file may run on any thread."""

    def __init__(
        self,
        log: PartitionLog,
        me: MemberId,
        driver: Driver,
        cache: ReadCache,
        tail_cache: TailCache,
        check_disk_space: Callable[[int], None],
        timeouts: RequestTimeouts,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.log = log
        self.me = me
        self.name = GroupId(log.group.topic_id, log.group.partition_id)
        self.view = ReplicaView(term=log.group.hard.term, start_offset=log.group.start_offset)
        self.waiters = OffsetWaiters()
        self.damage = log.group.suspect or log.group.damage
        self.on_damage: Callable[[Replica, str], None] = lambda *_: None  # on any thread; must not block
        self.leader_requests = LeaderRequests(self, driver, check_disk_space, timeouts, clock_ms)
        self._cache = cache
        self._tail_cache = tail_cache
        self._dropped = False
        self._committed_offset = 0  # end of what was committed before it was applied

    @property
    def topic_id(self) -> UUID:
        return self.name.topic

    @property
    def partition_id(self) -> int:
        return self.name.partition

    @property
    def topic(self) -> str:
        return self.log.group.settings.topic

    # Callbacks of the driver, on its loop

    def role_changed(self, change: RoleChanged) -> None:
        self.view = replace(self.view, role=change.role, term=change.term, leader=change.leader, ready=change.ready)
        self.leader_requests.role_changed()

    def applied(self, applied: Applied) -> None:
        applied_offset = applied.end_offset
        end_offset = max(applied_offset, self._committed_offset)
        self.view = replace(self.view, applied=applied.last, applied_offset=applied_offset, end_offset=end_offset)
        self._cache_tail(applied.entries)
        self.waiters.grown(applied_offset)

    def committed(self, committed: CommittedEntries) -> None:
        self._committed_offset = committed.end_offset
        self.view = replace(self.view, end_offset=max(self.view.end_offset, committed.end_offset))
        self._cache_tail(committed.entries)
        self.waiters.grown(committed.end_offset)

    def _cache_tail(self, entries: tuple[LogEntry, ...]) -> None:
        group_id = self.log.group.group_id
        for entry in entries:
            if entry.is_whole:
                self._tail_cache.put(group_id, entry)

    def dropped(self, dropped: Dropped) -> None:
        start_offset, view = dropped.start_offset, self.view
        self.view = replace(
            view,
            start_offset=start_offset,
            applied_offset=max(view.applied_offset, start_offset),
            end_offset=max(view.end_offset, start_offset),
        )

    def closed(self) -> None:
        self.waiters.release()

    def read_entries(self, first_index: int, max_bytes: int) -> tuple[LogEntry, ...] | None:
        """On a loading thread: entries for a follower that have left memory; empty when cut, None when damaged."""
        try:
            return tuple(log_entry_of(entry) for entry in self.log.from_index(first_index, max_bytes))
        except Corrupted as error:
            self.found_damage(str(error))
            return None
        except DiskError:
            return None  # the leader tries again

    # Whole batches

    def has(self, offset: int) -> bool:
        """On the loop: False at the end, and for what is committed but neither in memory nor on this disk yet; raises
        when it was cut."""
        return self._has_applied(offset) or self._tail_cache.find(self.log.group.group_id, offset) is not None

    def _has_applied(self, offset: int) -> bool:
        self.check_served()
        view = self.view
        if offset < view.start_offset:
            raise self._out_of_range()
        return offset < view.applied_offset

    def tail_batches(self, offset: int, max_bytes: int) -> list[Entry]:
        """On the loop: from the entry that holds `offset` on, as far as they are in memory; at least one fits."""
        return self._tail_cache.run(self.log.group.group_id, offset, max_bytes)

    def stored_batches(self, offset: int, max_bytes: int) -> list[Entry]:
        """On any thread: from the entry that holds `offset` on, read from the file; at least one fits."""
        with self._reading():
            found = self.log.from_offset(offset, self.view.applied, max_bytes)
        if not found:
            raise self._out_of_range()
        return found

    # Some messages

    def cached_messages(self, offset: int, limit: int) -> bytes | None:
        """On the loop: as `messages`, but None unless they are in memory."""
        group_id = self.log.group.group_id
        decoded = self._cache.find(group_id, offset)
        if decoded is None:
            entry = self._tail_cache.find(group_id, offset)
            if entry is None:
                return None
            decoded = Decoded(entry)
            if decoded.header.codec != CODEC_NONE:
                return None  # decompressing it takes too long for the loop
            if entry.count > limit:  # the next requests will be for the rest of it
                self._cache.put(group_id, decoded)
        return _part(decoded, offset, limit)

    def messages(self, offset: int, limit: int) -> bytes | None:
        """At most `limit` messages from `offset` on, of one entry, as a batch with dedup records; None at the end."""
        if not self._has_applied(offset):
            return None
        decoded = self._read(offset)
        if decoded is None:
            raise self._out_of_range()
        return _part(decoded, offset, limit)

    def _read(self, offset: int) -> Decoded | None:
        group_id = self.log.group.group_id
        found = self._cache.find(group_id, offset)
        if found is not None:
            return found
        with self._reading():
            entry = self.log.at_offset(offset)
        if entry is None:
            return None
        # A copy: the body is a view of everything that was read with it.
        found = Decoded(replace(entry, body=bytes(entry.body)))
        self._cache.put(group_id, found)
        return found

    # Offsets

    def offset_at(self, timestamp: int) -> int:
        """The first offset appended at or after `timestamp`; the end when there is none."""
        self.check_served()
        view = self.view
        with self._reading():
            index = self.log.first_appended_since(timestamp, view.applied + 1)
            found = self.log.fields(index) if index <= view.applied else None
        return view.applied_offset if found is None else found[2]

    def since(self, offset: int) -> StoredSince:
        """Size and age from the entry that holds `offset` on; from the start when that was cut."""
        self.check_served()
        view = self.view
        if offset >= view.applied_offset:
            return StoredSince(0, None)
        with self._reading():
            place = self.log.place_of(max(offset, view.start_offset))
        if place is None:  # cut meanwhile
            return StoredSince(self.bounds().size_bytes, None)
        before_bytes, append_time = place
        return StoredSince(max(0, self.log.tail.end_bytes - before_bytes), append_time)

    def bounds(self) -> Bounds:
        view = self.view
        size_bytes = max(0, self.log.tail.end_bytes - self.log.group.start_bytes)
        return Bounds(view.start_offset, view.end_offset, size_bytes)

    # Availability

    def drop(self) -> None:
        self._dropped = True

    @property
    def votes(self) -> bool:
        """False for a suspect replica: it may have lost what it promised, so it takes no part in its group."""
        return self.log.group.suspect is None

    def show_stored(self, last_index: int, end_offset: int) -> None:
        """Before it takes part in its group, and when it is suspect: what was committed, as far as it is sound."""
        self.view = replace(self.view, applied=last_index, applied_offset=end_offset, end_offset=end_offset)

    def found_damage(self, what: str) -> None:
        """What is sound is served on; it is made again only when its group has removed it."""
        if self.damage is None:
            self.damage = what
            self.on_damage(self, what)

    def check_served(self) -> None:
        if self._dropped:
            raise errors.PartitionNotFound()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Damage is remembered; an error of the disk is not damage."""
        try:
            yield
        except Corrupted as error:
            self.found_damage(str(error))
            raise errors.Unavailable(
                f"the stored log of the partition is damaged on this broker: {error}", outcome="not_written"
            ) from error
        except DiskError as error:
            raise errors.Unavailable(f"the broker's disk cannot be read: {error}", outcome="not_written") from error

    def _out_of_range(self) -> errors.MyQueueError:
        return errors.OffsetOutOfRange(details={"beginning_offset": self.view.start_offset})


def _part(decoded: Decoded, offset: int, limit: int) -> bytes:
    entry = decoded.entry
    first = offset - entry.base_offset
    count = min(limit, entry.end_offset - offset)
    if count == entry.count:
        return entry.data
    part = batch_slices.slice_of(decoded.header, decoded.record_batch, first, count)
    return part + encode_dedup_records(batch_slices.dedup_records_in(decoded.dedup_records, first, count))
