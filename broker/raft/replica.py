"""One replica of a group: its state, what it owes the disk, and the way back to being a follower.

The ground floor of the core. The storeys above add reading, applying, replication, membership and election; each is a
class with one concern, `Group` on top is what a node runs.

**What may be lost.** Anything not yet reported durable may be missing after a restart: nothing was said to anyone that
depends on it, because every message that does waits for its round. A replica that finds *synced* entries, its term or
its vote missing or damaged is not such a replica. It may have voted or acknowledged with what is gone, so it must not
answer under its old name: the driver starts it as another member (new incarnation, no configuration), it is added as a
learner, fetches everything again, and the old member is removed. A tail that was dropped because it was torn is safe to
fetch again only when it was never reported durable.
"""

from broker.raft.configuration import Configuration
from broker.raft.dedupe import Dedupe, Pending
from broker.raft.effects import Dropped, Persist, Resolved, Role, RoleChanged, Send
from broker.raft.entry import Entry
from broker.raft.events import Lost, NotLeader, Outcome
from broker.raft.identity import GroupId, Member
from broker.raft.log import Log
from broker.raft.messages import Envelope, Message, RowKey
from broker.raft.progress import Progress
from broker.raft.readround import ReadRequest, ReadRound
from broker.raft.snapshot import Anchor, HardState, Snapshot, Stored
from broker.raft.surroundings import Surroundings


class InvariantBroken(Exception):
    """The group's state contradicts Raft's rules. Going on could lose data: the process stops."""


class Replica:
    __slots__ = (
        "applied",
        "applied_offset",
        "around",
        "attested_by",
        "commit",
        "configurations",
        "dedupe",
        "dedupe_index",
        "durable_index",
        "durable_marks",
        "elected_at",
        "election_due",
        "followed_at",
        "handover_due",
        "handover_sent",
        "handover_to",
        "hard_unsaved",
        "id",
        "leader",
        "log",
        "me",
        "outgoing",
        "pending",
        "pending_bytes",
        "progress",
        "quorum_due",
        "read_number",
        "read_rounds",
        "reads_confirmed",
        "reads_new",
        "ready",
        "retry_due",
        "role",
        "saved_round",
        "settings",
        "snapshot_unsaved",
        "term",
        "truncate_unsaved",
        "unsaved_first",
        "vote",
        "votes",
        "waiting",
    )

    def __init__(self, group_id: GroupId, me: Member, stored: Stored, around: Surroundings) -> None:
        self.id = group_id
        self.me = me
        self.around = around
        self.settings = around.settings
        # Raft's own state
        self.term = stored.hard.term
        self.vote = stored.hard.vote
        self.role = Role.FOLLOWER
        self.leader: Member | None = None
        self.attested_by: int | None = None  # the broker whose heartbeats carry this group
        self.followed_at: int | None = None  # when the leader itself was last heard on this group
        self.votes: set[Member] = set()
        self._start_from(stored)
        # deadlines
        self.election_due: int | None = None
        self.retry_due: int | None = None
        self.quorum_due: int | None = None
        # what the disk has and what it is owed
        self.durable_index = self.log.last_index
        self.durable_marks: list[tuple[int, int, int]] = []  # (round, last index then, term then), oldest first
        self.saved_round = 0  # last round with something of this group
        self.hard_unsaved = False
        self.snapshot_unsaved = False
        self.truncate_unsaved: int | None = None
        self.unsaved_first = self.log.last_index + 1
        self.outgoing: list[tuple[Member, Message, bool]] = []
        # a leader's
        self.elected_at = 0
        self.ready = False
        self.progress: dict[Member, Progress] = {}
        self.pending: Pending | None = None
        self.pending_bytes = 0
        self.waiting: dict[int, int] = {}  # log index -> request
        self.reads_new: list[ReadRequest] = []
        self.read_rounds: list[ReadRound] = []
        self.reads_confirmed: list[ReadRequest] = []
        self.read_number = 0
        self.handover_to: Member | None = None
        self.handover_due: int | None = None
        self.handover_sent = False

    def _start_from(self, stored: Stored) -> None:
        snapshot = stored.snapshot
        settings = self.settings
        self.log = Log(snapshot.start_index, snapshot.start_offset, snapshot.previous_term)
        self.log.resume(stored.terms, stored.anchor or Anchor(snapshot.start_index - 1, snapshot.start_offset, 0))
        self.dedupe = Dedupe(settings.keys_window, settings.producers_window, settings.batches_window)
        self.dedupe.load(snapshot.dedupe)
        self.dedupe_index = snapshot.index
        self.configurations = [(snapshot.configuration_index, snapshot.configuration)]
        # What the record covers is committed, also where this log was still catching up with it.
        covered = min(snapshot.index, self.log.last_index)
        self.commit = max(stored.hard.commit, snapshot.start_index - 1, covered)
        self.applied = min(self.commit, self.log.last_index)
        self.applied_offset = self.log.end_offset

    # Configuration

    @property
    def configuration(self) -> Configuration:
        return self.configurations[-1][1]

    @property
    def configuration_index(self) -> int:
        return self.configurations[-1][0]

    def adopt_configuration(self, entry: Entry) -> None:
        """In force from the moment it is in the log, committed or not."""
        assert isinstance(entry.body, Configuration)
        if entry.index > self.configurations[-1][0]:
            self.configurations.append((entry.index, entry.body))

    def row_key(self, member: Member) -> RowKey:
        return RowKey(self.id, member.incarnation)

    # What goes out

    def send(self, to: Member, message: Message, *, gated: bool = True) -> None:
        """Gated: only after everything this replica has decided so far is on its disk."""
        self.outgoing.append((to, message, gated))
        self.touch()

    def touch(self) -> None:
        self.around.touched[self.id] = self

    def resolve(self, request: int, outcome: Outcome) -> None:
        self.around.round.resolved.append(Resolved(self.id, request, outcome))

    def announce(self) -> None:
        self.around.round.roles.append(RoleChanged(self.id, self.role, self.term, self.leader, self.ready))

    def wake_at(self, due: int) -> None:
        self.around.deadlines.plan(self.id, due)

    # What goes to disk

    def save_hard(self) -> None:
        self.hard_unsaved = True
        self.touch()

    def truncate(self, index: int) -> None:
        """Entries from `index` on contradict the leader's log: they were never committed."""
        if index <= self.commit:
            raise InvariantBroken(f"entry {index} of {self.id} is committed and would be taken back")
        self.log.truncate_from(index)
        while self.configurations[-1][0] >= index:
            self.configurations.pop()
        if index < self.unsaved_first:
            self.unsaved_first = index
            older = self.truncate_unsaved
            self.truncate_unsaved = index if older is None else min(index, older)
        # A round under way may report these indexes durable; they will be other entries by then.
        self.durable_index = min(self.durable_index, index - 1)
        self.durable_marks = [(number, min(last, index - 1), term) for number, last, term in self.durable_marks]
        self.touch()

    def snapshot(self) -> Snapshot:
        applied_index, applied = next(pair for pair in reversed(self.configurations) if pair[0] <= self.dedupe_index)
        log = self.log
        return Snapshot(
            start_index=log.start_index,
            start_offset=log.start_offset,
            previous_term=log.previous_term(),
            index=self.dedupe_index,
            configuration=applied,
            configuration_index=applied_index,
            dedupe=self.dedupe.record(),
        )

    def install(self, snapshot: Snapshot) -> None:
        """The record replaces everything this replica has; entries from its start on will follow."""
        self.log.reset(snapshot.start_index, snapshot.start_offset, snapshot.previous_term)
        self.dedupe.load(snapshot.dedupe)
        self.dedupe_index = snapshot.index
        self.configurations = [(snapshot.configuration_index, snapshot.configuration)]
        self.commit = self.applied = self.log.last_index
        self.applied_offset = snapshot.start_offset
        self.unsaved_first = snapshot.start_index
        self.truncate_unsaved = 0
        self.snapshot_unsaved = True
        self.durable_index = 0
        self.durable_marks = [(number, 0, term) for number, _, term in self.durable_marks]
        self.around.round.dropped.append(Dropped(self.id, snapshot.start_index, snapshot.start_offset))
        self.touch()

    def flush(self) -> None:
        """Close this round for the group: one Persist for all that changed, then the messages."""
        around = self.around
        entries: tuple[Entry, ...] = ()
        if self.unsaved_first <= self.log.last_index:
            entries = tuple(self.log.between(self.unsaved_first, self.log.last_index))
            self.unsaved_first = self.log.last_index + 1
        if entries or self.hard_unsaved or self.snapshot_unsaved or self.truncate_unsaved is not None:
            hard = HardState(self.term, self.vote, self.commit)
            snapshot = self.snapshot() if self.snapshot_unsaved else None
            around.round.persists.append(Persist(self.id, hard, self.truncate_unsaved, snapshot, entries))
            self.saved_round = around.round.number
            self.durable_marks.append((self.saved_round, self.log.last_index, self.term))
            self.hard_unsaved = self.snapshot_unsaved = False
            self.truncate_unsaved = None
        if self.outgoing:
            after = self.saved_round if self.saved_round > around.durable else 0
            group_id, me, sends = self.id, self.me, around.round.sends
            for to, message, gated in self.outgoing:
                sends.append(Send(to.broker_id, Envelope(group_id, me, to, message), after if gated else 0))
            self.outgoing = []

    # Back to the start

    def become_follower(self, term: int, leader: Member | None) -> None:
        """Whatever this replica was, it follows now. Requests it had taken end as unknown, those it had not, as not."""
        was_leader = self.role is Role.LEADER
        if term != self.term:
            assert term > self.term
            self.withdraw(term)
            self.term = term
            self.vote = None
            self.save_hard()
        self.role = Role.FOLLOWER
        self.votes = set()
        self.leader = leader
        if was_leader:
            self._resign()
        self.announce()
        self.expect_leader()

    def expect_leader(self, *, at_once: bool = False) -> None:
        """Give a leader an election timeout to show itself; `at_once` when the old one is known to be gone."""
        patience = 0 if at_once else self.settings.election_min_ms
        self.election_due = self.around.now + patience + self.around.jitter()
        self.wake_at(self.election_due)

    def follow(self, leader: Member) -> None:
        """The leader of this term has been heard on this group."""
        if self.role is Role.LEADER:
            raise InvariantBroken(f"{leader} and {self.me} both lead {self.id} in term {self.term}")
        if self.role is not Role.FOLLOWER:
            self.become_follower(self.term, leader)
        elif self.leader != leader:
            self.leader = leader
            self.announce()
        self.followed_at = self.around.now
        if self.attested_by is None:
            self.expect_leader()

    def withdraw(self, term: int) -> None:
        """Tell the broker whose heartbeats carried this group that it is no longer followed here."""
        if self.attested_by is not None:
            self.around.peer(self.attested_by).not_followed[self.row_key(self.me)] = term
            self.attested_by = None

    def _resign(self) -> None:
        self.ready = False
        self.quorum_due = self.retry_due = self.handover_due = None
        self.handover_to = None
        self.handover_sent = False
        for request in self.waiting.values():
            self.resolve(request, Lost())
        self.waiting.clear()
        reads = self.reads_new + [r for round_ in self.read_rounds for r in round_.requests] + self.reads_confirmed
        for read in reads:
            self.resolve(read.request, NotLeader(self.leader))
        self.reads_new, self.read_rounds, self.reads_confirmed = [], [], []
        self.pending = None
        self.pending_bytes = 0
        self.around.led.pop(self.id, None)
        self.around.rows_due.pop(self.id, None)
        for member in self.progress:
            self.around.peer(member.broker_id).remove_row(self.row_key(member))
        self.progress = {}
        self.log.evict(self.applied, -1)
