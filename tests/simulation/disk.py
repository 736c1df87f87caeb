"""A broker's disk: what was synced stays, what was only written survives a kill but no power loss.

The commit index on disk lags, and so do the snapshot of a retention cut and the log start that comes with it: they are
written off the acknowledgement's path. The snapshot of an install is durable with its round. Damage takes nothing away:
a replica is made again only on command.
"""

from dataclasses import dataclass, field, replace

from broker.raft.configuration import GroupId, MemberId
from broker.raft.effects import Persist, RaftRound
from broker.raft.entry import LogEntry
from broker.raft.snapshot import Anchor, HardState, Snapshot, Stored

COMMIT_EVERY = 7  # entries


@dataclass(slots=True)
class GroupFile:
    """What a disk holds of one replica."""

    me: MemberId
    hard: HardState
    snapshot: Snapshot
    entries: dict[int, LogEntry] = field(default_factory=dict)
    bad: set[int] = field(default_factory=set)  # entries whose batch is damaged; their heads are sound
    unreadable: bool = False  # its journal is damaged: a vote may be missing, so it is not opened
    _since_commit: int = 0  # entries written since the commit index was

    @property
    def damaged(self) -> bool:
        return self.unreadable or bool(self.bad)

    @property
    def last_index(self) -> int:
        return max(self.entries, default=self.snapshot.start_index - 1)

    def holds(self, index: int, term: int) -> bool:
        if index < self.snapshot.start_index:
            return True
        entry = self.entries.get(index)
        return entry is not None and entry.term == term

    def write(self, persist: Persist, *, install_lags: bool = False) -> None:
        if persist.truncate_from is not None:
            self.entries = {i: e for i, e in self.entries.items() if i < persist.truncate_from}
            self.bad &= self.entries.keys()
        if is_install(persist) and persist.snapshot is not None and not install_lags:
            self.snapshot = persist.snapshot
        for entry in persist.entries:
            self.entries[entry.index] = entry
        self._since_commit += len(persist.entries)
        hard = persist.hard
        if (hard.term, hard.vote) == (self.hard.term, self.hard.vote) and self._since_commit < COMMIT_EVERY:
            hard = replace(hard, commit=self.hard.commit)
        else:
            self._since_commit = 0
        self.hard = hard

    def write_snapshot(self, snapshot: Snapshot) -> None:
        """A snapshot that was on its way while a newer one was installed is obsolete."""
        mine = self.snapshot
        if snapshot.start_index >= mine.start_index and snapshot.index >= mine.index:
            self.snapshot = snapshot
            self.drop_before(snapshot.start_index)

    def drop_before(self, start_index: int) -> None:
        self.entries = {i: e for i, e in self.entries.items() if i >= start_index}
        self.bad &= self.entries.keys()

    def read(self, first: int, count: int) -> list[LogEntry]:
        """Entries from `first` on, up to one whose batch is damaged."""
        found: list[LogEntry] = []
        index = first
        while index in self.entries and index not in self.bad and len(found) < count:
            found.append(self.entries[index])
            index += 1
        return found

    def has_hole(self) -> bool:
        expected = self.snapshot.start_index
        kept = [index for index in self.entries if index >= expected]
        return kept != list(range(expected, expected + len(kept)))

    def copy(self) -> "GroupFile":
        return replace(self, entries=dict(self.entries), bad=set(self.bad))

    def stored(self) -> Stored:
        """As a start finds it, with the entries the snapshot covers as terms only."""
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


def is_install(persist: Persist) -> bool:
    return persist.truncate_from == 0


class Disk:
    """Rounds wait in memory, then one write at a time is in flight, then it is synced."""

    def __init__(self, *, install_lags: bool) -> None:
        self.files: dict[GroupId, GroupFile] = {}
        self.waiting: list[RaftRound] = []
        self.in_flight: list[RaftRound] = []
        self.cached: list[RaftRound] = []  # written and never synced: readable until the power fails
        self.delay_factor = 1
        self.low = False
        self.refuses = False  # below the hard mark too: no entries of leaders
        self._install_lags = install_lags

    def begin(self) -> bool:
        if self.in_flight or not self.waiting:
            return False
        self.in_flight, self.waiting = self.waiting, []
        return True

    def finish(self) -> list[RaftRound]:
        done, self.in_flight = self.in_flight, []
        return done

    def write(self, rounds: list[RaftRound]) -> None:
        self._write(self.files, rounds)

    def _write(self, files: dict[GroupId, GroupFile], rounds: list[RaftRound]) -> None:
        for round_ in rounds:
            for persist in round_.persists:
                file = files.get(persist.group)
                if file is not None:
                    file.write(persist, install_lags=self._install_lags)

    def sync(self) -> None:
        rounds, self.cached = self.cached, []
        self.write(rounds)

    def readable(self) -> dict[GroupId, GroupFile]:
        """What a process finds, whether or not a power loss would leave it."""
        files = {group_id: file.copy() for group_id, file in self.files.items()}
        self._write(files, self.cached)
        return files

    def kill(self, written: int, synced: int) -> None:
        """Of the rounds in flight `written` were written although none was reported, `synced` of them for good."""
        if not self.cached:
            self.write(self.in_flight[:synced])
            self.cached = self.in_flight[synced:written]
        else:
            self.cached += self.in_flight[:written]
        self.in_flight, self.waiting = [], []

    def drop(self, group_id: GroupId) -> None:
        """What is on its way to the disk belongs to the replica that goes, not to one that may follow it."""
        self.files.pop(group_id, None)
        for round_ in (*self.waiting, *self.in_flight, *self.cached):
            round_.persists = [persist for persist in round_.persists if persist.group != group_id]

    def lose_power(self) -> None:
        self.in_flight, self.waiting, self.cached = [], [], []
