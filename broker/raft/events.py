"""What a driver tells a group besides frames, and how each request ends.

Every request has an id that the driver chooses; it comes back exactly once in a `Resolved`. What the outcome means
for the caller: `Committed`, `Judged`, `ReadAt` are answers; `NotLeader`, `NotReady`, `Overloaded`, `Refused` left
nothing in the log (`not_written`); `Lost` is `unknown`, the entry may still be committed by a later leader.
"""

from dataclasses import dataclass
from typing import NamedTuple

from broker.raft.configuration import Change
from broker.raft.dedupe import Verdict
from broker.raft.entry import Entry, Stamp
from broker.raft.identity import Member
from myqueue.protocol.dedup_records import DedupRecord


@dataclass(frozen=True, slots=True)
class Propose:
    """Append a batch. `wall_ms` is the leader's calendar clock; append time never decreases even if the clock does."""

    request: int
    body: bytes
    count: int
    wall_ms: int
    stamp: Stamp | None = None
    marks: tuple[DedupRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class Retain:
    """Cut the log before `start_index`, whose next message has `start_offset`."""

    request: int
    start_index: int
    start_offset: int
    wall_ms: int


@dataclass(frozen=True, slots=True)
class Read:
    """Where does the partition end, as of now, for the whole group?"""

    request: int


@dataclass(frozen=True, slots=True)
class Reconfigure:
    """One step of membership. `expected` is the index of the configuration the caller has seen."""

    request: int
    change: Change
    expected: int
    wall_ms: int


@dataclass(frozen=True, slots=True)
class Transfer:
    """Hand leadership over, to `target` or to whoever is furthest."""

    target: Member | None = None


@dataclass(frozen=True, slots=True)
class Campaign:
    """Do not wait for the election timeout: a new group's first leader is known to be wanted here."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Write the snapshot record now, so that the next start has less to replay."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """Entries the group had asked for with `Load`. None at all: they were cut meanwhile."""

    to: Member
    first_index: int
    entries: tuple[Entry, ...]


Event = Propose | Retain | Read | Reconfigure | Transfer | Campaign | Checkpoint | Loaded


class Committed(NamedTuple):
    log_index: int
    base_offset: int
    append_time: int


class Judged(NamedTuple):
    """Nothing was appended, because something in the batch is not new. Confirmed by a majority, so it is final.

    The driver answers repeats with their offsets and problems with their errors, and proposes the rest again.
    """

    whole: Verdict
    marks: tuple[Verdict, ...]


class ReadAt(NamedTuple):
    log_index: int
    start_offset: int
    end_offset: int


class NotLeader(NamedTuple):
    leader: Member | None


class NotReady(NamedTuple):
    """Leader, but its first entry is not applied yet, or it is handing over: try again in a moment."""


class Overloaded(NamedTuple):
    pending_bytes: int


class Refused(NamedTuple):
    reason: str


class Lost(NamedTuple):
    """Leadership ended before the entry was committed here."""


Outcome = Committed | Judged | ReadAt | NotLeader | NotReady | Overloaded | Refused | Lost
