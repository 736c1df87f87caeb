"""Bugs to plant, so that the simulator proves that it can find them. Nothing here is reachable from the broker."""

from dataclasses import dataclass, replace
from enum import Enum

from broker.raft.dedupe import NOTHING_SEEN
from broker.raft.effects import Role
from broker.raft.entry import Entry, Kind
from broker.raft.events import Committed, Propose, Read, ReadAt
from broker.raft.group import Group
from broker.raft.identity import Member
from broker.raft.messages import AppendReply, Message, PreVote, Vote, VoteReply
from broker.raft.snapshot import Snapshot


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
    group_type: type[Group] = Group
    skips_fsync: bool = False
    keeps_identity: bool = False
    profile: Profile | None = None


class ForgetsTheVote(Group):
    """The vote is never written: after a restart it can be given again in the same term."""

    def flush(self) -> None:
        super().flush()
        persists = self.around.round.persists
        if persists and persists[-1].group == self.id:
            persists[-1] = persists[-1]._replace(hard=replace(persists[-1].hard, vote=None))


class AcknowledgesBeforeCommit(Group):
    def propose(self, event: Propose) -> None:
        super().propose(event)
        for index, request in list(self.waiting.items()):
            if request == event.request:
                entry = self.log.between(index, index)[0]
                self.resolve(request, Committed(index, entry.base_offset, entry.append_time))
                del self.waiting[index]


class CountsOldTerms(Group):
    """Raft's figure 8: an entry of an older term on a majority can still be overwritten."""

    def may_count(self, index: int) -> bool:
        return True


class IgnoresTheTermOfReplies(Group):
    def agree_on_term(self, sender: Member, message: Message) -> bool:
        if isinstance(message, AppendReply | VoteReply) and message.term <= self.term:
            return True
        return super().agree_on_term(sender, message)


class TruncatesWithoutConflict(Group):
    """Every Append makes the log end with it: one that was overtaken takes back what was acknowledged."""

    def keep(self, entries: tuple[Entry, ...]) -> None:
        if entries and entries[0].index <= self.log.last_index:
            self.truncate(max(entries[0].index, self.commit + 1))
        super().keep(tuple(e for e in entries if e.index > self.log.last_index))


class DedupesOutsideTheLog(Group):
    """Only the leader's memory has the sequences it took; no replica learns them from the log."""

    def take(self, *args: object, **kwargs: object) -> Entry:
        entry = super().take(*args, **kwargs)  # type: ignore[arg-type]
        if entry.kind is Kind.MESSAGES:
            self.dedupe.apply(entry)
        return entry

    def apply_entry(self, entry: Entry) -> None:
        self.dedupe_index = max(self.dedupe_index, entry.index)
        super().apply_entry(entry)


class SnapshotsWithoutDedupe(Group):
    def snapshot(self) -> Snapshot:
        return replace(super().snapshot(), dedupe=NOTHING_SEEN)


class ReadsWithoutMajority(Group):
    def read(self, event: Read) -> None:
        if self.role is Role.LEADER and self.ready:
            self.resolve(event.request, ReadAt(self.applied, self.log.start_offset, self.applied_offset))
        else:
            super().read(event)


class VotesForShorterLogs(Group):
    def knows_enough(self, candidate: PreVote | Vote) -> bool:
        return True


class CountsItselfUnsynced(Group):
    """The leader takes its own entries for durable while its disk is still writing."""

    def flush(self) -> None:
        super().flush()
        if self.role is Role.LEADER:
            self.durable_index = self.log.last_index
            self.count_replicas()


BUGS = {
    bug.name: bug
    for bug in (
        Bug("forget_vote", ForgetsTheVote, profile=Profile.CONGESTED),
        Bug("skip_fsync", skips_fsync=True),
        Bug("ack_before_commit", AcknowledgesBeforeCommit),
        Bug("commit_old_term", CountsOldTerms, profile=Profile.AMBUSH),
        Bug("ignore_reply_term", IgnoresTheTermOfReplies, profile=Profile.CONGESTED),
        Bug("truncate_without_conflict", TruncatesWithoutConflict, profile=Profile.CONGESTED),
        Bug("dedupe_outside_log", DedupesOutsideTheLog),
        Bug("snapshot_without_dedupe", SnapshotsWithoutDedupe),
        Bug("same_identity", keeps_identity=True),
        Bug("read_without_majority", ReadsWithoutMajority, profile=Profile.WILD_CLOCKS),
        Bug("vote_for_shorter_log", VotesForShorterLogs),
        Bug("count_itself_unsynced", CountsItselfUnsynced),
    )
}
SOUND = Bug()
