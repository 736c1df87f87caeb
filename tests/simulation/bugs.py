"""Bugs to plant, so that the simulator proves that it can find them. Nothing here is reachable from the broker."""

from dataclasses import dataclass, replace
from enum import Enum

from broker.raft.configuration import MemberId
from broker.raft.dedupe import NOTHING_SEEN
from broker.raft.effects import Role
from broker.raft.election import Election
from broker.raft.entry import Kind, LogEntry
from broker.raft.events import EntryCommitted, Propose, Read, ReadAt
from broker.raft.group import RaftGroup
from broker.raft.messages import AppendReply, Message, PreVote, Vote, VoteReply
from broker.raft.replication import Replication
from broker.raft.snapshot import Snapshot
from broker.raft.state_machine import StateMachine


class Profile(Enum):
    """What a run has most of."""

    MIXED = "mixed"
    AMBUSH = "ambush"  # new leaders are cut off before their first entry gets through: old terms pile up
    CONGESTED = "congested"  # frames come late and out of order
    WILD_CLOCKS = "wild_clocks"  # safety may not depend on clocks; only the lease is then not checked


@dataclass(frozen=True, slots=True)
class Bug:
    """`profile` is where it is looked for; runs without a bug take them all in turn."""

    name: str = "none"
    group_type: type[RaftGroup] = RaftGroup
    skips_fsync: bool = False
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


def group_with(**parts: type) -> type[RaftGroup]:
    """A group with one of its parts replaced."""
    return type("PlantedGroup", (RaftGroup,), {"__slots__": (), **parts})


BUGS = {
    bug.name: bug
    for bug in (
        Bug("forget_vote", ForgetsTheVote, profile=Profile.CONGESTED),
        Bug("skip_fsync", skips_fsync=True),
        Bug("ack_before_commit", group_with(replication_type=AcknowledgesBeforeCommit)),
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
    )
}
SOUND = Bug()
