"""How much of a group is on disk, and what the next round has to write.

**What may be lost.** Anything not yet reported durable may be missing after a restart: no message that depends on it
was sent, because every such message waits for its round. The reverse does not hold: a killed process may leave entries
that can be read and were never synced, so a start syncs what it found before its first message. A replica that finds
*synced* entries, its term or its vote missing or damaged may have voted or acknowledged with the lost data, so it must
not answer under its old id: it is not opened, its data stays, its group removes it, and only then the broker starts
again as another member (new incarnation, no configuration) that is added as a learner. A tail that was dropped because
it was torn is safe to fetch again only when it was never reported durable.
"""

from collections.abc import Callable

from broker.raft.configuration import GroupId
from broker.raft.effects import Persist, RaftRound
from broker.raft.entry import LogEntry
from broker.raft.log import RaftLog
from broker.raft.snapshot import HardState, Snapshot


class Persistence:
    __slots__ = (
        "_rounds",
        "durable_index",
        "hard_unsaved",
        "saved_round",
        "snapshot_unsaved",
        "truncate_unsaved",
        "unsaved_first",
    )

    def __init__(self, last_index: int) -> None:
        self.durable_index = last_index
        self._rounds: list[tuple[int, int, int]] = []  # at the disk: (round, last index, term), oldest first
        self.saved_round = 0  # last round with something of this group
        self.hard_unsaved = False
        self.snapshot_unsaved = False
        self.truncate_unsaved: int | None = None
        self.unsaved_first = last_index + 1

    def restored(self, last_index: int) -> None:
        self.durable_index = last_index
        self.unsaved_first = last_index + 1

    def truncated(self, index: int) -> None:
        """Entries from `index` on have left the log."""
        if index < self.unsaved_first:
            self.unsaved_first = index
            older = self.truncate_unsaved
            self.truncate_unsaved = index if older is None else min(index, older)
        # A round at the disk may report these indexes durable; they will be other entries by then.
        self.durable_index = min(self.durable_index, index - 1)
        self._rounds = [(number, min(last, index - 1), term) for number, last, term in self._rounds]

    def replaced(self, start_index: int) -> None:
        """A snapshot record has replaced the log, which starts at `start_index` now."""
        self.unsaved_first = start_index
        self.truncate_unsaved = 0
        self.snapshot_unsaved = True
        self.durable_index = 0
        self._rounds = [(number, 0, term) for number, _, term in self._rounds]

    def collect(
        self,
        group_id: GroupId,
        log: RaftLog,
        round_: RaftRound,
        hard_state: Callable[[], HardState],
        snapshot: Callable[[], Snapshot],
    ) -> None:
        """One `Persist` for everything that changed since the last one."""
        entries: tuple[LogEntry, ...] = ()
        if self.unsaved_first <= log.last_index:
            entries = tuple(log.between(self.unsaved_first, log.last_index))
            self.unsaved_first = log.last_index + 1
        if entries or self.hard_unsaved or self.snapshot_unsaved or self.truncate_unsaved is not None:
            hard = hard_state()
            record = snapshot() if self.snapshot_unsaved else None
            round_.persists.append(Persist(group_id, hard, self.truncate_unsaved, record, entries))
            self.saved_round = round_.number
            self._rounds.append((self.saved_round, log.last_index, hard.term))
            self.hard_unsaved = self.snapshot_unsaved = False
            self.truncate_unsaved = None

    def stores_term(self, number: int, term: int) -> bool:
        """Whether round `number`, or one before it, is the one that stores this term."""
        return any(round_ <= number and stored == term for round_, _, stored in self._rounds)

    def on_durable(self, number: int) -> None:
        """Round `number` and all before it are on disk."""
        rounds = self._rounds
        while rounds and rounds[0][0] <= number:
            self.durable_index = max(self.durable_index, rounds.pop(0)[1])
