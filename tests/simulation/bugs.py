"""Bugs to plant, so that the simulator proves that it can find them. Nothing here is reachable from the broker."""

from dataclasses import dataclass, replace
from enum import Enum

from broker.raft.configuration import ConfigurationChange, MemberId
from broker.raft.dedupe import NOTHING_SEEN
from broker.raft.effects import CommittedEntries, Role
from broker.raft.election import Election
from broker.raft.entry import Kind, LogEntry
from broker.raft.events import EntryCommitted, Propose, Read, ReadAt
from broker.raft.group import RaftGroup
from broker.raft.heartbeats import PeerHeartbeats
from broker.raft.membership import NOT_COMMITTED, Membership
from broker.raft.messages import AppendReply, HeartbeatReply, InstallSnapshot, Message, PreVote, RowKey, Vote, VoteReply
from broker.raft.node import Node
from broker.raft.progress import Progress
from broker.raft.replication import Replication
from broker.raft.snapshot import Snapshot
from broker.raft.state_machine import StateMachine


class Profile(Enum):
    """What a run has most of."""

    MIXED = "mixed"
    AMBUSH = "ambush"  # new leaders are cut off before their first entry gets through: old terms pile up
    CONGESTED = "congested"  # frames come late and out of order
    WILD_CLOCKS = "wild_clocks"  # safety may not depend on clocks; only the lease is then not checked
    MEMBERSHIP = "membership"  # replicas move all the time, and leaders are cut off in the middle of it
    DAMAGE = "damage"  # unreadable batches and journals, full disks, power losses


@dataclass(frozen=True, slots=True)
class Bug:
    """`profile` is where it is looked for; runs without a bug take them all in turn."""

    name: str = "none"
    group_type: type[RaftGroup] = RaftGroup
    node_type: type[Node] = Node
    skips_fsync: bool = False
    believes_page_cache: bool = False  # a start takes what it can read for durable
    installs_late: bool = False  # the snapshot of an install is written like that of a cut, after the acknowledgement
    rebuilds_at_once: bool = False  # a damaged replica is replaced by an empty one before its group has agreed
    keeps_identity: bool = False
    profile: Profile | None = None


class ForgetsTheVote(RaftGroup):
    """The vote is never written: after a restart it can be given again in the same term."""

    def flush(self) -> None:
        super().flush()
        persists = self.context.round.persists
        if persists and persists[-1].group == self.id:
            persists[-1] = persists[-1]._replace(hard=replace(persists[-1].hard, vote=None))


class AcknowledgesBeforeCommit(Replication):
    def propose(self, event: Propose) -> None:
        super().propose(event)
        for index, request in list(self.waiting.items()):
            if request == event.request:
                entry = self._group.log.between(index, index)[0]
                self._group.resolve(request, EntryCommitted(index, entry.base_offset, entry.append_time))
                del self.waiting[index]


class AppendsAcrossGaps(Replication):
    """A batch that has waited long enough for the one before it is appended without it."""

    def on_reorder_due(self) -> None:
        assert self._overtaking is not None
        for event in self._overtaking.take_due():
            self._append_checked(event, None, ())
        self.reorder_due = self._overtaking.next_due()


class CountsOldTerms(Replication):
    """Raft's figure 8: an entry of an older term on a majority can still be overwritten."""

    def may_count(self, index: int) -> bool:
        return True


class IgnoresTheTermOfReplies(RaftGroup):
    def agree_on_term(self, sender: MemberId, message: Message) -> bool:
        if isinstance(message, AppendReply | VoteReply) and message.term <= self.term:
            return True
        return super().agree_on_term(sender, message)


class TruncatesWithoutConflict(Replication):
    """Every Append makes the log end with it: one that was overtaken takes back what was acknowledged."""

    def store(self, entries: tuple[LogEntry, ...]) -> None:
        log = self._group.log
        if entries and entries[0].index <= log.last_index:
            self.truncate(max(entries[0].index, self._group.state.commit_index + 1))
        super().store(tuple(e for e in entries if e.index > log.last_index))


class DedupesWhatItAppends(Replication):
    """The leader remembers what it has appended; followers do not get it from the log."""

    def append(self, *args: object, **kwargs: object) -> LogEntry:
        entry = super().append(*args, **kwargs)  # type: ignore[arg-type]
        if entry.kind is Kind.MESSAGES:
            self._group.state.dedupe.apply(entry)
        return entry


class AppliesWithoutDedupe(StateMachine):
    def apply_entry(self, entry: LogEntry) -> None:
        self.dedupe_index = max(self.dedupe_index, entry.index)
        super().apply_entry(entry)


class ShowsBeforeCommit(StateMachine):
    """A leader lets readers have what it has sent to its followers."""

    def apply(self) -> None:
        super().apply()
        group = self._group
        if group.role is Role.LEADER and self.applied < group.log.last_index:
            entries = tuple(group.log.between(self.applied + 1, group.log.last_index))
            group.context.round.committed.append(CommittedEntries(group.id, entries[-1].end_offset, entries))


class SnapshotsWithoutDedupe(StateMachine):
    def snapshot(self) -> Snapshot:
        return replace(super().snapshot(), dedupe=NOTHING_SEEN)


class ReadsWithoutMajority(RaftGroup):
    def read(self, event: Read) -> None:
        if self.role is Role.LEADER and self.ready:
            self.resolve(event.request, ReadAt(self.applied, self.log.start_offset, self.applied_offset))
        else:
            super().read(event)


class VotesForShorterLogs(Election):
    def is_up_to_date(self, candidate: PreVote | Vote) -> bool:
        return True


class CountsItselfUnsynced(RaftGroup):
    """The leader takes its own entries for durable while its disk is still writing."""

    def flush(self) -> None:
        super().flush()
        if self.role is Role.LEADER:
            self.persistence.durable_index = self.log.last_index
            self.replication.count_replicas()


class KeepsTruncatedConfigurations(Membership):
    def truncate(self, index: int) -> None:
        pass


class ChangesTwiceAtOnce(Membership):
    """The next change does not wait until the last one is committed."""

    def problem(self, change: ConfigurationChange, expected: int) -> str | None:
        found = super().problem(change, self.configuration_index)
        return None if found == NOT_COMMITTED else found


class AcknowledgesInstallsAtOnce(Replication):
    def on_install_snapshot(self, sender: MemberId, message: InstallSnapshot) -> None:
        group = self._group
        super().on_install_snapshot(sender, message)
        before_start = message.snapshot.start_index - 1
        group.send(sender, AppendReply(group.term, before_start, before_start), gated=False)


class InstallsOldSnapshots(Replication):
    """One that was overtaken replaces what came after it."""

    def on_install_snapshot(self, sender: MemberId, message: InstallSnapshot) -> None:
        group = self._group
        before_start = message.snapshot.start_index - 1
        if before_start <= group.state.commit_index:
            group.state.install(message.snapshot)
        super().on_install_snapshot(sender, message)


class SendsCommitBeyondMatch(Node):
    def commit_for(self, progress: Progress, commit_index: int) -> int:
        return commit_index


class KeepsOldRows(PeerHeartbeats):
    """A restarted broker still counts as leader of what it led, and its new table as an old one."""

    def start_session(self, session: int, now: int) -> list[RowKey]:
        held, version = dict(self.held), self.held_version
        super().start_session(session, now)
        self.held, self.held_version = held, version
        return []


class IgnoresRefusals(PeerHeartbeats):
    def refusals(self, reply: HeartbeatReply) -> list[tuple[RowKey, int]]:
        return []


def node_with(peer_type: type[PeerHeartbeats]) -> type[Node]:
    return type("PlantedNode", (Node,), {"peer_type": peer_type})


def group_with(**parts: type) -> type[RaftGroup]:
    """A group with one of its parts replaced."""
    return type("PlantedGroup", (RaftGroup,), {"__slots__": (), **parts})


BUGS = {
    bug.name: bug
    for bug in (
        Bug("forget_vote", ForgetsTheVote, profile=Profile.CONGESTED),
        Bug("skip_fsync", skips_fsync=True),
        Bug("ack_before_commit", group_with(replication_type=AcknowledgesBeforeCommit)),
        Bug("show_before_commit", group_with(state_type=ShowsBeforeCommit)),
        Bug("append_across_gaps", group_with(replication_type=AppendsAcrossGaps)),
        Bug("commit_old_term", group_with(replication_type=CountsOldTerms), profile=Profile.AMBUSH),
        Bug("ignore_reply_term", IgnoresTheTermOfReplies, profile=Profile.CONGESTED),
        Bug(
            "truncate_without_conflict",
            group_with(replication_type=TruncatesWithoutConflict),
            profile=Profile.CONGESTED,
        ),
        Bug(
            "dedupe_outside_log",
            group_with(replication_type=DedupesWhatItAppends, state_type=AppliesWithoutDedupe),
        ),
        Bug("snapshot_without_dedupe", group_with(state_type=SnapshotsWithoutDedupe)),
        Bug("same_identity", keeps_identity=True),
        Bug("read_without_majority", ReadsWithoutMajority, profile=Profile.WILD_CLOCKS),
        Bug("vote_for_shorter_log", group_with(election_type=VotesForShorterLogs)),
        Bug("count_itself_unsynced", CountsItselfUnsynced),
        Bug(
            "keep_truncated_configuration",
            group_with(membership_type=KeepsTruncatedConfigurations),
            profile=Profile.MEMBERSHIP,
        ),
        Bug("two_changes_at_once", group_with(membership_type=ChangesTwiceAtOnce), profile=Profile.MEMBERSHIP),
        Bug("acknowledge_install_at_once", group_with(replication_type=AcknowledgesInstallsAtOnce)),
        Bug("install_late", installs_late=True),
        Bug("install_old_snapshot", group_with(replication_type=InstallsOldSnapshots), profile=Profile.CONGESTED),
        Bug("commit_beyond_match", node_type=SendsCommitBeyondMatch, profile=Profile.AMBUSH),
        Bug("keep_old_rows", node_type=node_with(KeepsOldRows)),
        Bug("ignore_refusals", node_type=node_with(IgnoresRefusals), profile=Profile.DAMAGE),
        Bug("rebuild_at_once", rebuilds_at_once=True, profile=Profile.DAMAGE),
        Bug("believe_page_cache", believes_page_cache=True),
    )
}
SOUND = Bug()
