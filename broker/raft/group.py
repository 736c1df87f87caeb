"""A group's replica as a node runs it: frames, requests and deadlines in, state and effects out.

`Group` is the top of the storeys `Replica` → `Reading` → `Applying` → `Replication` → `Membership` → `Election`.
"""

from collections.abc import Callable
from typing import Any

from broker.raft.effects import Role
from broker.raft.election import Election
from broker.raft.events import Campaign, Checkpoint, Event, Loaded, Propose, Read, Reconfigure, Retain, Transfer
from broker.raft.identity import Member
from broker.raft.messages import (
    Append,
    AppendReply,
    InstallSnapshot,
    Message,
    PreVote,
    PreVoteReply,
    ReadProbe,
    ReadReply,
    TimeoutNow,
    Vote,
    VoteReply,
)

_FROM_LEADER = frozenset((Append, InstallSnapshot, ReadProbe, TimeoutNow))


class Group(Election):
    __slots__ = ()

    def receive(self, sender: Member, message: Message) -> None:
        kind = type(message)
        if kind is not PreVote and kind is not PreVoteReply and not self.agree_on_term(sender, message):
            return
        _RECEIVERS[kind](self, sender, message)

    def agree_on_term(self, sender: Member, message: Message) -> bool:
        """Newer terms are adopted, older ones told. True: the message is of the present."""
        kind = type(message)
        if message.term > self.term:
            if isinstance(message, Vote) and not message.transfer and self.protects_a_leader():
                return False
            self.become_follower(message.term, sender if kind in _FROM_LEADER else None)
        elif message.term < self.term:
            if isinstance(message, Vote):
                self.send(sender, VoteReply(self.term, granted=False))
            elif kind in _FROM_LEADER:
                self.send(sender, AppendReply(self.term, 0, None))
            return False
        return True

    def request(self, event: Event) -> None:
        _REQUESTS[type(event)](self, event)

    def nudge(self, _event: Campaign) -> None:
        if self.role is Role.FOLLOWER and self.leader is None:
            self.campaign()

    def checkpoint(self, _event: Checkpoint) -> None:
        self.snapshot_unsaved = True
        self.touch()

    def on_time(self) -> None:
        """Some deadline has come up; which one is seen here."""
        now = self.around.now
        if self.election_due is not None and self.election_due <= now:
            self.election_due = None
            if self.role is not Role.LEADER:
                self.campaign()
        if self.quorum_due is not None and self.quorum_due <= now:
            self.quorum_due = None
            self.check_quorum()
        if self.handover_due is not None and self.handover_due <= now:
            self.handover_due = None
            self.on_handover_due()
        if self.retry_due is not None and self.retry_due <= now:
            self.retry_due = None
            self.on_retry_due()
        for due in (self.election_due, self.quorum_due, self.handover_due, self.retry_due):
            if due is not None:
                self.wake_at(due)

    def flush(self) -> None:
        if self.role is Role.LEADER:
            self.start_read_round()
            self.replicate()
            self.go_on_with_handover()
        super().flush()


_RECEIVERS: dict[type[Any], Callable[[Group, Member, Any], None]] = {
    PreVote: lambda g, sender, m: g.on_pre_vote(sender, m),
    PreVoteReply: lambda g, sender, m: g.on_pre_vote_reply(sender, m),
    Vote: lambda g, sender, m: g.on_vote(sender, m),
    VoteReply: lambda g, sender, m: g.on_vote_reply(sender, m),
    Append: lambda g, sender, m: g.on_append(sender, m),
    AppendReply: lambda g, sender, m: g.on_append_reply(sender, m),
    InstallSnapshot: lambda g, sender, m: g.on_install_snapshot(sender, m),
    ReadProbe: lambda g, sender, m: g.on_read_probe(sender, m),
    ReadReply: lambda g, sender, m: g.on_read_reply(sender, m),
    TimeoutNow: lambda g, sender, m: g.on_timeout_now(sender, m),
}

_REQUESTS: dict[type[Any], Callable[[Group, Any], None]] = {
    Propose: lambda g, event: g.propose(event),
    Retain: lambda g, event: g.retain(event),
    Read: lambda g, event: g.read(event),
    Reconfigure: lambda g, event: g.reconfigure(event),
    Transfer: lambda g, event: g.transfer(event),
    Campaign: lambda g, event: g.nudge(event),
    Checkpoint: lambda g, event: g.checkpoint(event),
    Loaded: lambda g, event: g.on_loaded(event),
}
