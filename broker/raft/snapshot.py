"""The small record that replaces the entries a replica no longer keeps, and the stored state of a replica.

It has two positions. The log starts at `start_index`; configuration and dedupe table are those of `index`, which may
lie further on, because the record is made from what the maker has applied and no older table is kept. Entries between
the two are ordinary history: a replica that gets the record fetches and serves them, but takes neither configuration
nor dedupe state from them, since the record already holds what they did. All of them are committed and cannot change.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from broker.raft.configuration import NO_MEMBERS, GroupConfiguration, MemberId
from broker.raft.dedupe import NOTHING_SEEN, DedupeSnapshot
from broker.raft.entry import LogEntry


@dataclass(frozen=True, slots=True)
class Snapshot:
    start_index: int = 1
    start_offset: int = 0
    previous_term: int = 0  # of the entry before start_index
    index: int = 0
    configuration: GroupConfiguration = NO_MEMBERS
    configuration_index: int = 0
    dedupe: DedupeSnapshot = NOTHING_SEEN


@dataclass(frozen=True, slots=True)
class HardState:
    """Must be on disk before a message depends on it.

    `commit` needs no fsync of its own: it is stored with the rest, so that a restarted replica can apply
    that far without a leader.
    """

    term: int = 0
    vote: MemberId | None = None
    commit: int = 0


@dataclass(frozen=True, slots=True)
class Anchor:
    """The values of the entry at `index` that the next entry continues from."""

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
    entries: Iterable[LogEntry] = ()


def new_replica(configuration: GroupConfiguration) -> Stored:
    """An initial voter gets the first configuration. A replica added later gets none: it can neither vote for itself
    nor lead before the leader has sent it one."""
    return Stored(HardState(), Snapshot(configuration=configuration))
