"""The configuration of a group and its changes, and the transfer of leadership.

One change at a time: the next one is accepted only when the last one is applied and this leader has committed an entry
of its own term (without that, two leaders could each count on a configuration that the other does not have). A learner
becomes a voter only when it has nearly caught up. A leader does not remove itself: it transfers leadership first.

Transfer: the leader accepts nothing new, waits until everything is applied and the target has it all, and sends the
target `TimeoutNow`. From that moment it may be replaced without notice, so it does not return to work.

A leader whose replica is barred, or whose disk is low, transfers leadership by itself as soon as a better voter is up
and nearly has everything. Without one it goes on leading; after a transfer that came to nothing it waits longer each
time, because nothing is accepted meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.raft.configuration import ConfigurationChange, GroupConfiguration, MemberId, Step, changed
from broker.raft.effects import Role
from broker.raft.entry import Kind, LogEntry
from broker.raft.events import Reconfigure, RequestRefused, TransferLeadership
from broker.raft.messages import TimeoutNow
from broker.raft.snapshot import Snapshot

if TYPE_CHECKING:
    from broker.raft.group import RaftGroup

_MOST_DOUBLINGS = 6
NOT_COMMITTED = "the last change is not committed yet"


class Membership:
    """`configurations` are (index, configuration), oldest first: the last applied one and those after it."""

    __slots__ = (
        "_group",
        "_step_downs",
        "_transfer_sent",
        "configurations",
        "step_down_due",
        "transfer_due",
        "transfer_to",
    )

    def __init__(self, group: RaftGroup, snapshot: Snapshot) -> None:
        self._group = group
        self.configurations: list[tuple[int, GroupConfiguration]] = []
        self.reset(snapshot)
        self.transfer_to: MemberId | None = None
        self.transfer_due: int | None = None
        self._transfer_sent = False
        self.step_down_due: int | None = None
        self._step_downs = 0  # transfers this leader has started by itself

    def reset(self, snapshot: Snapshot) -> None:
        self.configurations = [(snapshot.configuration_index, snapshot.configuration)]

    @property
    def configuration(self) -> GroupConfiguration:
        return self.configurations[-1][1]

    @property
    def configuration_index(self) -> int:
        return self.configurations[-1][0]

    def configuration_at(self, index: int) -> tuple[int, GroupConfiguration]:
        return next(pair for pair in reversed(self.configurations) if pair[0] <= index)

    def is_voter(self, member: MemberId) -> bool:
        return member in self.configuration.voters

    def adopt(self, entry: LogEntry) -> None:
        """In force from the moment it is in the log, committed or not."""
        assert isinstance(entry.body, GroupConfiguration)
        if entry.index > self.configurations[-1][0]:
            self.configurations.append((entry.index, entry.body))

    def truncate(self, index: int) -> None:
        while self.configurations[-1][0] >= index:
            self.configurations.pop()

    def forget_before(self, index: int) -> None:
        while len(self.configurations) > 1 and self.configurations[1][0] <= index:
            self.configurations.pop(0)

    # Configuration changes

    def reconfigure(self, event: Reconfigure) -> None:
        group = self._group
        if not group.accepts(event.request):
            return
        problem = self.problem(event.change, event.expected)
        following = changed(self.configuration, event.change)
        if problem is not None or isinstance(following, str):
            group.resolve(event.request, RequestRefused(problem or str(following)))
            return
        entry = group.replication.append(Kind.CONFIGURATION, event.wall_ms, following)
        self.adopt(entry)
        group.replication.waiting[entry.index] = event.request
        group.replication.set_members(self.configuration.members)
        group.replication.count_replicas()

    def problem(self, change: ConfigurationChange, expected: int) -> str | None:
        if expected != self.configuration_index:
            return f"the configuration is that of entry {self.configuration_index}"
        if self.configuration_index > self._group.applied:
            return NOT_COMMITTED
        if change.step is Step.REMOVE and change.member == self._group.me:
            return "the leader must transfer leadership before it is removed"
        if change.step is Step.PROMOTE and not self._group.replication.has_caught_up(change.member):
            return "the learner has not caught up"
        if (
            change.step is Step.REMOVE
            and self.is_voter(change.member)
            and not self._is_electable_without(change.member)
        ):
            return "without this voter the group would have no majority right now"
        return None

    def _is_electable_without(self, member: MemberId) -> bool:
        """The configuration counts as soon as it is in the log: those who are left must be able to commit it."""
        group = self._group
        left = [voter for voter in self.configuration.voters if voter != member]
        following = [
            voter
            for voter in left
            if voter == group.me or group.context.peer(voter.broker_id).supports(group.row_key(voter))
        ]
        return 2 * len(following) > len(left)

    # Transfer of leadership

    def transfer(self, event: TransferLeadership) -> None:
        group = self._group
        if group.role is not Role.LEADER or self.transfer_to is not None:
            return
        target = event.target or self._best_successor()
        if target is None or target == group.me or target not in self.configuration.voters:
            return
        if event.target is None or self.why_not_to(target) is None:
            self._start_transfer(target)

    def why_not_to(self, target: MemberId) -> str | None:
        """Why this leader does not transfer leadership to that voter."""
        group = self._group
        if self._is_barred(target) and not group.election.barred:
            return "its replica is damaged"
        if not group.context.has_room(target.broker_id) and not group.context.disk_low:
            return "its disk is almost full"
        if not self._answers(target):
            return "it does not answer"  # waiting for it would cost an election timeout
        return None

    def _start_transfer(self, target: MemberId) -> None:
        group = self._group
        self.transfer_to = target
        self.transfer_due = group.context.now + group.settings.election_min_ms
        group.wake_at(self.transfer_due)
        group.touch()

    def _answers(self, member: MemberId) -> bool:
        context = self._group.context
        answered_at = context.peer(member.broker_id).answered_at
        return answered_at is not None and context.now - answered_at <= 2 * context.settings.heartbeat_ms

    def _best_successor(self) -> MemberId | None:
        group = self._group
        voters = [m for m in self.configuration.voters if m != group.me]
        near = [m for m in voters if group.context.peer(m.broker_id).contact] or voters
        near = [m for m in near if not self._is_barred(m)] or near
        return max(near, key=lambda m: group.replication.progress[m].match, default=None)

    def _is_barred(self, member: MemberId) -> bool:
        return self._group.row_key(member) in self._group.context.peer(member.broker_id).barred

    # Leaders that should not lead

    def lead(self) -> None:
        if self._should_step_down():
            self.plan_step_down(self._group.settings.heartbeat_ms)

    def plan_step_down(self, delay_ms: int) -> None:
        group = self._group
        self.step_down_due = group.context.now + delay_ms
        group.wake_at(self.step_down_due)

    def _should_step_down(self) -> bool:
        group = self._group
        return group.role is Role.LEADER and (group.election.barred or group.context.disk_low)

    def on_step_down_due(self) -> None:
        if not self._should_step_down():
            return
        settings = self._group.settings
        successor = self._better_successor() if self.transfer_to is None and self._group.ready else None
        if successor is not None:
            self._step_downs += 1
            self._start_transfer(successor)
        self.plan_step_down(settings.election_min_ms << min(self._step_downs, _MOST_DOUBLINGS))

    def _better_successor(self) -> MemberId | None:
        """A voter that follows, is not barred itself, has room, and has nearly caught up."""
        group = self._group
        context, replication = group.context, group.replication
        better = [
            voter
            for voter in self.configuration.voters
            if voter != group.me
            and context.peer(voter.broker_id).supports(group.row_key(voter))
            and not self._is_barred(voter)
            and context.has_room(voter.broker_id)
            and replication.has_caught_up(voter)
        ]
        return max(better, key=lambda m: replication.progress[m].match, default=None)

    def continue_transfer(self) -> None:
        target = self.transfer_to
        if target is None or self._transfer_sent:
            return
        group = self._group
        progress = group.replication.progress.get(target)
        if progress is None:
            self.transfer_to = self.transfer_due = None
        elif progress.match == group.applied == group.log.last_index:
            self._transfer_sent = True
            group.send(target, TimeoutNow(group.term), gated=False)

    def on_transfer_due(self) -> None:
        if self._transfer_sent:
            self._group.become_follower(self._group.term, None)
        else:
            self.transfer_to = None

    def resign(self) -> None:
        self.transfer_due = None
        self.transfer_to = None
        self._transfer_sent = False
        self.step_down_due = None
        self._step_downs = 0
