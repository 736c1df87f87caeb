"""Ranges are split, and a micro-batch is limited, without loss."""

import pickle
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from myqueue.spark.offsets import TopicPartition
from myqueue.spark.planner import OffsetRange, rate_limited, split_ranges

sizes = st.lists(st.integers(0, 10_000), max_size=12)
waiting = st.dictionaries(st.tuples(st.sampled_from("abc"), st.integers(0, 20)), st.integers(0, 1 << 40), max_size=20)


def ranges_of(counts: list[int]) -> list[OffsetRange]:
    return [OffsetRange("t", "id", number, 100, 100 + count) for number, count in enumerate(counts)]


@given(sizes, st.none() | st.integers(1, 40))
def test_a_cut_leaves_nothing_out_and_takes_nothing_twice(counts: list[int], at_least: int | None) -> None:
    ranges = ranges_of(counts)
    pieces = split_ranges(ranges, at_least)
    assert all(piece.size > 0 for piece in pieces)
    for whole in ranges:
        parts = [piece for piece in pieces if piece.partition == whole.partition]
        edges = [whole.start, *(part.end for part in parts)]
        assert [part.start for part in parts] == edges[:-1]
        assert edges[-1] == whole.end
    if at_least is None:
        assert len(pieces) == sum(count > 0 for count in counts)


def test_large_ranges_are_cut_more_often() -> None:
    assert [piece.partition for piece in split_ranges(ranges_of([100, 300, 0]), 8)] == [0, 0, 1, 1, 1, 1, 1, 1]
    assert [piece.partition for piece in split_ranges(ranges_of([100, 300, 0]), 2)] == [0, 1]
    assert [piece.size for piece in split_ranges(ranges_of([3]), 8)] == [1, 1, 1]


@given(waiting, st.integers(1, 1 << 41))
def test_shares_are_in_proportion(counts: dict[TopicPartition, int], most: int) -> None:
    total, filled = sum(counts.values()), sum(count > 0 for count in counts.values())
    shares = rate_limited(counts, most)
    assert sum(shares.values()) == min(max(most, filled), total)
    for place, count in counts.items():
        assert min(1, count) <= shares[place] <= count
    fair = {place: Fraction(min(most, total) * count, total) for place, count in counts.items() if count}
    if all(part >= 1 for part in fair.values()):
        assert all(abs(shares[place] - part) < 1 for place, part in fair.items())


@given(st.dictionaries(st.tuples(st.just("t"), st.integers(0, 9)), st.integers(1, 500), min_size=1), st.integers(1, 50))
def test_every_message_has_its_turn(counts: dict[TopicPartition, int], most: int) -> None:
    left = dict(counts)
    batches = 0
    while any(left.values()):
        for place, taken in rate_limited(left, most).items():
            left[place] -= taken
        batches += 1
    assert batches <= -(-sum(counts.values()) // most)


def test_a_small_partition_does_not_wait_for_a_large_one_that_grows() -> None:
    large, small = ("t", 0), ("t", 1)
    for _ in range(3):
        assert rate_limited({large: 1_000_000, small: 1}, 1000) == {large: 999, small: 1}
    assert rate_limited({large: 5, small: 7, ("t", 2): 0}, 1) == {large: 1, small: 1, ("t", 2): 0}


def test_a_range_is_small_when_it_is_sent() -> None:
    assert pickle.loads(pickle.dumps(OffsetRange("orders", "id", 3, 5, 9))) == OffsetRange("orders", "id", 3, 5, 9)
    assert str(OffsetRange("orders", "id", 3, 5, 9)) == "orders/3 from 5 to 9"
