"""The log of one partition: its entries in order, found by index, by offset and by time; every read is checked.

The writer makes entries readable once the journal has them; the upkeep thread moves them into the partition's files.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import TypeVar

from broker.raft.entry import Kind
from broker.storage import segments as stored
from broker.storage.entry import Corrupted, Entry, Tail
from broker.storage.group import Group, LogPosition, TermRuns, runs_before, runs_from, runs_with, term_before
from broker.storage.log_view import LogView, Moved, entries_in
from broker.storage.open_files import OpenFiles
from broker.storage.partition_recovery import kept_from, recover_files, salvage_files
from broker.storage.record import Record
from broker.storage.segments import SegmentList, Segments
from broker.storage.unflushed import Unflushed, run_of

T = TypeVar("T")
Fields = tuple[int, int, int, int]  # term, append time, base offset and end_bytes of an entry

FOLDER = "partitions"
_FLUSHED_BYTES = 8 << 20  # at a time, by a sync
_STREAMED_BYTES = 1 << 20  # of what is in memory, at a time
_MESSAGES = int(Kind.MESSAGES)
_NO_END = 1 << 63


class PartitionLog:
    """`group` and `tail` are replaced by the writing thread only; everybody else reads them."""

    def __init__(self, files: OpenFiles, group: Group, *, segment_bytes: int = 64 << 20) -> None:
        self.group = group
        self.tail = group.start
        self.unsaved_bytes = 0  # written since the commit index was last stored; the writing thread's own
        self.position = LogPosition(0, 0, group.start, ())
        self.folder = f"{FOLDER}/{group.group_id}"
        self.is_closed = False
        self.is_dropped = False  # the journal says so; set by the writing thread
        self._files = files
        self._segment_bytes = segment_bytes
        self._segments = Segments(files, self.folder, group.group_id, group.start, segment_bytes)
        self._memory = Unflushed(group.first_index)
        self._terms: TermRuns = ()
        self._replaced_from: int | None = None  # the lowest index that was replaced during a flush
        self._unsynced: int | None = None  # oldest journal segment with entries written since the last sync began
        self._syncing: int | None = None  # the same, of the entries before that, until the sync has ended
        self._generation = 0  # of what is stored where: a read that failed is repeated when it changed meanwhile
        self._lock = threading.Lock()  # never held during IO

    @property
    def snapshot_index(self) -> int:
        """How far the stored snapshot goes."""
        return self.group.snapshot.index

    @property
    def unflushed_bytes(self) -> int:
        return self._memory.size_bytes

    @property
    def unsynced_segment(self) -> int | None:
        """The journal segment of the oldest entry that `position` does not cover."""
        with self._lock:
            return self._unsynced if self._syncing is None else self._syncing

    # Start

    def recover(self, position: LogPosition | None, replace_from: int | None) -> int:
        """Takes what the journal says is synced and will not replace. The first index that has to be written again.

        That is `replace_from`, unless the files before it were removed because retention has passed it: then entries
        up to the start of the log are of no use. None as `position` stands for a log that never had an entry before
        `group.first_index`; one with segment 0 says where the log began.
        """
        group = self.group
        position = position or LogPosition(0, 0, group.start, ())
        recovered = recover_files(self._files, self.folder, group, position, replace_from)
        tail = recovered.tail
        with self._lock:
            self._generation += 1
            self._segments.set_recovered(recovered.segments, tail)
            self.tail = tail
            self._memory = Unflushed(tail.next_index)
            self._terms = runs_before(position.terms, tail.next_index)
        self.position = self._end_position()
        return tail.next_index

    def salvage(self) -> None:
        """Takes what can be read of damaged files; they are not changed, and nothing is checked against the journal."""
        recovered = salvage_files(self._files, self.folder, self.group)
        with self._lock:
            self._generation += 1
            self._segments.set_recovered(recovered.segments, recovered.tail)
            self.tail = recovered.tail
            self._memory = Unflushed(recovered.tail.next_index)
            for segment in recovered.segments:
                segment.is_dirty = True  # pages that were never synced may have been read
            for segment in recovered.segments[:-1]:
                segment.index = None  # found again when it is needed
        self.position = self._end_position()

    # Writer

    def tail_before(self, index: int) -> Tail:
        """Where an entry with this index goes; it replaces what is there from it on."""
        return self.tail if index == self.tail.next_index else self.tail_at(index - 1)

    def written(self, entries: Sequence[Entry], records: Sequence[Record], tail: Tail, segment: int) -> None:
        """They are durable in that segment of the journal: readable from now on, instead of what was there."""
        first = entries[0].index
        if first > self.tail.next_index:
            raise ValueError(f"entry {first} does not follow {self.tail.next_index - 1}")
        run = run_of(entries, records, tail)
        with self._lock:
            if first < self.tail.next_index:
                self._generation += 1
                self._replaced_from = min(first, self._replaced_from or first)
            self._memory.add(run)
            self._terms = runs_with(self._terms, entries)
            if self._unsynced is None:
                self._unsynced = segment
            self.tail = tail

    def set_group(self, group: Group) -> None:
        with self._lock:
            if group.first_index != self.group.first_index:
                self._generation += 1
                self._terms = runs_from(self._terms, group.first_index)
            self.group = group

    def start_anew(self, group: Group) -> None:
        """The log goes on from the start of that group, empty, in files of its own; the old ones are the caller's."""
        with self._lock:
            self._generation += 1
            self.folder = f"{FOLDER}/{group.group_id}"
            self._segments = Segments(self._files, self.folder, group.group_id, group.start, self._segment_bytes)
            self._memory = Unflushed(group.first_index)
            self._terms = ()
            self._replaced_from = self._unsynced = self._syncing = None
            self.position = LogPosition(0, 0, group.start, ())
            self.group, self.tail = group, group.start

    # Upkeep

    def flush(self, max_bytes: int) -> int:
        """Appends what is only in memory to the file, without a sync; the bytes written."""
        with self._lock:
            segments = self._segments
            runs = self._memory.oldest(max_bytes)
            first = self._memory.first_index
            term = term_before(self._terms, first, self.group.previous_term)
            self._replaced_from = None
        if not runs:
            return 0
        if first < segments.tail.next_index:
            segments.cut(first)
        pairs = chain.from_iterable(zip(run.entries, run.records, strict=True) for run in runs)
        return segments.append(pairs, term, lambda tail: self._flushed(segments, tail))

    def _flushed(self, segments: Segments, tail: Tail) -> None:
        with self._lock:
            if segments is not self._segments:
                return  # the log has started anew meanwhile
            replaced = self._replaced_from
            self._memory.drop_before(tail.next_index if replaced is None else min(replaced, tail.next_index))

    def sync(self) -> LogPosition:
        """Everything written before the call is in the files and on the disk when it returns."""
        with self._lock:
            segments = self._segments
            end = self.tail.next_index
            if self._syncing is None:
                self._syncing = self._unsynced
            self._unsynced = None
        while self._memory and self._memory.first_index < end and segments is self._segments:
            self.flush(_FLUSHED_BYTES)
        position = self._end_position()
        segments.sync()
        with self._lock:
            if segments is self._segments:  # else the log has started anew meanwhile
                self.position = position
                self._syncing = None
        return self.position

    def _end_position(self) -> LogPosition:
        active, tail = self._segments.active, self._segments.tail
        terms = runs_before(self._terms, tail.next_index)
        segment, at = (0, 0) if active is None else (active.first_index, active.size)
        return LogPosition(segment, at, tail, terms)

    def remove_below(self) -> int:
        """Unlinks files with nothing but entries that retention has passed; the bytes freed."""
        with self._lock:
            segments, index = self._segments, kept_from(self.group)
            if self._memory.first_index < segments.tail.next_index:
                return 0  # a suffix is being replaced: the cut comes first
            self._generation += 1
        return segments.remove_below(index)

    def drop_cache(self, keep_bytes: int) -> None:
        self._segments.drop_cache(keep_bytes)

    def scrub(self, after: int, max_bytes: int) -> int | None:
        """Checks the files from that entry on, about `max_bytes` of them; the next index, None at the end."""

        def read(view: LogView) -> int | None:
            index = max(after, view.group.first_index)
            if index >= view.memory_from:
                return None
            following = stored.scrub(view.segments, self._files, index, view.memory_from, max_bytes)
            return None if following >= view.memory_from else following

        return self._retried(read)

    def close(self) -> None:
        self.is_closed = True
        self._files.forget(self.folder)

    # Reads, on any thread

    def tail_at(self, index: int) -> Tail:
        """The tail of a log that ends with this entry."""

        def read(view: LogView) -> Tail:
            if index < view.group.first_index:
                return view.group.start
            if index == view.tail.next_index - 1:
                return view.tail
            if index >= view.tail.next_index:
                raise Corrupted(f"entry {index} is missing")
            if index >= view.memory_from:
                return self._in_memory(view, lambda memory: memory.tail_at(index))
            return stored.stored_at(view.segments, index).tail

        return self._retried(read)

    def terms(self, last_index: int) -> TermRuns:
        """Runs (first index, term) from the start up to `last_index`."""
        with self._lock:
            runs, first_index = self._terms, self.group.first_index
        return runs_before(runs_from(runs, first_index), last_index + 1)

    def fields(self, index: int) -> Fields | None:
        """None when it is not in the log, or no more."""

        def read(view: LogView) -> Fields | None:
            if not view.group.first_index <= index < view.tail.next_index:
                return None
            if index >= view.memory_from:
                entry, end_bytes = self._in_memory(view, lambda memory: memory.entry(index))
                return entry.term, entry.append_time, entry.base_offset, end_bytes
            found = stored.stored_at(view.segments, index)
            return found.raw[5], found.raw[7], found.raw[6], found.end_bytes

        return self._retried(read)

    def at_index(self, index: int) -> Entry | None:
        """None when it is not in the log, or no more."""
        return next(iter(self.from_index(index, 0)), None)

    def from_index(self, first_index: int, max_bytes: int) -> list[Entry]:
        """At least one and at most about `max_bytes`; none when they were cut."""

        def read(view: LogView) -> list[Entry]:
            if not view.group.first_index <= first_index < view.tail.next_index:
                return []
            end_index = view.tail.next_index
            found = self._collected(view, self._source(view, first_index, end_index, max_bytes), end_index, max_bytes)
            if not found:
                raise Corrupted(f"entry {first_index} is missing")
            return found

        return self._retried(read)

    def at_offset(self, offset: int) -> Entry | None:
        """The entry that holds the message; None when it was cut meanwhile."""
        return next(iter(self.from_offset(offset, _NO_END, 0)), None)

    def from_offset(self, offset: int, last_index: int, max_bytes: int) -> list[Entry]:
        """Entries with messages, the first holds `offset`, none is after `last_index`; nothing when it was cut.

        At least one and at most about `max_bytes`.
        """

        def read(view: LogView) -> list[Entry]:
            if offset < view.group.start_offset:
                return []
            end_index = min(last_index + 1, view.tail.next_index)
            source: Iterable[Entry] = ()
            if offset < view.memory_offset:
                file_end = min(end_index, view.memory_from)
                source = entries_in(stored.run_with(view.segments, offset, file_end, max_bytes))
            else:
                place = self._in_memory(view, lambda memory: memory.entry_with(offset))
                if place is not None:
                    source = self._source(view, place[0].index, end_index, max_bytes)
            found = self._collected(view, source, end_index, max_bytes)
            if not found or not found[0].base_offset <= offset < found[0].end_offset:
                raise Corrupted(f"no entry up to {last_index} holds offset {offset}")
            return [entry for entry in found if entry.count]

        return self._retried(read)

    def place_of(self, offset: int) -> tuple[int, int] | None:
        """Of the entry that holds the message: bytes before it, and its append time; None when it was cut."""

        def read(view: LogView) -> tuple[int, int] | None:
            if offset < view.group.start_offset:
                return None
            if offset < view.memory_offset:
                found = stored.stored_with(view.segments, offset, view.memory_from)
                return found.end_bytes - found.size_bytes, found.raw[7]
            place = self._in_memory(view, lambda memory: memory.entry_with(offset))
            if place is None:
                raise Corrupted(f"no entry holds offset {offset}")
            entry, end_bytes = place
            return end_bytes - entry.size_bytes, entry.append_time

        return self._retried(read)

    def first_appended_since(self, timestamp: int, end: int) -> int:
        """The first entry before `end` appended at or after `timestamp`; `end` when there is none."""
        return self._first(
            end,
            lambda segments, before: stored.first_appended_since(segments, timestamp, before),
            lambda memory: memory.first_appended_since(timestamp),
        )

    def first_ending_beyond(self, end_bytes: int, end: int) -> int:
        """The first entry before `end` that lies beyond that many bytes from the log's beginning; else `end`."""
        return self._first(
            end,
            lambda segments, before: stored.first_ending_beyond(segments, end_bytes, before),
            lambda memory: memory.first_ending_beyond(end_bytes),
        )

    def stream(self, first_index: int, bodies_from: int) -> Iterator[Entry]:
        """Entries from `first_index` to the end, those of messages without their bodies before `bodies_from`.

        Also from before the start of the log, as far as the files are still there.
        """
        expected = first_index
        while expected < self.tail.next_index:
            view, begun = self._view(), expected
            try:
                if expected >= view.memory_from:
                    for entry in self._source(view, expected, _NO_END, _STREAMED_BYTES):
                        yield entry
                        expected += 1
                else:
                    for found in stored.stream(view.segments, expected, view.memory_from, bodies_from):
                        raw = found.raw
                        yield found.entry(with_body=raw[1] != _MESSAGES or raw[4] >= bodies_from)
                        expected += 1
            except Moved:
                continue
            except (Corrupted, FileNotFoundError) as error:
                self._raise_unless_changed(view, error)
            else:
                if expected == begun:
                    self._raise_unless_changed(view, Corrupted(f"entry {expected} is missing"))

    def _first(
        self,
        end: int,
        in_files: Callable[[SegmentList, int], int | None],
        in_memory: Callable[[Unflushed], int | None],
    ) -> int:
        """A search that the files and the memory answer, each for its part."""

        def read(view: LogView) -> int:
            found = None
            if segments := view.searchable_segments():
                found = in_files(segments, view.memory_from)
            if found is None and view.memory_from < view.tail.next_index:
                found = self._in_memory(view, in_memory)
            return max(view.group.first_index, end if found is None else min(found, end))

        return self._retried(read)

    def _source(self, view: LogView, index: int, end_index: int, max_bytes: int) -> Iterable[Entry]:
        """Entries from one on, from memory or from one file, about `max_bytes`."""
        if index >= view.memory_from:
            return self._in_memory(view, lambda memory: memory.entries(index, max_bytes))
        return entries_in(stored.run_from(view.segments, index, min(end_index, view.memory_from), max_bytes))

    def _collected(self, view: LogView, source: Iterable[Entry], end_index: int, max_bytes: int) -> list[Entry]:
        """The entries that fit; goes on in the next file and in memory, but does not read a file twice."""
        found: list[Entry] = []
        size = 0
        while True:
            count = len(found)
            try:
                for entry in source:
                    if entry.index >= end_index or (found and size + entry.size_bytes > max_bytes):
                        return found
                    found.append(entry)
                    size += entry.size_bytes
            except Corrupted:
                if not found:
                    raise
                return found  # they are sound; who reads on meets what is not
            following = found[-1].index + 1 if found else end_index
            if following >= end_index or size >= max_bytes or len(found) == count:
                return found
            if following < view.memory_from and all(file.first_index != following for file in view.segments):
                return found
            source = self._source(view, following, end_index, max_bytes - size)
            if self._generation != view.generation:
                raise Moved

    def _view(self) -> LogView:
        with self._lock:
            memory, tail = self._memory, self.tail
            return LogView(
                self._generation,
                self.group,
                tail,
                self._segments.files,
                memory.first_index,
                memory.first_offset if memory else tail.end_offset,
            )

    def _in_memory(self, view: LogView, look: Callable[[Unflushed], T]) -> T:
        with self._lock:
            if self._generation != view.generation or self._memory.first_index != view.memory_from:
                raise Moved  # into the file, or replaced
            return look(self._memory)

    def _retried(self, read: Callable[[LogView], T]) -> T:
        """What is missing because the log was cut during the read is not damage."""
        while True:
            view = self._view()
            try:
                return read(view)
            except Moved:
                continue
            except (Corrupted, FileNotFoundError) as error:
                self._raise_unless_changed(view, error)

    def _raise_unless_changed(self, view: LogView, error: Corrupted | FileNotFoundError) -> None:
        if self._generation == view.generation and self._segments.files is view.segments:
            if isinstance(error, FileNotFoundError):
                raise Corrupted(f"a file is missing: {error}") from error
            raise error
