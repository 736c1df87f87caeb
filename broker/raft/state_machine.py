"""From committed to applied: the state that a replica shows to its readers.

The commit index is the group's high watermark. An entry is applied when it is committed by the group *and* durable
here, so readers of this broker find it on its disk. A leader whose followers were faster than its own disk does not
wait for it: it answers the requests of committed entries and lets readers have them from memory. Everything else,
the replicated state and what a snapshot says of it, goes by what is applied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.raft.context import InvariantBroken
from broker.raft.dedupe import AppliedDedupe
from broker.raft.effects import Applied, CommittedEntries, Dropped, Role
from broker.raft.entry import Kind, LogEntry, LogStart
from broker.raft.events import ReadAt
from broker.raft.snapshot import Snapshot, Stored

if TYPE_CHECKING:
    from broker.raft.group import RaftGroup


class StateMachine:
    __slots__ = ("_answered", "_group", "applied", "applied_offset", "commit_index", "dedupe", "dedupe_index")

    def __init__(self, group: RaftGroup, stored: Stored) -> None:
        self._group = group
        snapshot, log, settings = stored.snapshot, group.log, group.settings
        self.dedupe = AppliedDedupe(settings.keys_window, settings.producers_window, settings.batches_window)
        self.dedupe.load(snapshot.dedupe)
        self.dedupe_index = snapshot.index
        # Everything the record covers is committed, also where this log was still catching up with it.
        covered = min(snapshot.index, log.last_index)
        self.commit_index = max(stored.hard.commit, snapshot.start_index - 1, covered)
        self.applied = min(self.commit_index, log.last_index)
        self.applied_offset = log.end_offset
        self._answered = 0  # a leader has answered the requests of entries up to here, applied or not

    def restore(self, entry: LogEntry) -> None:
        """An entry found on disk. One known to be committed is applied at once and leaves memory."""
        if entry.index <= self.commit_index:
            self.apply_entry(entry)
            self._group.log.evict(entry.index, -1)

    def check_restored(self) -> None:
        last_index = self._group.log.last_index
        if self.commit_index > last_index:
            raise InvariantBroken(f"entries up to {self.commit_index} were committed, the log ends at {last_index}")

    def learn_commit(self, index: int) -> None:
        """Follower: the leader has committed `index`, which is never beyond what is known to agree with its log."""
        if index > self.commit_index:
            self.commit_index = index
            self.apply()

    def apply(self) -> None:
        group = self._group
        first, last = self.applied + 1, min(self.commit_index, group.persistence.durable_index)
        if first <= last:
            entries = group.log.between(first, last)
            for entry in entries:
                self.apply_entry(entry)
            group.context.round.applied.append(Applied(group.id, first, last, self.applied_offset, tuple(entries)))
            self.answer_reads()
            group.replication.trim()
            group.touch()
        if max(self.applied, self._answered) < self.commit_index and group.role is Role.LEADER:
            self._answer_committed()

    def _answer_committed(self) -> None:
        """Not those of other kinds: who asks for a configuration or a cut relies on its effect here."""
        group = self._group
        unanswered = group.log.between(max(self.applied, self._answered) + 1, self.commit_index)
        self._answered = self.commit_index
        entries = tuple([entry for entry in unanswered if entry.kind is Kind.MESSAGES])
        for entry in entries:
            group.replication.answer(entry)
        if entries:
            group.context.round.committed.append(CommittedEntries(group.id, entries[-1].end_offset, entries))
            group.touch()

    def apply_entry(self, entry: LogEntry) -> None:
        kind = entry.kind
        if entry.index > self.dedupe_index:
            if kind is Kind.MESSAGES:
                self.dedupe.apply(entry)
            self.dedupe_index = entry.index
        self.applied = entry.index
        self.applied_offset = entry.end_offset
        if kind is Kind.TRUNCATE:
            self._advance_log_start(entry)
        elif kind is Kind.CONFIGURATION:
            self._group.membership.forget_before(self.dedupe_index)
        self._group.replication.settle(entry)

    def _advance_log_start(self, entry: LogEntry) -> None:
        start = entry.body
        assert isinstance(start, LogStart)
        group = self._group
        if start.start_index > group.log.start_index:
            group.log.cut(start.start_index, start.start_offset)
            group.persistence.snapshot_unsaved = True
            group.context.round.dropped.append(Dropped(group.id, start.start_index, start.start_offset))

    def answer_reads(self) -> None:
        group = self._group
        for read in group.reads.take_answerable(self.applied):
            if read.dedupe is not None:
                group.resolve(read.request, read.dedupe)
            else:
                group.resolve(read.request, ReadAt(self.applied, group.log.start_offset, self.applied_offset))

    def snapshot(self) -> Snapshot:
        group, log = self._group, self._group.log
        configuration_index, configuration = group.membership.configuration_at(self.dedupe_index)
        return Snapshot(
            start_index=log.start_index,
            start_offset=log.start_offset,
            previous_term=log.previous_term(),
            index=self.dedupe_index,
            configuration=configuration,
            configuration_index=configuration_index,
            dedupe=self.dedupe.snapshot(),
        )

    def install(self, snapshot: Snapshot) -> None:
        """The record replaces everything this replica has; entries from its start on will follow."""
        group = self._group
        group.log.reset(snapshot.start_index, snapshot.start_offset, snapshot.previous_term)
        self.dedupe.load(snapshot.dedupe)
        self.dedupe_index = snapshot.index
        group.membership.reset(snapshot)
        self.commit_index = self.applied = group.log.last_index
        self.applied_offset = snapshot.start_offset
        group.persistence.replaced(snapshot.start_index)
        group.context.round.dropped.append(Dropped(group.id, snapshot.start_index, snapshot.start_offset))
        group.touch()
