"""From committed to applied: what the group has agreed on becomes what this replica shows.

An entry is applied when it is committed by the group *and* durable here, so readers of this broker's file find it. A
leader counts itself only by what its own disk has confirmed, and counts replicas only for entries of its own term:
older entries are committed by what comes after them.
"""

from collections.abc import Iterable

from broker.raft.configuration import majority_index
from broker.raft.effects import Applied, Dropped, Role
from broker.raft.entry import Cut, Entry, Kind
from broker.raft.events import Committed
from broker.raft.reading import Reading
from broker.raft.replica import InvariantBroken


class Applying(Reading):
    __slots__ = ()

    def restore(self, entries: Iterable[Entry]) -> None:
        """Take up the entries found on disk; what is known to be committed is applied at once and leaves memory."""
        for entry in entries:
            self.log.append(entry)
            if entry.kind is Kind.CONFIGURATION:
                self.adopt_configuration(entry)
            if entry.index <= self.commit:
                self.apply_entry(entry)
                self.log.evict(entry.index, -1)
        if self.commit > self.log.last_index:
            raise InvariantBroken(f"entries up to {self.commit} were committed, the log ends at {self.log.last_index}")
        self.durable_index = self.log.last_index
        self.unsaved_first = self.log.last_index + 1
        if self.snapshot_unsaved:
            self.touch()

    def on_durable(self, number: int) -> None:
        """Round `number` and all before it are on disk."""
        marks = self.durable_marks
        while marks and marks[0][0] <= number:
            self.durable_index = max(self.durable_index, marks.pop(0)[1])
        if self.role is Role.LEADER:
            self.count_replicas()
        self.apply()

    def count_replicas(self) -> None:
        """Leader: commit what a majority of voters has on disk."""
        configuration = self.configuration
        matches = [
            self.durable_index if voter == self.me else self.progress[voter].match for voter in configuration.voters
        ]
        index = majority_index(matches, configuration.quorum)
        if index > self.commit and self.may_count(index):
            self.commit = index
            self.around.rows_due[self.id] = self
            self.apply()

    def may_count(self, index: int) -> bool:
        return self.log.term_at(index) == self.term

    def learn_commit(self, index: int) -> None:
        """Follower: the leader says so. `index` is never beyond what is known to agree with its log."""
        if index > self.commit:
            self.commit = index
            self.apply()

    def apply(self) -> None:
        last = min(self.commit, self.durable_index)
        first = self.applied + 1
        if last < first:
            return
        entries = self.log.between(first, last)
        for entry in entries:
            self.apply_entry(entry)
        self.around.round.applied.append(Applied(self.id, first, last, self.applied_offset, tuple(entries)))
        self.answer_reads()
        self.trim()
        self.touch()

    def apply_entry(self, entry: Entry) -> None:
        kind = entry.kind
        if entry.index > self.dedupe_index:
            if kind is Kind.MESSAGES:
                self.dedupe.apply(entry)
            self.dedupe_index = entry.index
        self.applied = entry.index
        self.applied_offset = entry.end_offset
        if kind is Kind.TRUNCATE:
            self._cut(entry)
        elif kind is Kind.CONFIGURATION:
            while len(self.configurations) > 1 and self.configurations[1][0] <= self.dedupe_index:
                self.configurations.pop(0)
        if self.pending is not None:
            self.pending.settle(entry)
            self.pending_bytes -= entry.size
            if kind is Kind.NOOP and entry.term == self.term:
                self.ready = True
                self.announce()
            request = self.waiting.pop(entry.index, None)
            if request is not None:
                self.resolve(request, Committed(entry.index, entry.base_offset, entry.append_time))

    def _cut(self, entry: Entry) -> None:
        cut = entry.body
        assert isinstance(cut, Cut)
        if cut.start_index > self.log.start_index:
            self.log.cut(cut.start_index, cut.start_offset)
            self.snapshot_unsaved = True
            self.around.round.dropped.append(Dropped(self.id, cut.start_index, cut.start_offset))

    def trim(self) -> None:
        """Applied entries leave memory, but for a few that a slower follower will need at once."""
        behind = any(p.match < self.applied for p in self.progress.values())
        self.log.evict(self.applied, self.settings.tail_bytes if behind else -1)
