"""A dedupe table comes back from its bytes as it was; anything else is a ValueError."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.raft.dedupe import (
    NOTHING_SEEN,
    AppliedDedupe,
    DedupeSnapshot,
    Producer,
    SeenBatch,
    pack_producers,
    unpack_producers,
)
from broker.raft.dedupe_codec import decode_dedupe, encode_dedupe

NUMBERS = st.integers(0, (1 << 64) - 1)
SMALL = st.integers(0, (1 << 32) - 1)
BATCHES = st.lists(st.builds(SeenBatch, SMALL, SMALL, SMALL, NUMBERS), min_size=1, max_size=3).map(tuple)
PRODUCERS = st.lists(st.tuples(NUMBERS, st.builds(Producer, NUMBERS, BATCHES)), max_size=3)
KEYS = st.lists(st.binary(min_size=28, max_size=28), max_size=3).map(b"".join)
SNAPSHOTS = st.builds(DedupeSnapshot, KEYS, PRODUCERS.map(pack_producers))


@given(SNAPSHOTS)
def test_a_table_comes_back(snapshot: DedupeSnapshot) -> None:
    assert decode_dedupe(encode_dedupe(snapshot)) == snapshot
    assert decode_dedupe(encode_dedupe(NOTHING_SEEN)) == NOTHING_SEEN


@given(PRODUCERS)
def test_producers_come_back(producers: list[tuple[int, Producer]]) -> None:
    assert unpack_producers(pack_producers(producers)) == producers


@given(SNAPSHOTS, st.data())
def test_a_cut_or_longer_table_is_refused(snapshot: DedupeSnapshot, data: st.DataObject) -> None:
    encoded = encode_dedupe(snapshot)
    with pytest.raises(ValueError, match=r"table|producer"):
        decode_dedupe(encoded[: data.draw(st.integers(0, len(encoded) - 1))])
    with pytest.raises(ValueError, match=r"table|producer"):
        decode_dedupe(encoded + data.draw(st.binary(min_size=1, max_size=30)))


@given(SNAPSHOTS, st.data())
def test_changed_bytes_give_a_table_that_can_be_loaded_or_a_value_error(
    snapshot: DedupeSnapshot, data: st.DataObject
) -> None:
    encoded = bytearray(encode_dedupe(snapshot))
    encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    try:
        decoded = decode_dedupe(bytes(encoded))
    except ValueError:
        return
    AppliedDedupe(10, 10, 10).load(decoded)


def test_a_producer_without_batches_is_refused() -> None:
    packed = bytes(18)  # id, epoch and a count of 0
    with pytest.raises(ValueError, match="without its last batches"):
        unpack_producers(packed)
    with pytest.raises(ValueError, match="without its last batches"):
        decode_dedupe(encode_dedupe(DedupeSnapshot(b"", packed)))


def test_a_cut_key_record_is_not_encoded() -> None:
    with pytest.raises(ValueError, match="cut off"):
        encode_dedupe(DedupeSnapshot(bytes(27)))
