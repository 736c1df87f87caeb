"""From sums over messages to posts: nothing lost, nothing double, always cut alike."""

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from myqueue.protocol import limits
from myqueue.protocol.models import PartitionMeasure, TopicMinute
from spark.jobs.partition_metrics import Extent, PartitionKey, PartitionSums, partition_measures
from spark.jobs.topic_rollup import MinuteSums, topic_minutes
from spark.jobs.work import result_parts

TOPIC_ID = UUID(int=1)
IDS = {"t": TOPIC_ID}


def sums_of(offsets: list[int], partition: int = 0) -> PartitionSums:
    return PartitionSums(
        "t", partition, min(offsets), max(offsets), len(offsets), len(set(offsets)), 10 * len(offsets), 5, 6
    )


@given(st.lists(st.integers(0, 60), min_size=1, max_size=80))
def test_gaps_and_duplicates_are_exact(offsets: list[int]) -> None:
    sums = sums_of(offsets)
    missing = set(range(min(offsets), max(offsets))) - set(offsets)
    assert sums.gaps == len(missing)
    assert sums.duplicates == len(offsets) - len(set(offsets))
    # Whatever was read, the API's own rules take it.
    (measure,) = partition_measures([sums], IDS, {PartitionKey("t", 0, TOPIC_ID): Extent(0, 0)})
    assert (measure.from_offset, measure.to_offset) == (min(offsets), max(offsets) + 1)
    assert measure.end_offset == max(offsets) + 1


def test_every_partition_appears_under_the_id_that_was_read() -> None:
    extents = {PartitionKey("t", p, TOPIC_ID): Extent(2, 9) for p in (1, 0)}
    empty, read = partition_measures([sums_of([2, 3], 1)], IDS, extents)
    assert (empty.partition_id, empty.from_offset, empty.messages, empty.beginning_offset) == (0, None, 0, 2)
    assert (read.partition_id, read.from_offset, read.to_offset, read.messages, read.payload_bytes) == (1, 2, 4, 2, 20)
    # Made again since it was read: the new topic does not get the old one's numbers.
    new = UUID(int=2)
    old, again = partition_measures([sums_of([2, 3])], IDS, {PartitionKey("t", 0, new): Extent(0, 1)})
    assert (old.topic_id, old.messages) == (TOPIC_ID, 2)
    assert (again.topic_id, again.messages) == (new, 0)
    # Without anybody who knows where it begins and ends, what was read is not lost.
    (alone,) = partition_measures([sums_of([2, 3])], IDS, {})
    assert (alone.from_offset, alone.to_offset, alone.beginning_offset, alone.end_offset) == (2, 4, 0, 4)


@given(st.permutations(range(12)))
def test_minutes_are_in_order(order: list[int]) -> None:
    found = topic_minutes([MinuteSums("t", n * 60_000, n, n) for n in order], IDS)
    assert [entry.minute // 60_000 for entry in found] == list(range(12))


def test_posts_are_cut_at_the_limits_and_there_is_always_one() -> None:
    (nothing,) = result_parts(query_id="q")
    assert (nothing.part, nothing.batch_id, nothing.topics) == (0, None, [])
    count = 2 * limits.MAX_MEASURED_MINUTES + 1
    minutes = [
        TopicMinute(topic="t", topic_id=TOPIC_ID, minute=n * 60_000, messages=1, payload_bytes=1) for n in range(count)
    ]
    one = PartitionMeasure(topic="t", topic_id=TOPIC_ID, partition_id=0, beginning_offset=0, end_offset=0)
    parts = list(result_parts(query_id="q", batch_id=3, topics=minutes, partitions=[one]))
    assert [part.part for part in parts] == [0, 1, 2]
    assert [entry for part in parts for entry in part.topics] == minutes
    assert [len(part.partitions) for part in parts] == [1, 0, 0]
