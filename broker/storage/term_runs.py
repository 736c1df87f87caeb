"""The terms of a log's entries as runs (first index, term), in order."""

from collections.abc import Sequence

from broker.storage.entry import Entry
from broker.storage.group import TermRuns


def runs_with(runs: TermRuns, entries: Sequence[Entry]) -> TermRuns:
    """After the entries, which follow or replace what is there from their first index on."""
    runs = runs_before(runs, entries[0].index)
    last = runs[-1][1] if runs else -1
    if entries[-1].term == last:
        return runs
    found = list(runs)
    for entry in entries:
        if entry.term != last:
            last = entry.term
            found.append((entry.index, last))
    return tuple(found)


def runs_before(runs: TermRuns, index: int) -> TermRuns:
    if not runs or runs[-1][0] < index:
        return runs
    return tuple(run for run in runs if run[0] < index)


def runs_from(runs: TermRuns, first_index: int) -> TermRuns:
    """Of a log that begins with this entry."""
    reaching = [number for number, run in enumerate(runs) if run[0] <= first_index]
    if not reaching:
        return runs
    return ((first_index, runs[reaching[-1]][1]), *runs[reaching[-1] + 1 :])


def term_before(runs: TermRuns, index: int, term_before_start: int) -> int:
    before = runs_before(runs, index)
    return before[-1][1] if before else term_before_start
