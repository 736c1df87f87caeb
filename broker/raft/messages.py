"""Messages between the members of a group, and heartbeats between brokers.

Every group message carries its term. An envelope names both members in full: one that is addressed to an incarnation
the receiver is not, or answers for an incarnation that is no member, is dropped.

Heartbeats go from broker to broker, not from group to group. A broker keeps one table for each peer: the groups it
leads there, with term and commit index. A heartbeat carries only the rows that changed since the version that the peer
last confirmed, so an idle group is in no frame at all; the arrival of the frame alone confirms every other row.
"""

from dataclasses import dataclass
from typing import NamedTuple

from broker.raft.configuration import GroupId, MemberId
from broker.raft.entry import LogEntry
from broker.raft.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class PreVote:
    """Asks whether the receiver would vote for the sender in `term`. Not binding."""

    term: int
    last_index: int
    last_term: int


@dataclass(frozen=True, slots=True)
class PreVoteReply:
    """When granted, `term` is the requested one, else the voter's own."""

    term: int
    granted: bool


@dataclass(frozen=True, slots=True)
class Vote:
    term: int
    last_index: int
    last_term: int
    transfer: bool  # the leader started this election, so its lease does not forbid it


@dataclass(frozen=True, slots=True)
class VoteReply:
    term: int
    granted: bool


@dataclass(frozen=True, slots=True)
class Append:
    term: int
    previous_index: int
    previous_term: int
    entries: tuple[LogEntry, ...]
    commit: int


@dataclass(frozen=True, slots=True)
class AppendReply:
    """`match`: everything up to it is on the sender's disk and agrees. Refused: None, and where the logs may agree."""

    term: int
    previous_index: int
    match: int | None
    hint_index: int = 0
    hint_term: int = 0


@dataclass(frozen=True, slots=True)
class AppendRefused:
    """The sender has no room for entries; its log is as it was."""

    term: int


@dataclass(frozen=True, slots=True)
class InstallSnapshot:
    term: int
    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class ReadProbe:
    """Asks whether the receiver still follows the sender. `number` distinguishes the rounds of one term."""

    term: int
    number: int


@dataclass(frozen=True, slots=True)
class ReadReply:
    term: int
    number: int


@dataclass(frozen=True, slots=True)
class TimeoutNow:
    term: int


Message = (
    PreVote
    | PreVoteReply
    | Vote
    | VoteReply
    | Append
    | AppendReply
    | AppendRefused
    | InstallSnapshot
    | ReadProbe
    | ReadReply
    | TimeoutNow
)


class Envelope(NamedTuple):
    group: GroupId
    sender: MemberId
    to: MemberId
    message: Message


class RowKey(NamedTuple):
    """A broker may appear in a group twice while it is being replaced: the incarnation identifies the member."""

    group: GroupId
    incarnation: int


class Row(NamedTuple):
    leader_incarnation: int
    term: int
    commit: int  # never beyond what this member has confirmed, so it is safe without a log check


NO_REPLY = 0


@dataclass(frozen=True, slots=True)
class Heartbeat:
    broker_id: int
    session: int  # of the sending process: a restarted broker leads nothing
    sent_at: int  # sender's clock, handed back in the reply; `NO_REPLY`: between two heartbeats, none is wanted
    base: int  # rows are all changes after this version …
    version: int  # … up to this one
    rows: tuple[tuple[RowKey, Row | None], ...]  # None: no longer led


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    broker_id: int
    session: int
    to_session: int
    sent_at: int
    version: int  # of the table as the receiver holds it now
    refused: tuple[tuple[RowKey, int], ...]  # rows it does not follow, with its own term there (0: no such member)
    disk_low: bool = False  # its broker's disk is below the low mark
    barred: tuple[RowKey, ...] = ()  # rows whose replica there should not lead


Frame = Envelope | Heartbeat | HeartbeatReply
