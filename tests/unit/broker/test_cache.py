"""The read cache finds entries by any offset in them and stays within its bytes."""

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from broker.raft.entry import Kind
from broker.storage.cache import Decoded, ReadCache
from broker.storage.entry import Entry
from myqueue.protocol import batch as batches
from myqueue.protocol.batch import Message

BATCH = batches.encode(UUID(int=1), 0, [Message(b"x" * 50)] * 4)


def decoded(base_offset: int, count: int = 4) -> Decoded:
    head, body = BATCH[: batches.HEADER_BYTES], BATCH[batches.HEADER_BYTES :]
    return Decoded(Entry(1, 0, Kind.MESSAGES, base_offset, count, 0, head, b"", body, len(body), 0))


def test_every_offset_of_an_entry_finds_it() -> None:
    cache = ReadCache(1 << 20)
    entry = decoded(8)
    cache.put(1, entry)
    assert [cache.find(1, offset) is entry for offset in (7, 8, 11, 12)] == [False, True, True, False]
    assert cache.find(2, 8) is None


def test_the_least_recently_used_goes_first() -> None:
    cache = ReadCache(2 * len(BATCH))
    for base_offset in (0, 4):
        cache.put(1, decoded(base_offset))
    cache.find(1, 0)
    cache.put(1, decoded(8))
    assert [cache.find(1, offset) is not None for offset in (0, 4, 8)] == [True, False, True]


def test_single_messages_are_not_kept() -> None:
    cache = ReadCache(1 << 20)
    cache.put(1, decoded(0, count=1))
    assert cache.find(1, 0) is None


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20), st.booleans()), max_size=80))
def test_what_it_finds_is_what_was_put(steps: list[tuple[int, int, bool]]) -> None:
    cache = ReadCache(5 * len(BATCH))
    for group_id, number, put in steps:
        if put:
            cache.put(group_id, decoded(number * 4))
        found = cache.find(group_id, number * 4 + 1)
        assert found is None or found.entry.base_offset == number * 4
        assert not put or found is not None
