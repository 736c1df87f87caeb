"""Where reads start and end, and what a checkpoint keeps."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from myqueue.protocol.errors import InvalidRequest
from myqueue.spark.offsets import (
    EARLIEST,
    LATEST,
    AtTimestamp,
    EarliestOrLatest,
    OffsetBounds,
    PartitionTimestamps,
    SpecificOffsets,
    StreamOffset,
    TopicBounds,
    TopicPartition,
    resolve,
)
from myqueue.spark.options import stream_read_options

SURVEY = {
    "b": TopicBounds("id-b", {0: OffsetBounds(0, 0)}),
    "a": TopicBounds("id-a", {1: OffsetBounds(5, 9), 0: OffsetBounds(2, 7)}),
}

topics = st.from_regex(r"[A-Za-z0-9._-]{1,20}", fullmatch=True)


def never(place: TopicPartition, ms: int) -> int | None:
    raise AssertionError("no time was given")


def test_earliest_and_latest() -> None:
    assert resolve(EarliestOrLatest(EARLIEST), "starting", SURVEY, never) == {
        ("a", 0): 2,
        ("a", 1): 5,
        ("b", 0): 0,
    }
    assert resolve(EarliestOrLatest(LATEST), "starting", SURVEY, never) == {
        ("a", 0): 7,
        ("a", 1): 9,
        ("b", 0): 0,
    }


def test_listed_offsets_are_taken_as_they_are() -> None:
    listed = SpecificOffsets({"a": {0: 1, 1: LATEST}, "b": {0: EARLIEST}})
    found = resolve(listed, "starting", SURVEY, never)
    assert found == {("a", 0): 1, ("a", 1): 9, ("b", 0): 0}  # what is below the beginning is for others to judge


def test_a_time_is_looked_up_and_stays_within_the_partition() -> None:
    at = {("a", 0): 4, ("a", 1): None, ("b", 0): 3}
    assert resolve(AtTimestamp(1), "starting", SURVEY, lambda place, _: at[place]) == {
        ("a", 0): 4,
        ("a", 1): 9,
        ("b", 0): 0,
    }


@pytest.mark.parametrize(
    ("listed", "says"),
    [
        ({"a": {0: 8, 1: 5}, "b": {0: 0}}, "option startingOffsets: a/0: 8 is past the end, 7"),
        ({"a": {0: 3}, "b": {0: 0}}, "option startingOffsets does not name a/1: it must name every partition"),
        ({"a": {0: 3, 1: 5}, "b": {0: 0, 4: 0}, "c": {0: 0}}, "option startingOffsets names b/4, c/0, which"),
    ],
)
def test_listed_offsets_must_fit(listed: dict[str, dict[int, int]], says: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        resolve(SpecificOffsets(listed), "starting", SURVEY, never)
    assert says in refused.value.message


@given(
    st.dictionaries(topics, st.uuids().map(str), max_size=4),
    st.dictionaries(st.tuples(topics, st.integers(0, 300)), st.integers(0, 1 << 62), max_size=8),
)
def test_progress_survives_a_checkpoint(ids: dict[str, str], offsets: dict[TopicPartition, int]) -> None:
    progress = StreamOffset(ids, offsets)
    checkpoint = progress.to_json()
    assert list(checkpoint) == sorted(checkpoint)
    assert StreamOffset.from_json(json.loads(json.dumps(checkpoint))) == progress


def test_progress_can_be_given_as_starting_offsets() -> None:
    shown = json.dumps(StreamOffset({"a": "id-a", "b": "id-b"}, {("a", 0): 4, ("a", 1): 9, ("b", 0): 0}).to_json())
    assert shown == '{"a": {"0": 4, "1": 9, "id": "id-a"}, "b": {"0": 0, "id": "id-b"}}'
    starting = stream_read_options({"subscribe": "a,b", "startingOffsets": shown}).starting
    assert resolve(starting, "starting", SURVEY, never) == {("a", 0): 4, ("a", 1): 9, ("b", 0): 0}
    other = {**SURVEY, "b": TopicBounds("made again", {0: OffsetBounds(0, 5)})}
    with pytest.raises(InvalidRequest, match="option startingOffsets: topic 'b' was deleted and made again since"):
        resolve(starting, "starting", other, never)


def test_a_time_of_each_partition() -> None:
    times = PartitionTimestamps({"a": {0: 10, 1: 20}, "b": {0: 30}})
    found = resolve(times, "starting", SURVEY, lambda _, ms: {10: 3, 20: None, 30: 0}[ms])
    assert found == {("a", 0): 3, ("a", 1): 9, ("b", 0): 0}
    with pytest.raises(InvalidRequest, match="option endingOffsetsByTimestamp does not name a/1, b/0: it must name"):
        resolve(PartitionTimestamps({"a": {0: 10}}), "ending", SURVEY, never)


def test_a_checkpoint_of_an_earlier_release() -> None:
    found = StreamOffset.from_json({"orders": "id", "orders/0": 5, "orders/11": 7})
    assert found == StreamOffset({"orders": "id"}, {("orders", 0): 5, ("orders", 11): 7})


def test_a_foreign_checkpoint_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="the checkpoint holds 'orders/x': 5"):
        StreamOffset.from_json({"orders/x": 5})
    with pytest.raises(InvalidRequest, match="the checkpoint holds 'orders/0': 'x'"):
        StreamOffset.from_json({"orders": {"0": "x"}})
