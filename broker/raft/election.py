"""Who leads.

A replica that misses its leader first asks whether it would win (pre-vote), so that one behind a broken link does not
push terms up. Nobody votes against a leader it has heard within the shortest election timeout, nor in its own first
moments after a start, unless that leader asked for the election. A leader that loses touch with its majority for a
lease, which is shorter, resigns: at most one of them acknowledges anything at a time.
"""

from broker.raft.dedupe import Pending
from broker.raft.effects import Role
from broker.raft.entry import Kind
from broker.raft.identity import Member
from broker.raft.membership import Membership
from broker.raft.messages import PreVote, PreVoteReply, TimeoutNow, Vote, VoteReply
from broker.raft.progress import Progress
from broker.raft.replica import InvariantBroken


class Election(Membership):
    __slots__ = ()

    def protects_a_leader(self) -> bool:
        if self.role is Role.LEADER or self.around.just_booted():
            return True
        if self.leader is None:
            return False
        followed = self.followed_at
        if followed is not None and self.around.now - followed < self.settings.election_min_ms:
            return True
        return self.around.near(self.leader.broker_id)

    # Standing for election

    def campaign(self) -> None:
        voters = self.configuration.voters
        if self.me not in voters:
            return
        self.role = Role.PRE_CANDIDATE
        self.leader = None
        self.votes = {self.me}
        self.announce()
        self.expect_leader()
        if self._has_majority():
            self.stand(transfer=False)
            return
        for member in voters:
            if member != self.me:
                self.send(member, PreVote(self.term + 1, self.log.last_index, self.log.last_term))

    def stand(self, *, transfer: bool) -> None:
        """Our own vote counts when it is on disk; nobody hears of the new term before."""
        self.withdraw(self.term + 1)
        self.term += 1
        self.vote = self.me
        self.votes = set()
        self.role = Role.CANDIDATE
        self.leader = None
        self.save_hard()
        self.announce()
        self.expect_leader()
        for member in self.configuration.voters:
            if member != self.me:
                self.send(member, Vote(self.term, self.log.last_index, self.log.last_term, transfer))

    def on_durable(self, number: int) -> None:
        own_vote = self.role is Role.CANDIDATE and any(
            round_ <= number and term == self.term for round_, _, term in self.durable_marks
        )
        super().on_durable(number)
        if own_vote:
            self._count_vote(self.me)

    def on_pre_vote(self, sender: Member, message: PreVote) -> None:
        granted = message.term > self.term and not self.protects_a_leader() and self.knows_enough(message)
        self.send(sender, PreVoteReply(message.term if granted else self.term, granted))

    def on_pre_vote_reply(self, sender: Member, message: PreVoteReply) -> None:
        if not message.granted:
            if message.term > self.term:
                self.become_follower(message.term, None)
        elif self.role is Role.PRE_CANDIDATE and message.term == self.term + 1 and self._is_voter(sender):
            self.votes.add(sender)
            if self._has_majority():
                self.stand(transfer=False)

    def on_vote(self, sender: Member, message: Vote) -> None:
        granted = self.grants(sender, message)
        if granted and self.vote is None:
            self.vote = sender
            self.save_hard()
            self.expect_leader()
        self.send(sender, VoteReply(self.term, granted))

    def grants(self, sender: Member, message: Vote) -> bool:
        """Whether the candidate is a voter is its own majority's business: this replica's list may be an older one."""
        if self.vote is not None:
            return self.vote == sender
        return self.leader is None and self.knows_enough(message)

    def knows_enough(self, candidate: PreVote | Vote) -> bool:
        """Only who holds all this replica holds may lead it: that is how committed entries survive."""
        return self.log.up_to_date(candidate.last_index, candidate.last_term)

    def on_vote_reply(self, sender: Member, message: VoteReply) -> None:
        if message.granted and self.role is Role.CANDIDATE:
            self._count_vote(sender)

    def on_timeout_now(self, sender: Member, _message: TimeoutNow) -> None:
        if self.role is Role.FOLLOWER and self.leader in (sender, None) and self._is_voter(self.me):
            self.stand(transfer=True)

    def _is_voter(self, member: Member) -> bool:
        return member in self.configuration.voters

    def _has_majority(self) -> bool:
        return len(self.votes) >= self.configuration.quorum

    def _count_vote(self, member: Member) -> None:
        if self._is_voter(member):
            self.votes.add(member)
            if self._has_majority():
                self._lead()

    # Leading

    def _lead(self) -> None:
        around = self.around
        self.role = Role.LEADER
        self.leader = self.me
        self.votes = set()
        self.election_due = None
        self.elected_at = around.now
        self.quorum_due = around.now + self.settings.lease_ms
        self.wake_at(self.quorum_due)
        following = self.log.last_index + 1
        self.progress = {m: Progress(following, around.now) for m in self.configuration.members if m != self.me}
        self.pending = Pending(self.dedupe)
        self.pending_bytes = 0
        for entry in self.log.between(self.applied + 1, self.log.last_index):
            self.pending.add(entry)
            self.pending_bytes += entry.size
        around.led[self.id] = self
        around.rows_due[self.id] = self
        self.announce()
        self.take(Kind.NOOP, 0)

    def check_quorum(self) -> None:
        """Leader: resign unless a majority of voters was in touch within the lease."""
        around = self.around
        if around.now < self.elected_at + self.settings.lease_ms:
            return
        configuration = self.configuration
        support = sum(
            1
            for voter in configuration.voters
            if voter == self.me or around.peer(voter.broker_id).supports(self.row_key(voter))
        )
        if support < configuration.quorum:
            self.become_follower(self.term, None)

    def row_refused(self, term: int) -> None:
        if term > self.term:
            self.become_follower(term, None)
        else:
            self.check_quorum()

    # Following, by the heartbeats of a broker

    def attested(self, leader: Member, term: int, commit: int) -> bool:
        """A broker says that it leads this group. False: it does not, as far as this replica knows."""
        if term < self.term:
            return False
        if term > self.term:
            self.become_follower(term, leader)
        elif self.role is Role.LEADER:
            raise InvariantBroken(f"{leader} and {self.me} both lead {self.id} in term {self.term}")
        elif self.role is not Role.FOLLOWER:
            self.become_follower(term, leader)
        elif self.leader != leader:
            self.leader = leader
            self.announce()
        self.attested_by = leader.broker_id
        self.election_due = None
        self.learn_commit(min(commit, self.log.last_index))
        return True

    def leader_gone(self, broker_id: int) -> None:
        """That broker no longer leads this group: it said so, or it has restarted."""
        if self.role is Role.FOLLOWER and self.leader is not None and self.leader.broker_id == broker_id:
            self.leader = None
            self.attested_by = None
            self.followed_at = None
            self.announce()
            self.expect_leader(at_once=True)

    def leader_silent(self) -> None:
        """The broker that leads has not been heard for the shortest election timeout."""
        self.attested_by = None
        self.expect_leader(at_once=True)
