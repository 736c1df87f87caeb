"""The log as the core needs it: the term of every index, and the newest entries.

Terms are kept as runs, so a log of millions of entries costs a few numbers. Entries stay in the tail until they are
applied (and a little longer on a leader whose followers need them); older ones are on disk, and the driver loads them
for a follower that needs them. No IO here.
"""

from bisect import bisect_right

from broker.raft.entry import LogEntry
from broker.raft.snapshot import Anchor


class RaftLog:
    __slots__ = (
        "_anchor",
        "_firsts",
        "_terms",
        "last_index",
        "start_index",
        "start_offset",
        "tail",
        "tail_bytes",
        "tail_first",
    )

    def __init__(self, start_index: int, start_offset: int, previous_term: int) -> None:
        self.reset(start_index, start_offset, previous_term)

    def reset(self, start_index: int, start_offset: int, previous_term: int) -> None:
        """An empty log that goes on after `start_index - 1`."""
        self.start_index = start_index
        self.start_offset = start_offset
        self.last_index = start_index - 1
        self._firsts = [start_index - 1]  # the first run holds the term before the start
        self._terms = [previous_term]
        self.tail: list[LogEntry] = []
        self.tail_first = start_index
        self.tail_bytes = 0
        self._anchor = Anchor(start_index - 1, start_offset, 0)

    def resume(self, terms: tuple[tuple[int, int], ...], anchor: Anchor) -> None:
        """Entries up to the anchor exist on disk."""
        for first, term in terms:
            if term != self._terms[-1]:
                self._firsts.append(first)
                self._terms.append(term)
        self.last_index = anchor.index
        self.tail_first = anchor.index + 1
        self._anchor = anchor

    @property
    def last_term(self) -> int:
        return self._terms[-1]

    @property
    def end_offset(self) -> int:
        return self.tail[-1].end_offset if self.tail else self._anchor.end_offset

    @property
    def last_time(self) -> int:
        return self.tail[-1].append_time if self.tail else self._anchor.append_time

    def term_at(self, index: int) -> int | None:
        """None: before the start or after the end."""
        if index == self.last_index:
            return self._terms[-1]
        if index < self.start_index - 1 or index > self.last_index:
            return None
        return self._terms[bisect_right(self._firsts, index) - 1]

    def last_at_most(self, index: int, term: int) -> int:
        """The highest index up to `index` whose term is at most `term`: where two logs may still agree."""
        run = bisect_right(self._firsts, index) - 1
        while run >= 0 and self._terms[run] > term:
            index = self._firsts[run] - 1
            run -= 1
        return max(index, self.start_index - 1)

    def up_to_date(self, last_index: int, last_term: int) -> bool:
        """Whether a log that ends there holds at least what this one holds."""
        return (last_term, last_index) >= (self._terms[-1], self.last_index)

    def append(self, entry: LogEntry) -> None:
        assert entry.index == self.last_index + 1
        if entry.term != self._terms[-1]:
            self._firsts.append(entry.index)
            self._terms.append(entry.term)
        self.tail.append(entry)
        self.tail_bytes += entry.size
        self.last_index = entry.index

    def truncate_from(self, index: int) -> None:
        assert index >= self.tail_first, "only entries that are not applied can be taken back"
        position = index - self.tail_first
        self.tail_bytes -= sum(entry.size for entry in self.tail[position:])
        del self.tail[position:]
        self.last_index = index - 1
        while self._firsts[-1] > self.last_index:
            self._firsts.pop()
            self._terms.pop()

    def between(self, first: int, last: int) -> list[LogEntry]:
        """Entries first to last, both included; they must be in the tail."""
        return self.tail[first - self.tail_first : last + 1 - self.tail_first]

    def slice(self, first: int, max_bytes: int) -> list[LogEntry] | None:
        """Entries from `first` that fit, at least one. None: they, or their batches, are on disk only."""
        if first < self.tail_first:
            return None
        taken: list[LogEntry] = []
        left = max_bytes
        for position in range(first - self.tail_first, len(self.tail)):
            entry = self.tail[position]
            if not entry.is_whole:
                return taken or None
            left -= entry.size
            if left < 0 and taken:
                break
            taken.append(entry)
        return taken

    def evict(self, upto: int, keep_bytes: int) -> None:
        """Drop entries up to `upto`, oldest first, until the tail is small enough."""
        dropped = 0
        tail = self.tail
        while self.tail_bytes > keep_bytes and dropped < len(tail) and tail[dropped].index <= upto:
            self.tail_bytes -= tail[dropped].size
            dropped += 1
        if dropped:
            last = tail[dropped - 1]
            self._anchor = Anchor(last.index, last.end_offset, last.append_time)
            del tail[:dropped]
            self.tail_first += dropped

    def cut(self, start_index: int, start_offset: int) -> None:
        """The log starts at `start_index` from now on; everything before it is applied."""
        run = bisect_right(self._firsts, start_index - 1) - 1
        self._firsts[: run + 1] = [start_index - 1]
        self._terms[: run + 1] = [self._terms[run]]
        self.start_index = start_index
        self.start_offset = start_offset
        self.evict(start_index - 1, -1)

    def previous_term(self) -> int:
        return self._terms[0]
