"""What members of a group say to each other, and what brokers say about all their groups at once.

Every group message carries its term. An envelope names both members in full: one that is addressed to an incarnation
the receiver is not, or answers for an incarnation that is no member, is dropped.

Heartbeats go from broker to broker, not from group to group. A broker keeps one table for each peer: the groups it
leads there, with term and commit index. A heartbeat carries only the rows that changed since the version that the peer
last confirmed, so an idle group is in no frame at all; that the frame came says that every row still holds.
"""

from dataclasses import dataclass
from typing import NamedTuple

from broker.raft.entry import Entry
from broker.raft.identity import GroupId, Member
from broker.raft.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class PreVote:
    """Would you vote for me in `term`? Binds nobody."""

    term: int
    last_index: int
    last_term: int


@dataclass(frozen=True, slots=True)
class PreVoteReply:
    """When granted, `term` is the one asked for, else the voter's own."""

    term: int
    granted: bool


@dataclass(frozen=True, slots=True)
class Vote:
    term: int
    last_index: int
    last_term: int
    transfer: bool  # the leader asked for this election: its lease does not stand against it


@dataclass(frozen=True, slots=True)
class VoteReply:
    term: int
    granted: bool


@dataclass(frozen=True, slots=True)
class Append:
    term: int
    previous_index: int
    previous_term: int
    entries: tuple[Entry, ...]
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
class InstallSnapshot:
    term: int
    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class ReadProbe:
    """Am I still your leader? `number` tells the rounds of one term apart."""

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
    | InstallSnapshot
    | ReadProbe
    | ReadReply
    | TimeoutNow
)


class Envelope(NamedTuple):
    group: GroupId
    sender: Member
    to: Member
    message: Message


class RowKey(NamedTuple):
    """A broker may appear in a group twice while it is being replaced: the incarnation tells which member is meant."""

    group: GroupId
    incarnation: int


class Row(NamedTuple):
    leader_incarnation: int
    term: int
    commit: int  # never beyond what this member has confirmed, so it may be believed without a log check


@dataclass(frozen=True, slots=True)
class Heartbeat:
    broker_id: int
    session: int  # of the sending process: a restarted broker leads nothing
    sent_at: int  # sender's clock, handed back in the reply
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


Frame = Envelope | Heartbeat | HeartbeatReply
