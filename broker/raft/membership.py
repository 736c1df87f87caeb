"""Who belongs to the group, and handing leadership over.

One step at a time: the next one is taken only when the last one is applied and this leader has committed an entry of
its own term (without that, two leaders could each count on a configuration the other does not know). A learner becomes
a voter only when it has nearly caught up. A leader does not remove itself: it hands over first.

Handing over: the leader takes nothing new, waits until everything is applied and the target has it all, and tells the
target to stand at once. From that moment it may be replaced without notice, so it does not go back to work.
"""

from broker.raft.configuration import Change, Step, changed
from broker.raft.effects import Role
from broker.raft.entry import Kind
from broker.raft.events import NotLeader, NotReady, Reconfigure, Refused, Transfer
from broker.raft.identity import Member
from broker.raft.messages import TimeoutNow
from broker.raft.progress import Progress
from broker.raft.replication import Replication


class Membership(Replication):
    __slots__ = ()

    def reconfigure(self, event: Reconfigure) -> None:
        if self.role is not Role.LEADER:
            self.resolve(event.request, NotLeader(self.leader))
            return
        if not self.ready or self.handover_to is not None:
            self.resolve(event.request, NotReady())
            return
        problem = self._problem(event.change, event.expected)
        following = changed(self.configuration, event.change)
        if problem is not None or isinstance(following, str):
            self.resolve(event.request, Refused(problem or str(following)))
            return
        entry = self.take(Kind.CONFIGURATION, event.wall_ms, following)
        self.adopt_configuration(entry)
        self.waiting[entry.index] = event.request
        self._meet_members()
        self.count_replicas()

    def _problem(self, change: Change, expected: int) -> str | None:
        if expected != self.configuration_index:
            return f"the configuration is that of entry {self.configuration_index}"
        if self.configuration_index > self.applied:
            return "the last change is not committed yet"
        if change.step is Step.REMOVE and change.member == self.me:
            return "the leader hands over before it leaves"
        if change.step is Step.PROMOTE:
            progress = self.progress.get(change.member)
            if progress is None or progress.match + self.settings.promote_lag < self.log.last_index:
                return "the learner has not caught up"
        return None

    def _meet_members(self) -> None:
        members = self.configuration.members
        for member in members:
            if member != self.me and member not in self.progress:
                self.progress[member] = Progress(self.log.last_index, self.around.now)
        for member in [m for m in self.progress if m not in members]:
            del self.progress[member]
            self.around.peer(member.broker_id).remove_row(self.row_key(member))
        self.around.rows_due[self.id] = self

    def transfer(self, event: Transfer) -> None:
        if self.role is not Role.LEADER or self.handover_to is not None:
            return
        target = event.target or self._best_successor()
        if target is None or target == self.me or target not in self.configuration.voters:
            return
        if event.target is not None and not self._answers(target):
            return  # it may be dead: waiting for it would cost an election timeout
        self.handover_to = target
        self.handover_due = self.around.now + self.settings.election_min_ms
        self.wake_at(self.handover_due)
        self.touch()

    def _answers(self, member: Member) -> bool:
        answered_at = self.around.peer(member.broker_id).answered_at
        return answered_at is not None and self.around.now - answered_at <= 2 * self.settings.heartbeat_ms

    def _best_successor(self) -> Member | None:
        voters = [m for m in self.configuration.voters if m != self.me]
        near = [m for m in voters if self.around.peer(m.broker_id).contact] or voters
        return max(near, key=lambda m: self.progress[m].match, default=None)

    def go_on_with_handover(self) -> None:
        target = self.handover_to
        if target is None or self.handover_sent:
            return
        progress = self.progress.get(target)
        if progress is None:
            self.handover_to = self.handover_due = None
        elif progress.match == self.applied == self.log.last_index:
            self.handover_sent = True
            self.send(target, TimeoutNow(self.term), gated=False)

    def on_handover_due(self) -> None:
        if self.handover_sent:
            self.become_follower(self.term, None)
        else:
            self.handover_to = None
