"""Which member leads.

A replica that misses its leader first checks whether it would win (pre-vote), so that one behind a broken link does not
push terms up. A replica does not vote against a leader whose heartbeat came within the shortest election timeout, nor
in its own first moments after a start, unless that leader started the election. A leader that loses contact with its
majority for a lease, which is shorter, resigns: at most one leader acknowledges anything at a time.

A replica with a damaged batch is barred: it should not lead. It votes, and it still campaigns when no other voter has
been elected for a few timeouts: with two voters the other one may be missing entries that only this one has, and
without its leadership such a group would never elect anybody. As a leader it transfers leadership when it can. It
obeys `TimeoutNow`: leaders send that to a barred replica only when no other one is up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.raft.configuration import MemberId
from broker.raft.context import InvariantBroken
from broker.raft.effects import Role
from broker.raft.messages import PreVote, PreVoteReply, TimeoutNow, Vote, VoteReply

if TYPE_CHECKING:
    from broker.raft.group import RaftGroup


class Election:
    __slots__ = (
        "_elected_at",
        "_group",
        "_stopped_leading",
        "_votes",
        "election_due",
        "followed_at",
        "leader_broker_id",
        "quorum_due",
    )

    def __init__(self, group: RaftGroup) -> None:
        self._group = group
        self.leader_broker_id: int | None = None  # the broker whose heartbeats cover this group
        self.followed_at: int | None = None  # when the leader's last message on this group came
        self.election_due: int | None = None
        self.quorum_due: int | None = None
        self._votes: set[MemberId] = set()
        self._elected_at = 0
        self._stopped_leading = False

    @property
    def barred(self) -> bool:
        """Another voter should lead. The only voter leads whatever its state is."""
        group = self._group
        return self._stopped_leading and group.membership.configuration.voters != (group.me,)

    def stop_leading(self) -> None:
        group = self._group
        if self._stopped_leading:
            return
        self._stopped_leading = True
        group.context.barred[group.id] = group.row_key(group.me)
        if group.role is Role.LEADER:
            group.membership.plan_step_down(0)
        elif group.role is not Role.FOLLOWER:
            group.become_follower(group.term, None)
        elif self.election_due is not None:
            self.expect_leader()

    def has_live_leader(self) -> bool:
        """Whether votes for another candidate must be refused."""
        group = self._group
        context = group.context
        if group.role is Role.LEADER or context.just_booted():
            return True
        if group.leader is None:
            return False
        followed = self.followed_at
        if followed is not None and context.now - followed < group.settings.election_min_ms:
            return True
        return context.received_recently(group.leader.broker_id)

    # Candidate

    def campaign(self) -> None:
        group = self._group
        voters = group.membership.configuration.voters
        if group.me not in voters:
            # It may have been promoted by an entry it has not got: without its vote that group may have no majority.
            if group.leader is not None:
                group.leader = None
                group.announce()
            return
        group.role = Role.PRE_CANDIDATE
        group.leader = None
        self._votes = {group.me}
        group.announce()
        self.expect_leader()
        if self._has_majority():
            self.start(transfer=False)
            return
        for member in voters:
            if member != group.me:
                group.send(member, PreVote(group.term + 1, group.log.last_index, group.log.last_term))

    def start(self, *, transfer: bool) -> None:
        """Our own vote counts when it is on disk; no message carries the new term before."""
        group = self._group
        self.withdraw(group.term + 1)
        group.term += 1
        group.vote = group.me
        self._votes = set()
        group.role = Role.CANDIDATE
        group.leader = None
        group.save_hard_state()
        group.announce()
        self.expect_leader()
        for member in group.membership.configuration.voters:
            if member != group.me:
                group.send(member, Vote(group.term, group.log.last_index, group.log.last_term, transfer))

    def on_pre_vote(self, sender: MemberId, message: PreVote) -> None:
        group = self._group
        granted = message.term > group.term and not self.has_live_leader() and self.is_up_to_date(message)
        group.send(sender, PreVoteReply(message.term if granted else group.term, granted))

    def on_pre_vote_reply(self, sender: MemberId, message: PreVoteReply) -> None:
        group = self._group
        if not message.granted:
            if message.term > group.term:
                group.become_follower(message.term, None)
        elif group.role is Role.PRE_CANDIDATE and message.term == group.term + 1 and group.membership.is_voter(sender):
            self._votes.add(sender)
            if self._has_majority():
                self.start(transfer=False)

    def on_vote(self, sender: MemberId, message: Vote) -> None:
        group = self._group
        granted = self.grants(sender, message)
        if granted and group.vote is None:
            group.vote = sender
            group.save_hard_state()
            self.expect_leader()
        group.send(sender, VoteReply(group.term, granted))

    def grants(self, sender: MemberId, message: Vote) -> bool:
        """Its own majority checks that the candidate is a voter: this replica's configuration may be older."""
        group = self._group
        if group.vote is not None:
            return group.vote == sender
        return group.leader is None and self.is_up_to_date(message)

    def is_up_to_date(self, candidate: PreVote | Vote) -> bool:
        """Only a member that holds everything this replica holds may lead it: that is how committed entries survive."""
        return self._group.log.up_to_date(candidate.last_index, candidate.last_term)

    def on_vote_reply(self, sender: MemberId, message: VoteReply) -> None:
        if message.granted and self._group.role is Role.CANDIDATE:
            self.count_vote(sender)

    def on_timeout_now(self, sender: MemberId, _message: TimeoutNow) -> None:
        group = self._group
        if group.role is Role.FOLLOWER and group.leader in (sender, None) and group.membership.is_voter(group.me):
            self.start(transfer=True)

    def count_vote(self, member: MemberId) -> None:
        if self._group.membership.is_voter(member):
            self._votes.add(member)
            if self._has_majority():
                self._votes = set()
                self.election_due = None
                self._group.lead()

    def _has_majority(self) -> bool:
        return len(self._votes) >= self._group.membership.configuration.quorum

    # Leader

    def lead(self) -> None:
        group = self._group
        self._elected_at = group.context.now
        self.quorum_due = group.context.now + group.settings.lease_ms
        group.wake_at(self.quorum_due)

    def check_quorum(self) -> None:
        """Leader: resign unless a majority of voters answered within the lease."""
        group = self._group
        context = group.context
        if context.now < self._elected_at + group.settings.lease_ms:
            return
        configuration = group.membership.configuration
        support = sum(
            1
            for voter in configuration.voters
            if voter == group.me or context.peer(voter.broker_id).supports(group.row_key(voter))
        )
        if support < configuration.quorum:
            group.become_follower(group.term, None)

    def on_row_refused(self, term: int) -> None:
        if term > self._group.term:
            self._group.become_follower(term, None)
        else:
            self.check_quorum()

    # Follower

    def expect_leader(self, *, at_once: bool = False) -> None:
        """Start the election timeout; `at_once` when the old leader is known to be gone."""
        group = self._group
        timeout_ms = 0 if at_once else group.settings.election_min_ms
        if self.barred:
            timeout_ms += group.settings.barred_election_ms
        self.election_due = group.context.now + timeout_ms + group.context.jitter()
        group.wake_at(self.election_due)

    def follow(self, leader: MemberId) -> None:
        """A message of this term's leader has come on this group."""
        group = self._group
        if group.role is Role.LEADER:
            raise InvariantBroken(f"{leader} and {group.me} both lead {group.id} in term {group.term}")
        if group.role is not Role.FOLLOWER:
            group.become_follower(group.term, leader)
        elif group.leader != leader:
            group.leader = leader
            group.announce()
        self.followed_at = group.context.now
        if self.leader_broker_id is None:
            self.expect_leader()

    def stop_voting(self) -> None:
        self._votes = set()

    def withdraw(self, term: int) -> None:
        """Report to the broker whose heartbeats covered this group that its row is no longer followed here."""
        group = self._group
        if self.leader_broker_id is not None:
            group.context.peer(self.leader_broker_id).not_followed[group.row_key(group.me)] = term
            self.leader_broker_id = None

    def on_leader_heartbeat(self, leader: MemberId, term: int, commit: int) -> bool:
        """A heartbeat row of the broker that leads this group. False: this replica is in a newer term."""
        group = self._group
        if term < group.term:
            return False
        if term > group.term:
            group.become_follower(term, leader)
        elif group.role is Role.LEADER:
            raise InvariantBroken(f"{leader} and {group.me} both lead {group.id} in term {group.term}")
        elif group.role is not Role.FOLLOWER:
            group.become_follower(term, leader)
        elif group.leader != leader:
            group.leader = leader
            group.announce()
        self.leader_broker_id = leader.broker_id
        self.election_due = None
        group.state.learn_commit(min(commit, group.log.last_index))
        return True

    def on_leader_gone(self, broker_id: int) -> None:
        """That broker no longer leads this group: its heartbeat has no row for it, or it has restarted."""
        group = self._group
        if group.role is Role.FOLLOWER and group.leader is not None and group.leader.broker_id == broker_id:
            group.leader = None
            self.leader_broker_id = None
            self.followed_at = None
            group.announce()
            self.expect_leader(at_once=True)

    def on_leader_silent(self) -> None:
        """No heartbeat of the leading broker came for the shortest election timeout."""
        self.leader_broker_id = None
        self.expect_leader(at_once=True)
