"""The small record that stands for everything a replica no longer keeps as entries.

It has two positions. The log starts at `start_index`; configuration and dedupe table are those of `index`, which may
lie further on, because the record is made from what the maker has applied and no older table is kept. Entries between
the two are ordinary history: a replica that gets the record fetches and serves them, but takes neither configuration
nor dedupe state from them, since the record already holds what they did. All of them are committed and cannot change.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from broker.raft.configuration import NOBODY, Configuration
from broker.raft.dedupe import NOTHING_SEEN, DedupeRecord
from broker.raft.entry import Entry
from broker.raft.identity import Member


@dataclass(frozen=True, slots=True)
class Snapshot:
    start_index: int = 1
    start_offset: int = 0
    previous_term: int = 0  # of the entry before start_index
    index: int = 0
    configuration: Configuration = NOBODY
    configuration_index: int = 0
    dedupe: DedupeRecord = NOTHING_SEEN


@dataclass(frozen=True, slots=True)
class HardState:
    """What must be on disk before it is spoken of.

    `commit` needs no fsync of its own: it rides along so that a restart knows how far it may apply without asking.
    """

    term: int = 0
    vote: Member | None = None
    commit: int = 0


@dataclass(frozen=True, slots=True)
class Anchor:
    """What an index leaves behind for the next entry."""

    index: int
    end_offset: int
    append_time: int


@dataclass(frozen=True, slots=True)
class Stored:
    """A replica as found on disk.

    `terms` are the runs (first index, term) from start_index up to the anchor, `entries` all entries after the anchor.
    The anchor lies at min(snapshot.index, last index) or before; the entries may be a stream. Those up to `hard.commit`
    may come without their batches.
    """

    hard: HardState
    snapshot: Snapshot
    terms: tuple[tuple[int, int], ...] = ()
    anchor: Anchor | None = None  # None: just before start_index
    entries: Iterable[Entry] = ()


def founding(configuration: Configuration) -> Stored:
    """A new group's replica. Members named at the group's birth get its configuration; later ones get none, and so
    can neither vote for themselves nor lead before the leader has told them who is who."""
    return Stored(HardState(), Snapshot(configuration=configuration))
