"""A partition's log at one moment, for a read that sees all of it alike."""

from typing import NamedTuple

from broker.storage.entry import Tail
from broker.storage.group import Group
from broker.storage.segments import SegmentList


class LogView(NamedTuple):
    generation: int  # of what is stored where
    group: Group
    tail: Tail
    segments: SegmentList
    memory_from: int  # entries from here on are in memory
    memory_offset: int  # the first offset there


class Moved(Exception):
    """The log changed between two looks at it: look again."""
