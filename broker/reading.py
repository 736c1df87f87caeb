"""What can be read of a partition on this broker: everything that is committed and on its disk."""

from dataclasses import dataclass
from uuid import UUID

from broker import slices
from broker.raft.configuration import GroupId, MemberId
from broker.raft.effects import Role
from broker.recent import RecentBatches
from broker.storage.cache import Decoded, ReadCache
from broker.storage.entry import Entry
from broker.storage.groups import Corrupted
from broker.storage.log import Log
from broker.waiting import Waiters
from myqueue.protocol import errors
from myqueue.protocol.batch import CODEC_NONE
from myqueue.protocol.dedup_records import encode_dedup_records


@dataclass(frozen=True, slots=True)
class View:
    """What this replica knows of its group; everything up to the end is committed and on this disk."""

    role: Role = Role.FOLLOWER
    term: int = 0
    leader: MemberId | None = None
    ready: bool = False
    applied: int = 0
    end_offset: int = 0
    start_offset: int = 0


@dataclass(frozen=True, slots=True)
class Bounds:
    start_offset: int
    end_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Since:
    """What is stored from an offset on."""

    size_bytes: int | None  # None: not asked
    oldest: int | None  # when it was appended; None at the end


class Readable:
    """`view` is replaced on the event loop; reads that go to the file may be made on any thread."""

    def __init__(self, log: Log, cache: ReadCache, recent: RecentBatches) -> None:
        self.log = log
        self.name = GroupId(log.group.topic_id, log.group.partition_id)
        self.view = View(term=log.group.hard.term, start_offset=log.group.start_offset)
        self.waiters = Waiters()
        self.damage: str | None = None
        self._cache = cache
        self._recent = recent
        self._dropped = False

    @property
    def topic_id(self) -> UUID:
        return self.name.topic

    @property
    def partition_id(self) -> int:
        return self.name.partition

    @property
    def topic(self) -> str:
        return self.log.group.settings.topic

    # Whole batches

    def has(self, offset: int) -> bool:
        """False at the end; raises when it was cut away."""
        self.check_served()
        view = self.view
        if offset < view.start_offset:
            raise self._out_of_range()
        return offset < view.end_offset

    def recent_batches(self, offset: int, max_bytes: int) -> list[Entry]:
        """On the loop: from the entry that holds `offset` on, as far as they are in memory; at least one fits."""
        group_id, end_offset = self.log.group.group_id, self.view.end_offset
        found: list[Entry] = []
        while offset < end_offset:
            entry = self._recent.find(group_id, offset)
            if entry is None:
                break
            max_bytes -= entry.size_bytes
            if found and max_bytes < 0:
                break
            found.append(entry)
            offset = entry.end_offset
        return found

    def stored_batches(self, offset: int, max_bytes: int) -> list[Entry]:
        """From the file: from the entry that holds `offset` on; at least one fits."""
        try:
            found = self.log.from_offset(offset, self.view.applied, max_bytes)
        except Corrupted as error:
            raise self._damaged(str(error)) from error
        if not found:
            raise self._out_of_range()
        return found

    # Some messages

    def cached_messages(self, offset: int, limit: int) -> bytes | None:
        """On the loop: as `messages`, but None unless they are in memory."""
        group_id = self.log.group.group_id
        decoded = self._cache.find(group_id, offset)
        if decoded is None:
            entry = self._recent.find(group_id, offset)
            if entry is None:
                return None
            decoded = Decoded(entry)
            if decoded.header.codec != CODEC_NONE:
                return None  # unpacking it takes too long for the loop
            if entry.count > limit:  # the next ones will be asked for too
                self._cache.put(group_id, decoded)
        return _part(decoded, offset, limit)

    def fetch(self, offset: int, limit: int) -> bytes | None:
        """At most `limit` messages from `offset` on, as a batch and its marks, all of one entry; None at the end."""
        if not self.has(offset):
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
        try:
            entry = self.log.at_offset(offset)
        except Corrupted as error:
            raise self._damaged(str(error)) from error
        if entry is None:
            return None
        found = Decoded(entry)
        self._cache.put(group_id, found)
        return found

    # Where things are

    def offset_at(self, timestamp: int) -> int:
        """The first offset appended at or after `timestamp`; the end when there is none."""
        self.check_served()
        view = self.view
        try:
            index = self.log.first_appended_since(timestamp, view.applied + 1)
            return view.end_offset if index > view.applied else self.log.fields(index)[2]
        except Corrupted as error:
            raise self._damaged(str(error)) from error

    def since(self, offset: int) -> Since:
        """What is stored from the entry that holds `offset` on; from the start when that was cut away."""
        self.check_served()
        view = self.view
        if offset >= view.end_offset:
            return Since(0, None)
        try:
            place = self.log.place_of(max(offset, view.start_offset))
        except Corrupted as error:
            raise self._damaged(str(error)) from error
        if place is None:  # cut away meanwhile
            return Since(self.bounds().size_bytes, None)
        before_bytes, append_time = place
        return Since(max(0, self.log.tail.end_bytes - before_bytes), append_time)

    def bounds(self) -> Bounds:
        view = self.view
        size_bytes = max(0, self.log.tail.end_bytes - self.log.group.start_bytes)
        return Bounds(view.start_offset, view.end_offset, size_bytes)

    # The end

    def drop(self) -> None:
        self._dropped = True

    def found_damage(self, what: str) -> None:
        """Not served from here on; it is made again from the other replicas."""
        self.damage = self.damage or what

    def check_served(self) -> None:
        if self._dropped:
            raise errors.PartitionNotFound()
        if self.damage is not None:
            raise self._damaged(self.damage)

    def _damaged(self, what: str) -> errors.MyQueueError:
        self.found_damage(what)
        return errors.Unavailable(
            f"the stored log of the partition is damaged on this broker: {what}", outcome="not_written"
        )

    def _out_of_range(self) -> errors.MyQueueError:
        return errors.OffsetOutOfRange(details={"beginning_offset": self.view.start_offset})


def _part(decoded: Decoded, offset: int, limit: int) -> bytes:
    entry = decoded.entry
    first = offset - entry.base_offset
    count = min(limit, entry.end_offset - offset)
    if count == entry.count:
        return entry.data
    part = slices.slice_of(decoded.header, decoded.record_batch, first, count)
    return part + encode_dedup_records(slices.marks_in(decoded.marks, first, count))
