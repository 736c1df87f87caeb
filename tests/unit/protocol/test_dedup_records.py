"""Marks: producer and idempotency key of messages that share a batch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from myqueue.protocol.batch import Message
from myqueue.protocol.dedup_records import (
    DedupRecord,
    decode_dedup_records,
    encode_dedup_records,
    key_hash,
    message_crc,
)
from myqueue.protocol.errors import InvalidRequest

keys = st.binary(min_size=16, max_size=16)
numbers = st.integers(0, 2**32 - 1)


@given(st.lists(st.tuples(numbers, numbers, keys), max_size=10))
def test_marks_survive_the_wire(given_marks: list[tuple[int, int, bytes]]) -> None:
    marks = [DedupRecord(position, *rest) for position, rest in enumerate(given_marks)]
    assert decode_dedup_records(encode_dedup_records(marks), len(marks)) == marks


@pytest.mark.parametrize("positions", [[0, 0], [1, 0], [2], [0, 1, 2]])
def test_positions_must_be_in_the_batch_once_and_in_order(positions: list[int]) -> None:
    data = encode_dedup_records(DedupRecord(position, 0, 0, bytes(16)) for position in positions)
    with pytest.raises(InvalidRequest):
        decode_dedup_records(data, 2)


def test_cut_off_marks_are_refused() -> None:
    with pytest.raises(InvalidRequest):
        decode_dedup_records(bytes(27), 1)


def test_keys_are_scoped_by_caller_and_topic() -> None:
    hashes = {key_hash(*scope) for scope in [("a", "t", "k"), ("b", "t", "k"), ("a", "u", "k"), ("at", "", "k")]}
    assert len(hashes) == 4


def test_the_message_counts_not_when_it_was_sent() -> None:
    assert message_crc(Message(b"v", b"k", 1)) == message_crc(Message(b"v", b"k", 2))
    assert len({message_crc(Message(b"v", key)) for key in (None, b"", b"k")}) == 3
