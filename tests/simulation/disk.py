"""A broker's disk: what was synced stays, what was not may vanish, and damage is found on the next start."""

from dataclasses import dataclass, field

from broker.raft.configuration import GroupId, MemberId
from broker.raft.effects import Persist, RaftRound
from broker.raft.entry import LogEntry
from broker.raft.snapshot import Anchor, HardState, Snapshot, Stored


@dataclass(slots=True)
class GroupFile:
    """One replica's rows."""

    me: MemberId
    hard: HardState
    snapshot: Snapshot
    entries: dict[int, LogEntry] = field(default_factory=dict)
    damaged: bool = False

    @property
    def last_index(self) -> int:
        return max(self.entries, default=self.snapshot.start_index - 1)

    def holds(self, index: int, term: int) -> bool:
        if index < self.snapshot.start_index:
            return True
        entry = self.entries.get(index)
        return entry is not None and entry.term == term

    def write(self, persist: Persist) -> None:
        if persist.truncate_from is not None:
            self.entries = {i: e for i, e in self.entries.items() if i < persist.truncate_from}
        if persist.snapshot is not None:
            self.snapshot = persist.snapshot
        for entry in persist.entries:
            self.entries[entry.index] = entry
        self.hard = persist.hard

    def drop_before(self, start_index: int) -> None:
        self.entries = {i: e for i, e in self.entries.items() if i >= start_index}

    def stored(self) -> Stored:
        """As a start finds it, with the rows the record covers as terms only."""
        start = self.snapshot.start_index
        self.drop_before(start)
        covered = [e for e in self.entries.values() if e.index <= self.snapshot.index]
        anchor = None
        if covered:
            last = covered[-1]
            anchor = Anchor(last.index, last.end_offset, last.append_time)
        runs: list[tuple[int, int]] = []
        for entry in covered:
            if not runs or runs[-1][1] != entry.term:
                runs.append((entry.index, entry.term))
        rest = tuple(e for e in self.entries.values() if e.index > self.snapshot.index)
        return Stored(self.hard, self.snapshot, tuple(runs), anchor, rest)


class Disk:
    """Rounds wait in memory, then one transaction at a time is under way, then it is synced."""

    def __init__(self) -> None:
        self.files: dict[GroupId, GroupFile] = {}
        self.waiting: list[RaftRound] = []
        self.under_way: list[RaftRound] = []
        self.unflushed: list[RaftRound] = []  # reported as synced by a planted bug, in truth still in memory
        self.delay_factor = 1

    def begin(self) -> bool:
        if self.under_way or not self.waiting:
            return False
        self.under_way, self.waiting = self.waiting, []
        return True

    def finish(self) -> list[RaftRound]:
        done, self.under_way = self.under_way, []
        return done

    def write(self, rounds: list[RaftRound]) -> None:
        for round_ in rounds:
            for persist in round_.persists:
                file = self.files.get(persist.group)
                if file is not None:
                    file.write(persist)

    def crash(self, survived: int) -> None:
        """Of the transaction under way, `survived` rounds reached the disk although none was reported."""
        self.write(self.under_way[:survived])
        self.under_way, self.waiting, self.unflushed = [], [], []
