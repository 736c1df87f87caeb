"""Requests of the driver to a group, and their outcomes.

Every request has an id that the driver chooses; it comes back exactly once in a `Resolved`. For the caller
`EntryCommitted`, `DedupeOutcome` and `ReadAt` are answers; `NotGroupLeader`, `NotReady`, `PendingFull`, `QuorumFull`
and `RequestRefused` left nothing in the log (`not_written`); `LeadershipLost` is `unknown`, a later leader may still
commit the entry.
"""

from dataclasses import dataclass
from typing import NamedTuple

from broker.raft.configuration import ConfigurationChange, MemberId
from broker.raft.dedupe import DedupeResult
from broker.raft.entry import LogEntry, Stamp
from myqueue.protocol.dedup_records import DedupRecord


@dataclass(frozen=True, slots=True)
class Propose:
    """Append a batch. `wall_ms` is the leader's calendar clock; append time never decreases even if the clock does."""

    request: int
    body: bytes
    count: int
    wall_ms: int
    stamp: Stamp | None = None
    dedup_records: tuple[DedupRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class AdvanceLogStart:
    """Retention: cut the log before `start_index`, whose next message has `start_offset`."""

    request: int
    start_index: int
    start_offset: int
    wall_ms: int


@dataclass(frozen=True, slots=True)
class Read:
    """The end of the partition for the whole group as of now (ReadIndex)."""

    request: int


@dataclass(frozen=True, slots=True)
class Reconfigure:
    """One step of membership. `expected` is the index of the configuration the caller has seen."""

    request: int
    change: ConfigurationChange
    expected: int
    wall_ms: int


@dataclass(frozen=True, slots=True)
class TransferLeadership:
    """To `target`, or to the voter that is furthest."""

    target: MemberId | None = None


@dataclass(frozen=True, slots=True)
class Campaign:
    """Start an election at once: placement chose this replica as the first leader of a new group."""


@dataclass(frozen=True, slots=True)
class StopLeading:
    """A stored batch of this replica is damaged: another voter should lead, for the rest of this process's life.

    Term, vote and positions are sound, so it goes on voting and acknowledging.
    """


@dataclass(frozen=True, slots=True)
class WriteSnapshot:
    """Write the snapshot record now, so that the next start has less to replay."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The answer to `Load`. No entries: they were cut meanwhile, or cannot be read."""

    to: MemberId
    first_index: int
    entries: tuple[LogEntry, ...]


Event = (
    Propose
    | AdvanceLogStart
    | Read
    | Reconfigure
    | TransferLeadership
    | Campaign
    | StopLeading
    | WriteSnapshot
    | Loaded
)


class EntryCommitted(NamedTuple):
    log_index: int
    base_offset: int
    append_time: int


class DedupeOutcome(NamedTuple):
    """Nothing was appended, because something in the batch is not new. Confirmed by a majority, so it is final.

    The driver answers repeats with their offsets and problems with their errors, and proposes the rest again.
    """

    whole: DedupeResult
    dedup_records: tuple[DedupeResult, ...]


class ReadAt(NamedTuple):
    log_index: int
    start_offset: int
    end_offset: int


class NotGroupLeader(NamedTuple):
    leader: MemberId | None


class NotReady(NamedTuple):
    """Leader, but its first entry is not applied yet, or it is transferring leadership: try again in a moment."""


class PendingFull(NamedTuple):
    """Backpressure: too many bytes are appended and not yet applied, in this group or in all groups together."""

    pending_bytes: int


class QuorumFull(NamedTuple):
    """Too few voters have room on their disks for the entry to be committed."""


class RequestRefused(NamedTuple):
    reason: str


class LeadershipLost(NamedTuple):
    """Leadership ended before the entry was committed here."""


Outcome = (
    EntryCommitted
    | DedupeOutcome
    | ReadAt
    | NotGroupLeader
    | NotReady
    | PendingFull
    | QuorumFull
    | RequestRefused
    | LeadershipLost
)
