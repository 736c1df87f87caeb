"""Recent batches are found by any offset in them, newest kept, within the bytes allowed."""

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from broker.raft.entry import Kind, LogEntry
from broker.tail_cache import TailCache
from myqueue.protocol import batch as batches
from myqueue.protocol.batch import Message

BATCH = batches.encode(UUID(int=1), 0, [Message(b"x" * 50)] * 4)


def entry(base_offset: int, count: int = 4) -> LogEntry:
    return LogEntry(base_offset + 1, 1, Kind.MESSAGES, base_offset, 1_700_000_000_000, count, body=BATCH)


def test_it_comes_out_as_it_is_stored() -> None:
    recent = TailCache(1 << 20)
    recent.put(1, entry(8))
    found = recent.find(1, 10)
    assert found is not None
    header = batches.decode_header(found.head)
    assert (header.base_offset, header.append_time, header.count) == (8, 1_700_000_000_000, 4)
    assert bytes(found.body) == BATCH[batches.HEADER_BYTES :]
    assert [recent.find(1, offset) is not None for offset in (7, 8, 11, 12)] == [False, True, True, False]
    assert recent.find(2, 8) is None


def test_entries_without_messages_are_left_out() -> None:
    recent = TailCache(1 << 20)
    recent.put(1, LogEntry(1, 1, Kind.NOOP, 0, 0))
    assert recent.size_bytes == 0


@given(st.lists(st.integers(0, 2), max_size=300), st.integers(1, 40))
def test_the_newest_are_kept(groups: list[int], room: int) -> None:
    size = 600 + entry(0).size
    recent = TailCache(room * size)
    ends = [0, 0, 0]
    for group_id in groups:
        recent.put(group_id, entry(ends[group_id]))
        ends[group_id] += 4
    assert recent.size_bytes <= room * size
    kept = {0: 0, 1: 0, 2: 0}
    for group_id in groups[-room:]:
        kept[group_id] += 1
    for group_id, end in enumerate(ends):
        expected = {end - 4 * n for n in range(1, kept[group_id] + 1)}
        found = {base for base in range(0, end, 4) if recent.find(group_id, base + 3) is not None}
        assert found == expected


@given(st.lists(st.booleans(), min_size=1, max_size=20), st.integers(0, 90), st.integers(0, 8))
def test_a_run_has_no_gaps_and_fits(kept: list[bool], offset: int, fitting: int) -> None:
    recent = TailCache(1 << 20)
    bases = [4 * number for number, is_kept in enumerate(kept) if is_kept]
    for base in bases:
        recent.put(1, entry(base))
    expected: list[int] = []
    base = offset - offset % 4
    while base in bases and len(expected) < max(1, fitting):
        expected.append(base)
        base += 4
    found = recent.run(1, offset, fitting * len(BATCH))
    assert [batches.decode_header(one.head).base_offset for one in found] == expected
    assert recent.run(2, offset, 1 << 20) == []


def test_a_run_begins_after_what_was_evicted() -> None:
    recent = TailCache(3 * (600 + entry(0).size))
    for base in range(0, 40, 4):
        recent.put(1, entry(base))
    assert recent.run(1, 27, 1 << 20) == []
    assert [one.base_offset for one in recent.run(1, 29, 1 << 20)] == [28, 32, 36]
