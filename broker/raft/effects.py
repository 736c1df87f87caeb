"""Effects: what the driver has to do after a round of steps, and in which order.

A round holds the effects of all groups since the last one. The driver writes all `persists` as one frame with one sync
and then steps the node with `Durable(round.number)`. A `Send` with `after == 0` may go at once, in parallel with
the sync (a leader's Appends overlap with its own disk); any other waits until the round `after` is durable. Everything
else can be done at once. Rounds become durable in the order of their numbers; one without persists is durable when its
predecessor is.

Two things may reach the disk later than their round: the commit index, and the snapshot of a retention cut together
with the log start it names. A start that finds the older ones replays the entries in between, the cut among them. The
snapshot of an install (`truncate_from == 0`) is durable with its round, because it replaces what it acknowledges.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from broker.raft.configuration import GroupId, MemberId
from broker.raft.entry import LogEntry
from broker.raft.events import Outcome
from broker.raft.messages import Frame
from broker.raft.snapshot import HardState, Snapshot


class Persist(NamedTuple):
    """In this order: drop entries from `truncate_from` on (0: all of them), store the snapshot, add the entries."""

    group: GroupId
    hard: HardState
    truncate_from: int | None
    snapshot: Snapshot | None
    entries: tuple[LogEntry, ...]


class Send(NamedTuple):
    broker_id: int
    frame: Frame
    after: int


class Load(NamedTuple):
    """Read entries from `first_index` on, at least one and at most about `max_bytes`, and answer with `Loaded`."""

    group: GroupId
    to: MemberId
    first_index: int
    max_bytes: int


class Resolved(NamedTuple):
    group: GroupId
    request: int
    outcome: Outcome


class Applied(NamedTuple):
    """Entries first to last are committed and on this disk: readers may have them, long polls wake up."""

    group: GroupId
    first: int
    last: int
    end_offset: int
    entries: tuple[LogEntry, ...] = ()


class CommittedEntries(NamedTuple):
    """On a leader: a majority has these entries, this disk not yet. Readers may have them from memory; `Applied`
    follows when they are on this disk too."""

    group: GroupId
    end_offset: int
    entries: tuple[LogEntry, ...]


class Dropped(NamedTuple):
    """Reads below `start_index` are out of range; entries there may go once a snapshot with this start is durable."""

    group: GroupId
    start_index: int
    start_offset: int


class Role(Enum):
    LEADER = "leader"
    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre_candidate"
    CANDIDATE = "candidate"


class RoleChanged(NamedTuple):
    group: GroupId
    role: Role
    term: int
    leader: MemberId | None
    ready: bool  # a leader that accepts requests


@dataclass(slots=True)
class RaftRound:
    number: int
    persists: list[Persist] = field(default_factory=list)
    sends: list[Send] = field(default_factory=list)
    loads: list[Load] = field(default_factory=list)
    resolved: list[Resolved] = field(default_factory=list)
    applied: list[Applied] = field(default_factory=list)
    committed: list[CommittedEntries] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)
    roles: list[RoleChanged] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(
            self.persists
            or self.sends
            or self.loads
            or self.resolved
            or self.applied
            or self.committed
            or self.dropped
            or self.roles
        )
