"""The log's view in memory against a plain list of terms."""

from hypothesis import given
from hypothesis import strategies as st

from broker.raft.entry import Kind, LogEntry
from broker.raft.log import RaftLog
from broker.raft.snapshot import Anchor

TERMS = st.lists(st.integers(1, 4), max_size=40).map(sorted)


def filled(terms: list[int], start: int = 1) -> RaftLog:
    log = RaftLog(start, 100, 0)
    for position, term in enumerate(terms):
        log.append(LogEntry(start + position, term, Kind.MESSAGES, log.end_offset, position, 2, None, (), b"x" * 10))
    return log


@given(TERMS, st.integers(1, 5))
def test_terms_by_index(terms: list[int], start: int) -> None:
    log = filled(terms, start)
    for position, term in enumerate(terms):
        assert log.term_at(start + position) == term
    assert log.term_at(start - 1) == (0 if terms else log.last_term)
    assert log.term_at(start + len(terms)) is None
    assert log.term_at(start - 2) is None
    assert log.end_offset == 100 + 2 * len(terms)


@given(TERMS, st.integers(1, 40), TERMS)
def test_truncating_and_appending_again(terms: list[int], at: int, more: list[int]) -> None:
    log = filled(terms)
    at = min(at, len(terms) + 1)
    log.truncate_from(at)
    kept = terms[: at - 1] + [term + 4 for term in more]
    for index in range(at, len(kept) + 1):
        log.append(LogEntry(index, kept[index - 1], Kind.NOOP, log.end_offset, 0))
    assert [log.term_at(i) for i in range(1, len(kept) + 1)] == kept
    assert log.last_index == len(kept)
    assert log.tail_bytes == sum(entry.size for entry in log.tail)


@given(TERMS, st.integers(1, 40), st.integers(0, 40))
def test_cutting_keeps_the_rest(terms: list[int], start: int, evicted: int) -> None:
    log = filled(terms)
    start = min(start, len(terms) + 1)
    log.evict(min(evicted, len(terms)), -1)
    log.cut(start, 7)
    assert [log.term_at(i) for i in range(start, len(terms) + 1)] == terms[start - 1 :]
    assert log.term_at(start - 1) == (terms[start - 2] if start > 1 else 0)
    assert log.previous_term() == log.term_at(start - 1)
    assert log.end_offset == 100 + 2 * len(terms)
    assert log.tail_first + len(log.tail) == log.last_index + 1


@given(TERMS, st.integers(0, 40), st.integers(0, 5))
def test_last_at_most(terms: list[int], index: int, term: int) -> None:
    log = filled(terms)
    index = min(index, len(terms))
    expected = max((i for i in range(1, index + 1) if terms[i - 1] <= term), default=0)
    assert log.last_at_most(index, term) == expected


@given(TERMS, st.integers(0, 40))
def test_resuming_from_disk(terms: list[int], at: int) -> None:
    whole = filled(terms)
    at = min(at, len(terms))
    runs = tuple((i, terms[i - 1]) for i in range(1, at + 1) if i == 1 or terms[i - 2] != terms[i - 1])
    resumed = RaftLog(1, 100, 0)
    resumed.resume(runs, Anchor(at, 100 + 2 * at, at))
    for entry in whole.tail[at:]:
        resumed.append(entry)
    assert [resumed.term_at(i) for i in range(len(terms) + 2)] == [whole.term_at(i) for i in range(len(terms) + 2)]
    assert resumed.end_offset == whole.end_offset


@given(TERMS, st.integers(1, 40), st.integers(1, 500))
def test_slices_fit_but_are_never_empty(terms: list[int], first: int, room: int) -> None:
    log = filled(terms)
    taken = log.slice(first, room)
    assert taken is not None
    if first <= log.last_index:
        assert taken[0].index == first
        assert len(taken) == 1 or sum(entry.size for entry in taken) <= room
