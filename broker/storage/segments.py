"""The files of one partition, one after the other: appended to, cut at either end, and read."""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import closing

from broker.storage.disk import DiskError, DiskFile, NoSpace
from broker.storage.entry import Corrupted, Entry, Tail
from broker.storage.open_files import OpenFiles
from broker.storage.partition_file import (
    FILE_HEADER_BYTES,
    Addition,
    FileStart,
    PartitionFile,
    Records,
    StoredRecord,
    file_header,
    file_start_of,
)
from broker.storage.record import Record
from broker.storage.sparse_index import SparseIndex, sound_before

SegmentList = tuple[PartitionFile, ...]

_INDEX_SYNC_BYTES = 16 << 10  # of index, about 9 MiB of log: so much is walked at most after a power failure


class Segments:
    """Changed by the upkeep thread only. `files` is replaced as a whole: readers use the one they took."""

    def __init__(self, files: OpenFiles, folder: str, group: int, tail: Tail, segment_bytes: int) -> None:
        self.files: SegmentList = ()
        self.tail = tail  # where the files end
        self.folder = folder
        self._open_files = files
        self._group = group
        self._segment_bytes = segment_bytes
        self._is_folder_dirty = False

    def set_recovered(self, files: SegmentList, tail: Tail) -> None:
        self.files, self.tail = files, tail

    @property
    def active(self) -> PartitionFile | None:
        return self.files[-1] if self.files else None

    # Appending

    def append(
        self, entries: Iterable[tuple[Entry, Record]], term_before: int, appended: Callable[[Tail], None]
    ) -> int:
        """One write for each file; `appended` is called when the entries before that tail are readable. The bytes."""
        size = 0
        addition = self._addition(term_before)
        for entry, record in entries:
            if addition.next_at >= self._segment_bytes and addition.last is not None:
                size += self._write(addition, appended)
                addition = self._addition(addition.last.term)
            addition.add(entry, record)
        return size + self._write(addition, appended)

    def _addition(self, term_before: int) -> Addition:
        tail, active = self.tail, self.active
        if active is None or active.size >= self._segment_bytes:
            addition = Addition(0, -1, tail.end_bytes, tail.crc)
            addition.add_header(file_header(self._group, FileStart(tail, term_before)))
            return addition
        index = active.index
        assert index is not None
        indexed_at = index.entry(len(index) - 1).position if len(index) else -1
        return Addition(active.size, indexed_at, tail.end_bytes, tail.crc)

    def _write(self, addition: Addition, appended: Callable[[Tail], None]) -> int:
        target = self._made() if addition.at == 0 else self.files[-1]
        with self._open_files.pinned(target.name) as file:
            file.write(addition.parts(), addition.at)
        assert target.index is not None
        target.index.add(addition.index_entries)
        target.size = addition.next_at
        target.is_dirty = True
        if addition.at == 0:
            self.files = (*self.files, target)
        self.tail = addition.tail
        appended(self.tail)
        return addition.next_at - addition.at

    # Cutting

    def cut(self, index: int) -> None:
        """The entries from `index` on are replaced: nothing of them may stand behind the end when others follow."""
        last = _segment(self.files, index)
        tail, at = last.start().tail, FILE_HEADER_BYTES
        if index > last.first_index:
            found = stored_at(self.files, index - 1)
            tail, at = found.tail, found.end_at
        with self._open_files.pinned(last.name) as file:
            sparse_index = sound_before(last.sparse_index(file), index)
        shorter = PartitionFile(self._open_files, self.folder, self._group, last.base_offset, last.first_index)
        shorter.index, shorter.size, shorter.is_dirty = sparse_index, at, True
        shorter.index_stored = min(last.index_stored, sparse_index.size_bytes)
        # The tail is set when all of it is done: a cut that failed is made again. Nobody reads what is replaced.
        while self.files[-1] is not last:
            self._is_folder_dirty = True  # a file of replaced entries must not come back
            self._unlink(self.files[-1])
            self.files = self.files[:-1]
        with self._open_files.pinned(shorter.name) as file:
            file.truncate(at)
        self._open_files.indexes.drop(shorter.index_name)
        self.files, self.tail = (*self.files[:-1], shorter), tail

    def remove_below(self, index: int) -> int:
        """Unlinks the files with nothing but entries before `index`, also the active one; the bytes freed."""
        size = 0
        while self.files:
            following = self.files[1].first_index if len(self.files) > 1 else self.tail.next_index
            if following > index:
                break
            size += self._unlink(self.files[0])
            self.files = self.files[1:]
        return size

    def _made(self) -> PartitionFile:
        """An empty file, to be appended to."""
        tail = self.tail
        made = PartitionFile(self._open_files, self.folder, self._group, tail.end_offset, tail.next_index)
        made.index, made.size = SparseIndex(), 0
        self._is_folder_dirty = True
        self._open_files.remove(made.name)  # what a write that failed has left
        with self._open_files.pinned(made.name, create=True):
            return made

    def _unlink(self, segment: PartitionFile) -> int:
        size = 0
        for name in (segment.index_name, segment.name):  # a file without its index is whole
            try:
                with self._open_files.pinned(name) as file:
                    size += file.size_bytes
            except FileNotFoundError:
                continue  # an index that was never stored
            self._open_files.remove(name)
        self._open_files.indexes.drop(segment.index_name)
        return size

    # Syncing

    def sync(self) -> None:
        for segment in self.files:
            if segment.is_dirty:
                with self._open_files.pinned(segment.name) as file:
                    _sync(file)
                self._store_index(segment, is_sealed=segment is not self.files[-1])
                segment.is_dirty = False
        if self._is_folder_dirty:
            self._open_files.disk.sync_folder(self.folder)
            self._is_folder_dirty = False

    def _store_index(self, segment: PartitionFile, *, is_sealed: bool) -> None:
        index = segment.index
        if index is None:
            return
        size = index.size_bytes
        with self._open_files.pinned(segment.index_name, create=True) as file:
            file.write([index.part(segment.index_stored, size)], segment.index_stored)
            if file.size_bytes > size:
                file.truncate(size)
            segment.index_stored = size
            if is_sealed or size - segment.index_synced >= _INDEX_SYNC_BYTES:
                file.sync()
                segment.index_synced = size
                self._is_folder_dirty = True
        if is_sealed:
            self._open_files.indexes.put(segment.index_name, index)
            segment.index = None

    def drop_cache(self, keep_bytes: int) -> None:
        """The kernel may forget the pages of what is synced, all but the last `keep_bytes` of it."""
        for segment in reversed(self.files):
            size = segment.size
            if size < 0 or segment.is_dirty:
                keep_bytes -= max(size, 0)
                continue
            end = size - max(keep_bytes, 0)
            keep_bytes -= size
            if end > segment.dropped_at:
                with self._open_files.pinned(segment.name) as file:
                    file.drop_cache(segment.dropped_at, end - segment.dropped_at)
                segment.dropped_at = end


def _sync(file: DiskFile) -> None:
    """After a failure the kernel may have forgotten what it did not write: a second call proves nothing."""
    try:
        file.sync()
    except NoSpace as error:
        raise DiskError(f"a full disk showed in a sync only: {error}") from error


# Reading, on any thread, from a list of files that was taken before. What is missing is Corrupted, or the file was
# removed meanwhile: FileNotFoundError.


def stored_at(segments: SegmentList, index: int) -> StoredRecord:
    """The record of one entry; without its body if that is messages."""
    records = _segment(segments, index).records(lambda sparse: sparse.last_before_index(index + 1), end_index=index + 1)
    found = _found(records, lambda stored: stored.raw[4] == index)
    if found is None:
        raise Corrupted(f"entry {index} is missing")
    return found


def stored_with(segments: SegmentList, offset: int, end_index: int) -> StoredRecord:
    """The record of the entry that holds a message."""
    records = _segment_with(segments, offset).records(
        lambda sparse: sparse.last_up_to_offset(offset), end_index=end_index
    )
    found = _found(records, lambda stored: stored.raw[6] + stored.raw[8] > offset)
    if found is None:
        raise Corrupted(f"no entry holds offset {offset}")
    return found


def run_from(segments: SegmentList, index: int, end_index: int, max_bytes: int) -> Records:
    """Records with their bodies from one entry on, in one read of about `max_bytes`, of one file."""
    records = _segment(segments, index).records(
        lambda sparse: sparse.last_before_index(index + 1),
        end_index=end_index,
        bodies_from=index,
        max_bytes=max_bytes,
    )
    return _from_first(records, lambda stored: stored.raw[4] >= index)


def run_with(segments: SegmentList, offset: int, end_index: int, max_bytes: int) -> Records:
    """The same from the entry on that holds a message."""
    records = _segment_with(segments, offset).records(
        lambda sparse: sparse.last_up_to_offset(offset),
        end_index=end_index,
        bodies_from_offset=offset,
        max_bytes=max_bytes,
    )
    return _from_first(records, lambda stored: stored.raw[6] + stored.raw[8] > offset)


def first_appended_since(segments: SegmentList, timestamp: int, end_index: int) -> int | None:
    segment = _last_where(segments, lambda found: found.start().tail.append_time < timestamp)
    records = segment.records(lambda sparse: sparse.last_appended_before(timestamp), end_index=end_index)
    found = _found(records, lambda stored: stored.raw[7] >= timestamp)
    return None if found is None else found.raw[4]


def first_ending_beyond(segments: SegmentList, end_bytes: int, end_index: int) -> int | None:
    segment = _last_where(segments, lambda found: found.start().tail.end_bytes <= end_bytes)
    records = segment.records(lambda sparse: sparse.last_beginning_within(end_bytes), end_index=end_index)
    found = _found(records, lambda stored: stored.end_bytes > end_bytes)
    return None if found is None else found.raw[4]


def stream(segments: SegmentList, index: int, end_index: int, bodies_from: int) -> Records:
    """Records from one entry on to the end of its file."""
    records = _segment(segments, index).records(
        lambda sparse: sparse.last_before_index(index + 1), end_index=end_index, bodies_from=bodies_from
    )
    return _from_first(records, lambda stored: stored.raw[4] >= index)


def scrub(segments: SegmentList, files: OpenFiles, index: int, end_index: int, max_bytes: int) -> int:
    """Reads from the disk, not from the kernel's pages. The index after what was checked."""
    number = max(bisect_right(segments, index, key=lambda segment: segment.first_index) - 1, 0)
    segment = segments[number]
    with files.pinned(segment.name) as file:
        file.drop_cache(0, FILE_HEADER_BYTES)
        file_start_of(file.read(0, FILE_HEADER_BYTES), segment.group, segment.first_index)
    records = segment.records(
        lambda sparse: sparse.last_before_index(index + 1),
        end_index=end_index,
        bodies_from=index,
        max_bytes=max_bytes,
        from_disk=True,
    )
    with closing(records):
        last = next(iter(deque(records, maxlen=1)), None)
    if last is None:
        raise Corrupted(f"entry {index} is missing")
    following = segments[number + 1] if number + 1 < len(segments) else None
    if following is not None and last.end_at == segment.size and following.start().tail != last.tail:
        raise Corrupted(f"the segments do not fit at entry {following.first_index}")
    return last.tail.next_index


def _segment(segments: SegmentList, index: int) -> PartitionFile:
    number = bisect_right(segments, index, key=lambda segment: segment.first_index) - 1
    if number < 0:
        raise Corrupted(f"entry {index} is missing")
    return segments[number]


def _segment_with(segments: SegmentList, offset: int) -> PartitionFile:
    number = bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1
    if number < 0:
        raise Corrupted(f"no entry holds offset {offset}")
    return segments[number]


def _last_where(segments: SegmentList, holds: Callable[[PartitionFile], bool]) -> PartitionFile:
    """The last file for which it holds, and for all before it; the first when there is none."""
    low, high = 1, len(segments)
    while low < high:
        middle = (low + high) // 2
        if holds(segments[middle]):
            low = middle + 1
        else:
            high = middle
    return segments[low - 1]


def _found(records: Records, holds: Callable[[StoredRecord], bool]) -> StoredRecord | None:
    with closing(records):
        return next((stored for stored in records if holds(stored)), None)


def _from_first(records: Records, holds: Callable[[StoredRecord], bool]) -> Records:
    with closing(records):
        for stored in records:
            if holds(stored):
                yield stored
                yield from records
