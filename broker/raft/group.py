"""One replica of a Raft group: frames, requests and deadlines in, state and effects out.

The group holds term, vote, role and leader; its parts own the rest: `log`, `persistence` (disk), `state` (commit and
apply), `membership` (configuration, leadership transfer), `reads` (ReadIndex), `replication` and `election`.
"""

from collections.abc import Callable
from typing import Any

from broker.raft.configuration import GroupConfiguration, GroupId, MemberId
from broker.raft.context import RaftContext
from broker.raft.effects import Resolved, Role, RoleChanged, Send
from broker.raft.election import Election
from broker.raft.entry import Kind
from broker.raft.events import (
    AdvanceLogStart,
    Campaign,
    Event,
    Loaded,
    NotGroupLeader,
    NotReady,
    Outcome,
    Propose,
    Read,
    Reconfigure,
    StopLeading,
    TransferLeadership,
    WriteSnapshot,
)
from broker.raft.log import RaftLog
from broker.raft.membership import Membership
from broker.raft.messages import (
    Append,
    AppendRefused,
    AppendReply,
    Envelope,
    InstallSnapshot,
    Message,
    PreVote,
    PreVoteReply,
    ReadProbe,
    ReadReply,
    RowKey,
    TimeoutNow,
    Vote,
    VoteReply,
)
from broker.raft.persistence import Persistence
from broker.raft.read_index import ReadIndex, ReadRequest
from broker.raft.replication import Replication
from broker.raft.snapshot import Anchor, HardState, Stored
from broker.raft.state_machine import StateMachine

_FROM_LEADER = frozenset((Append, InstallSnapshot, ReadProbe, TimeoutNow))


class RaftGroup:
    """The types of its parts are class attributes, so that the simulator can plant bugs."""

    __slots__ = (
        "_outgoing",
        "context",
        "election",
        "id",
        "leader",
        "log",
        "me",
        "membership",
        "persistence",
        "reads",
        "ready",
        "replication",
        "role",
        "settings",
        "state",
        "term",
        "vote",
    )
    election_type = Election
    membership_type = Membership
    replication_type = Replication
    state_type = StateMachine

    def __init__(self, group_id: GroupId, me: MemberId, stored: Stored, context: RaftContext) -> None:
        self.id = group_id
        self.me = me
        self.context = context
        self.settings = context.settings
        self.term = stored.hard.term
        self.vote = stored.hard.vote
        self.role = Role.FOLLOWER
        self.leader: MemberId | None = None
        self.ready = False  # a leader that has applied an entry of its own term
        snapshot = stored.snapshot
        self.log = RaftLog(snapshot.start_index, snapshot.start_offset, snapshot.previous_term)
        self.log.resume(stored.terms, stored.anchor or Anchor(snapshot.start_index - 1, snapshot.start_offset, 0))
        self.persistence = Persistence(self.log.last_index)
        self.membership = self.membership_type(self, snapshot)
        self.state = self.state_type(self, stored)
        self.reads = ReadIndex()
        self.replication = self.replication_type(self)
        self.election = self.election_type(self)
        self._outgoing: list[tuple[MemberId, Message, bool]] = []
        self._restore(stored)
        self.election.expect_leader()

    def _restore(self, stored: Stored) -> None:
        for entry in stored.entries:
            self.log.append(entry)
            if entry.kind is Kind.CONFIGURATION:
                self.membership.adopt(entry)
            self.state.restore(entry)
        self.state.check_restored()
        self.persistence.restored(self.log.last_index)
        if self.persistence.snapshot_unsaved:
            self.touch()

    @property
    def applied(self) -> int:
        return self.state.applied

    @property
    def applied_offset(self) -> int:
        return self.state.applied_offset

    @property
    def configuration(self) -> GroupConfiguration:
        return self.membership.configuration

    @property
    def configuration_index(self) -> int:
        return self.membership.configuration_index

    def row_key(self, member: MemberId) -> RowKey:
        return RowKey(self.id, member.incarnation)

    # Effects

    def send(self, to: MemberId, message: Message, *, gated: bool = True) -> None:
        """Gated: only after everything this replica has decided so far is on its disk."""
        self._outgoing.append((to, message, gated))
        self.touch()

    def touch(self) -> None:
        """Has this group flushed at the end of the round, by `Node.drain`."""
        self.context.touched[self.id] = None

    def resolve(self, request: int, outcome: Outcome) -> None:
        self.context.round.resolved.append(Resolved(self.id, request, outcome))

    def announce(self) -> None:
        self.context.round.roles.append(RoleChanged(self.id, self.role, self.term, self.leader, self.ready))

    def wake_at(self, due: int) -> None:
        self.context.deadlines.plan(self.id, due)

    def save_hard_state(self) -> None:
        self.persistence.hard_unsaved = True
        self.touch()

    def flush(self) -> None:
        """Close this round for the group: one Persist for everything that changed, then the messages."""
        if self.role is Role.LEADER:
            self._start_read_round()
            self.replication.replicate()
            self.membership.continue_transfer()
        context, persistence = self.context, self.persistence
        persistence.collect(self.id, self.log, context.round, self._hard_state, self.state.snapshot)
        if self._outgoing:
            after = persistence.saved_round if persistence.saved_round > context.durable else 0
            group_id, me, sends = self.id, self.me, context.round.sends
            for to, message, gated in self._outgoing:
                sends.append(Send(to.broker_id, Envelope(group_id, me, to, message), after if gated else 0))
            self._outgoing = []

    def _hard_state(self) -> HardState:
        return HardState(self.term, self.vote, self.state.commit_index)

    # Roles

    def become_follower(self, term: int, leader: MemberId | None) -> None:
        """From any role. Requests in the log end as unknown, the others as not written."""
        was_leader = self.role is Role.LEADER
        if term != self.term:
            assert term > self.term
            self.election.withdraw(term)
            self.term = term
            self.vote = None
            self.save_hard_state()
        self.role = Role.FOLLOWER
        self.election.stop_voting()
        self.leader = leader
        if was_leader:
            self._resign()
        self.announce()
        self.election.expect_leader()

    def lead(self) -> None:
        """The election is won: the first entry of the term is a no-op."""
        self.role = Role.LEADER
        self.leader = self.me
        self.election.lead()
        self.membership.lead()
        self.replication.lead()
        self.context.led[self.id] = None
        self.context.rows_due[self.id] = None
        self.announce()
        self.replication.append(Kind.NOOP, 0)

    def _resign(self) -> None:
        self.ready = False
        self.election.quorum_due = None
        self.membership.resign()
        self.replication.resign()
        for read in self.reads.abandon():
            self.resolve(read.request, NotGroupLeader(self.leader))
        self.context.led.pop(self.id, None)
        self.context.rows_due.pop(self.id, None)
        self.context.commits_due.pop(self.id, None)
        self.replication.forget_followers()
        self.log.evict(self.applied, -1)

    # Messages

    def receive(self, sender: MemberId, message: Message) -> None:
        kind = type(message)
        if kind is not PreVote and kind is not PreVoteReply and not self.agree_on_term(sender, message):
            return
        _RECEIVERS[kind](self, sender, message)

    def agree_on_term(self, sender: MemberId, message: Message) -> bool:
        """Adopt a newer term, answer an older one with ours. True: the message is of the current term."""
        kind = type(message)
        if message.term > self.term:
            if isinstance(message, Vote) and not message.transfer and self.election.has_live_leader():
                return False
            self.become_follower(message.term, sender if kind in _FROM_LEADER else None)
        elif message.term < self.term:
            if isinstance(message, Vote):
                self.send(sender, VoteReply(self.term, granted=False))
            elif kind in _FROM_LEADER:
                self.send(sender, AppendReply(self.term, 0, None))
            return False
        return True

    def on_append(self, sender: MemberId, message: Append) -> None:
        self.election.follow(sender)
        self.replication.on_append(sender, message)

    def refuse(self, sender: MemberId, message: Append) -> None:
        """Its entries find no room on this disk. The leader is alive all the same."""
        if self.agree_on_term(sender, message):
            self.election.follow(sender)
            self.send(sender, AppendRefused(self.term))

    def on_install_snapshot(self, sender: MemberId, message: InstallSnapshot) -> None:
        self.election.follow(sender)
        self.replication.on_install_snapshot(sender, message)

    def on_durable(self, number: int) -> None:
        """Round `number` and all before it are on disk."""
        own_vote = self.role is Role.CANDIDATE and self.persistence.stores_term(number, self.term)
        self.persistence.on_durable(number)
        if self.role is Role.LEADER:
            self.replication.count_replicas()
        self.state.apply()
        if own_vote:
            self.election.count_vote(self.me)

    # Reads

    def read(self, event: Read) -> None:
        if self.role is not Role.LEADER:
            self.resolve(event.request, NotGroupLeader(self.leader))
        elif not self.ready:
            # Until its first own entry is applied, a leader's commit index may be behind that of its predecessors.
            self.resolve(event.request, NotReady())
        else:
            self.confirm(ReadRequest(event.request, self.state.commit_index, None))

    def confirm(self, request: ReadRequest) -> None:
        self.reads.add(request)
        self.touch()

    def _start_read_round(self) -> None:
        if self.reads.start_round():
            self.probe_voters()
            self._answer_reads()

    def probe_voters(self) -> None:
        for member in self.configuration.voters:
            if member != self.me:
                self.send(member, ReadProbe(self.term, self.reads.number), gated=False)

    def on_read_probe(self, sender: MemberId, message: ReadProbe) -> None:
        self.election.follow(sender)
        self.send(sender, ReadReply(self.term, message.number))

    def on_read_reply(self, sender: MemberId, message: ReadReply) -> None:
        if self.role is Role.LEADER:
            self.reads.acknowledge(sender, message.number)
            self._answer_reads()

    def _answer_reads(self) -> None:
        self.reads.confirm(self.configuration, self.me)
        self.state.answer_reads()

    # Requests and deadlines

    def request(self, event: Event) -> None:
        _REQUESTS[type(event)](self, event)

    def accepts(self, request: int) -> bool:
        """Whether this is a leader that appends; resolves the request if not."""
        if self.role is not Role.LEADER:
            self.resolve(request, NotGroupLeader(self.leader))
        elif not self.ready or self.membership.transfer_to is not None:
            self.resolve(request, NotReady())
        else:
            return True
        return False

    def campaign(self, _event: Campaign) -> None:
        if self.role is Role.FOLLOWER and self.leader is None and not self.election.barred:
            self.election.campaign()

    def write_snapshot(self, _event: WriteSnapshot) -> None:
        self.persistence.snapshot_unsaved = True
        self.touch()

    def on_time(self) -> None:
        """At least one deadline has come up."""
        now = self.context.now
        election, membership, replication = self.election, self.membership, self.replication
        if election.election_due is not None and election.election_due <= now:
            election.election_due = None
            if self.role is not Role.LEADER:
                election.campaign()
        if election.quorum_due is not None and election.quorum_due <= now:
            election.quorum_due = None
            election.check_quorum()
        if membership.transfer_due is not None and membership.transfer_due <= now:
            membership.transfer_due = None
            membership.on_transfer_due()
        if membership.step_down_due is not None and membership.step_down_due <= now:
            membership.step_down_due = None
            membership.on_step_down_due()
        if replication.retry_due is not None and replication.retry_due <= now:
            replication.retry_due = None
            replication.on_retry_due()
        if replication.reorder_due is not None and replication.reorder_due <= now:
            replication.on_reorder_due()
        dues = (election.election_due, election.quorum_due, membership.transfer_due, membership.step_down_due)
        for due in (*dues, replication.retry_due, replication.reorder_due):
            if due is not None:
                self.wake_at(due)


_RECEIVERS: dict[type[Any], Callable[[RaftGroup, MemberId, Any], None]] = {
    PreVote: lambda g, sender, m: g.election.on_pre_vote(sender, m),
    PreVoteReply: lambda g, sender, m: g.election.on_pre_vote_reply(sender, m),
    Vote: lambda g, sender, m: g.election.on_vote(sender, m),
    VoteReply: lambda g, sender, m: g.election.on_vote_reply(sender, m),
    Append: lambda g, sender, m: g.on_append(sender, m),
    AppendReply: lambda g, sender, m: g.replication.on_append_reply(sender, m),
    AppendRefused: lambda g, sender, _: g.replication.on_append_refused(sender),
    InstallSnapshot: lambda g, sender, m: g.on_install_snapshot(sender, m),
    ReadProbe: lambda g, sender, m: g.on_read_probe(sender, m),
    ReadReply: lambda g, sender, m: g.on_read_reply(sender, m),
    TimeoutNow: lambda g, sender, m: g.election.on_timeout_now(sender, m),
}

_REQUESTS: dict[type[Any], Callable[[RaftGroup, Any], None]] = {
    Propose: lambda g, event: g.replication.propose(event),
    AdvanceLogStart: lambda g, event: g.replication.advance_log_start(event),
    Read: lambda g, event: g.read(event),
    Reconfigure: lambda g, event: g.membership.reconfigure(event),
    TransferLeadership: lambda g, event: g.membership.transfer(event),
    Campaign: lambda g, event: g.campaign(event),
    StopLeading: lambda g, _: g.election.stop_leading(),
    WriteSnapshot: lambda g, event: g.write_snapshot(event),
    Loaded: lambda g, event: g.replication.on_loaded(event),
}
