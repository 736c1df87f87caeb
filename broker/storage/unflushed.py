"""Entries of a log that are durable in the journal and not yet in the partition's file; read from memory."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from broker.storage.entry import Entry, Tail
from broker.storage.record import RECORD_BYTES, Record

_CHAIN_AT = RECORD_BYTES - 8


@dataclass(frozen=True, slots=True)
class WrittenRun:
    """What one frame of the journal brought: entries in a row, and the log's tail after the last."""

    entries: Sequence[Entry]
    records: Sequence[Record]
    tail: Tail
    size_bytes: int

    @property
    def first_index(self) -> int:
        return self.entries[0].index

    def tail_at(self, index: int) -> Tail:
        """After the entry `index`, which is one of these."""
        number = index - self.first_index
        entry = self.entries[number]
        later_bytes = sum(later.size_bytes for later in self.entries[number + 1 :])
        chain = int.from_bytes(self.records[number].header[_CHAIN_AT : _CHAIN_AT + 4], "little")
        return Tail(index + 1, entry.end_offset, entry.append_time, self.tail.end_bytes - later_bytes, chain)

    def before(self, index: int) -> "WrittenRun":
        """Without the entries from `index` on; one at least stays."""
        count = index - self.first_index
        return run_of(self.entries[:count], self.records[:count], self.tail_at(index - 1))


def run_of(entries: Sequence[Entry], records: Sequence[Record], tail: Tail) -> WrittenRun:
    return WrittenRun(entries, records, tail, sum(len(record.header) + len(record.body) for record in records))


class Unflushed:
    """Not for several threads: the log holds its lock around every call."""

    def __init__(self, next_index: int) -> None:
        self.first_index = next_index  # from here on entries are in memory
        self.size_bytes = 0
        self._runs: list[WrittenRun] = []

    def __bool__(self) -> bool:
        return bool(self._runs)

    def add(self, run: WrittenRun) -> None:
        """Replaces what is there from its first index on."""
        self._cut(run.first_index)
        self._runs.append(run)
        self.size_bytes += run.size_bytes
        self.first_index = self._runs[0].first_index

    def oldest(self, max_bytes: int) -> list[WrittenRun]:
        """One at least, if there is one, and at most about `max_bytes`."""
        found: list[WrittenRun] = []
        size = 0
        for run in self._runs:
            size += run.size_bytes
            if found and size > max_bytes:
                break
            found.append(run)
        return found

    def drop_before(self, index: int) -> None:
        """They are in the file now."""
        gone = 0
        while gone < len(self._runs) and self._runs[gone].tail.next_index <= index:
            self.size_bytes -= self._runs[gone].size_bytes
            gone += 1
        del self._runs[:gone]
        if self._runs and self._runs[0].first_index < index:
            run = self._runs[0]
            skipped = index - run.first_index
            self._runs[0] = run_of(run.entries[skipped:], run.records[skipped:], run.tail)
            self.size_bytes += self._runs[0].size_bytes - run.size_bytes
        self.first_index = max(self.first_index, index)

    def tail_at(self, index: int) -> Tail:
        return self._runs[self._run_number(lambda run: run.first_index <= index)].tail_at(index)

    def entry(self, index: int) -> tuple[Entry, int]:
        """With the end_bytes after it."""
        run = self._runs[self._run_number(lambda run: run.first_index <= index)]
        return run.entries[index - run.first_index], run.tail_at(index).end_bytes

    def entries(self, index: int, max_bytes: int) -> list[Entry]:
        """From `index` on, one at least and at most about `max_bytes`."""
        number = self._run_number(lambda run: run.first_index <= index)
        skipped = index - self._runs[number].first_index
        found: list[Entry] = []
        for run in self._runs[number:]:
            for entry in run.entries[skipped:]:
                if found and max_bytes < entry.size_bytes:
                    return found
                found.append(entry)
                max_bytes -= entry.size_bytes
            skipped = 0
        return found

    @property
    def first_offset(self) -> int:
        return self._runs[0].entries[0].base_offset

    def entry_with(self, offset: int) -> tuple[Entry, int] | None:
        """The one that holds the message, with the end_bytes after it; there is none before these entries."""
        return self._first(lambda tail: tail.end_offset > offset, lambda entry, _: entry.end_offset > offset)

    def first_appended_since(self, timestamp: int) -> int | None:
        found = self._first(lambda tail: tail.append_time >= timestamp, lambda entry, _: entry.append_time >= timestamp)
        return None if found is None else found[0].index

    def first_ending_beyond(self, end_bytes: int) -> int | None:
        found = self._first(lambda tail: tail.end_bytes > end_bytes, lambda _, after: after > end_bytes)
        return None if found is None else found[0].index

    def _first(self, holds_at: Callable[[Tail], bool], holds: Callable[[Entry, int], bool]) -> tuple[Entry, int] | None:
        """The first entry for which it holds, with the end_bytes after it; it holds for all that follow."""
        number = self._run_number(lambda run: not holds_at(run.tail)) + 1
        if number == len(self._runs):
            return None
        run = self._runs[number]
        end_bytes = run.tail.end_bytes - sum(entry.size_bytes for entry in run.entries)
        for entry in run.entries:
            end_bytes += entry.size_bytes
            if holds(entry, end_bytes):
                return entry, end_bytes
        return None

    def _run_number(self, holds: Callable[[WrittenRun], bool]) -> int:
        """Of the last run for which it holds; -1 when there is none."""
        low, high = 0, len(self._runs)
        while low < high:
            middle = (low + high) // 2
            if holds(self._runs[middle]):
                low = middle + 1
            else:
                high = middle
        return low - 1

    def _cut(self, index: int) -> None:
        while self._runs and self._runs[-1].first_index >= index:
            self.size_bytes -= self._runs.pop().size_bytes
        if self._runs and self._runs[-1].tail.next_index > index:
            run = self._runs[-1]
            self._runs[-1] = run.before(index)
            self.size_bytes += self._runs[-1].size_bytes - run.size_bytes
