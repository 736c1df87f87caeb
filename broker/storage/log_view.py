"""A partition's log at one moment, for a read that sees all of it alike."""

from collections.abc import Iterator
from typing import NamedTuple

from broker.storage.entry import Entry, Tail
from broker.storage.group import Group
from broker.storage.partition_file import Records
from broker.storage.segments import SegmentList


class LogView(NamedTuple):
    generation: int  # of what is stored where
    group: Group
    tail: Tail
    segments: SegmentList
    memory_from: int  # entries from here on are in memory
    memory_offset: int  # the first offset there

    def searchable_segments(self) -> SegmentList:
        """Those with entries of the log: no other is looked at, for upkeep may be unlinking it."""
        if not self.segments:
            return ()
        following = [*(segment.first_index for segment in self.segments[1:]), self.memory_from]
        return tuple(
            segment
            for segment, end in zip(self.segments, following, strict=True)
            if segment.first_index < self.memory_from and end > self.group.first_index
        )


def entries_in(records: Records) -> Iterator[Entry]:
    return (record.entry(with_body=True) for record in records)


class Moved(Exception):
    """The log changed between two looks at it: look again."""
