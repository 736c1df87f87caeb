"""The files of a partition after a start: what was never synced or is replaced by the journal is cut off."""

import re
from contextlib import closing
from typing import NamedTuple

from broker.storage.entry import Corrupted, Tail
from broker.storage.group import Group, LogPosition
from broker.storage.open_files import OpenFiles
from broker.storage.partition_file import FILE_HEADER_BYTES, PartitionFile, stored_index
from broker.storage.sparse_index import sound_before

_NO_END = 1 << 63
_NAME = re.compile(r"(\d{20})-(\d+)\.log")


class RecoveredFiles(NamedTuple):
    segments: tuple[PartitionFile, ...]
    tail: Tail  # where the files end


def kept_from(group: Group) -> int:
    """Entries before this one are not needed: neither read nor replayed on top of the snapshot.

    A log starts where it does only with the snapshot that goes that far, so this is the start.
    """
    return min(group.first_index, group.snapshot.index + 1)


def recover_files(
    files: OpenFiles, folder: str, group: Group, position: LogPosition, replace_from: int | None
) -> RecoveredFiles:
    """Raises Corrupted when entries are missing or wrong that must be there."""
    synced_to = position.tail.next_index
    end = synced_to if replace_from is None else min(synced_to, replace_from)
    if replace_from is not None and replace_from > synced_to:
        raise Corrupted(f"entries from {synced_to} to {replace_from - 1} are missing")
    needed_from = kept_from(group)
    segments = _found(files, folder, group.group_id)
    try:
        last = _last_segment(segments, position, end)
        tail, at = (position.tail, 0) if last is None else _end_of(files, last, position, end)
    except (Corrupted, FileNotFoundError):
        if end > needed_from:
            raise
        # Nothing in the files is needed: they were removed, as a whole or in part. What the journal holds from the
        # start of the log on is enough.
        last, at = None, 0
        tail = position.tail if end == synced_to else group.start
    kept = [] if last is None else [segment for segment in segments if segment.first_index <= last.first_index]
    while len(kept) > 1 and kept[1].first_index <= needed_from:
        del kept[0]
    first_kept = kept[0].first_index if kept else tail.next_index
    if first_kept > needed_from:
        raise Corrupted(f"entries from {needed_from} to {first_kept - 1} are missing")
    if last is not None:
        _truncate(files, last, at, end)
    _remove_others(files, folder, kept)
    return RecoveredFiles(tuple(kept), tail)


def salvage_files(files: OpenFiles, folder: str, group: Group) -> RecoveredFiles:
    """What can be read of a log that is not what it should be, from its first file on; nothing is changed."""
    kept: list[PartitionFile] = []
    tail = group.start
    for segment in _found(files, folder, group.group_id):
        if kept and segment.first_index != tail.next_index:
            break
        try:
            tail = _salvage_segment(files, segment)
        except (Corrupted, FileNotFoundError):
            break
        kept.append(segment)
    return RecoveredFiles(tuple(kept), tail)


def _salvage_segment(files: OpenFiles, segment: PartitionFile) -> Tail:
    with files.pinned(segment.name) as file:
        size = segment.size = file.size_bytes
    segment.index = stored_index(files, segment.index_name)
    tail, at = segment.start().tail, FILE_HEADER_BYTES
    try:
        with closing(segment.records(lambda index: index.last_before_index(_NO_END))) as records:
            for found in records:
                if found.end_at > size:
                    break
                tail, at = found.tail, found.end_at
    except Corrupted:
        """The record behind is torn or damaged."""
    segment.size = at
    segment.index = sound_before(segment.index, tail.next_index)
    return tail


def _found(files: OpenFiles, folder: str, group: int) -> list[PartitionFile]:
    matches = [_NAME.fullmatch(name) for name in files.disk.names(folder)]
    found = [PartitionFile(files, folder, group, int(match[1]), int(match[2])) for match in matches if match]
    return sorted(found, key=lambda segment: segment.first_index)


def _last_segment(segments: list[PartitionFile], position: LogPosition, end: int) -> PartitionFile | None:
    """The one that holds the place where `end` goes; None: the log has no files."""
    if position.segment == 0:
        if end < position.tail.next_index:
            raise Corrupted(f"entry {end - 1} is missing")
        return None
    if end == position.tail.next_index:
        found = [segment for segment in segments if segment.first_index == position.segment]
        if not found:
            raise Corrupted(f"the segment from entry {position.segment} on is missing")
        return found[0]
    before = [segment for segment in segments if segment.first_index <= end]
    if not before:
        raise Corrupted(f"entry {end - 1} is missing")
    return before[-1]


def _end_of(files: OpenFiles, segment: PartitionFile, position: LogPosition, end: int) -> tuple[Tail, int]:
    """The tail of the log before entry `end`, and the position of its place in the segment."""
    is_synced_end = end == position.tail.next_index
    with files.pinned(segment.name) as file:
        segment.size = position.at if is_synced_end else file.size_bytes
        if file.size_bytes < segment.size:
            raise Corrupted(f"the segment from entry {segment.first_index} on has only {file.size_bytes} bytes")
    segment.index = sound_before(stored_index(files, segment.index_name), end)
    segment.index_stored = segment.index.size_bytes
    tail, at = segment.start().tail, FILE_HEADER_BYTES
    if end > segment.first_index:
        with closing(segment.records(lambda index: index.last_before_index(end))) as records:
            for found in records:
                tail, at = found.tail, found.end_at
                if tail.next_index == end:
                    break
    if tail.next_index != end:
        raise Corrupted(f"entry {tail.next_index} is missing")
    if is_synced_end and (at != position.at or tail != position.tail):
        raise Corrupted(f"the log does not end with entry {end - 1} as it was synced")
    return tail, at


def _truncate(files: OpenFiles, segment: PartitionFile, at: int, end: int) -> None:
    segment.size = at
    with files.pinned(segment.name) as file:
        if file.size_bytes > at:
            file.truncate(at)
        assert segment.index is not None
        segment.index = segment.completed(file, sound_before(segment.index, end), at)


def _remove_others(files: OpenFiles, folder: str, kept: list[PartitionFile]) -> None:
    names = {name for segment in kept for name in (segment.name, segment.index_name)}
    for name in files.disk.names(folder):
        if name.endswith((".log", ".idx")) and f"{folder}/{name}" not in names:
            files.remove(f"{folder}/{name}")
