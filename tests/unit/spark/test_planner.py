"""What a micro-batch takes in, whatever happened to its topics meanwhile."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from myqueue.protocol.errors import MyQueueError, OffsetOutOfRange
from myqueue.spark.offsets import OffsetBounds, OffsetSnapshot, StreamOffset, TopicBounds, TopicPartition
from myqueue.spark.planner import (
    OffsetRange,
    TopicLost,
    TriggerDelay,
    latest,
    next_end,
    plan_batch,
    report_data_loss,
    split_ranges,
)


def survey_of(topic_id: str = "id", **partitions: tuple[int, int]) -> OffsetSnapshot:
    return {"t": TopicBounds(topic_id, {int(p[1:]): OffsetBounds(*bounds) for p, bounds in partitions.items()})}


def at(topic_id: str = "id", **offsets: int) -> StreamOffset:
    return StreamOffset({"t": topic_id}, {("t", int(p[1:])): offset for p, offset in offsets.items()})


def anything(topic: str) -> bool:
    return True


def kinds(lost: tuple[MyQueueError, ...]) -> list[type[MyQueueError]]:
    return [type(loss) for loss in lost]


def test_a_micro_batch_goes_up_to_the_end() -> None:
    step = next_end(at(p0=3, p1=5), survey_of(p0=(0, 9), p1=(0, 5)), None, anything)
    assert step.end == at(p0=9, p1=5)
    assert step.data_loss == ()


def test_nothing_new_is_the_same_checkpoint() -> None:
    start = at(p0=9)
    assert next_end(start, survey_of(p0=(0, 9)), None, anything).end.to_json() == start.to_json()


def test_a_limit_is_shared() -> None:
    step = next_end(at(p0=0, p1=0), survey_of(p0=(0, 90), p1=(0, 10)), 10, anything)
    assert step.end == at(p0=9, p1=1)


def test_what_is_new_begins_where_it_begins() -> None:
    step = next_end(at(p0=3), survey_of(p0=(0, 3), p1=(4, 6)), None, anything)
    assert (step.end, step.data_loss) == (at(p0=3, p1=6), ())
    made = plan_batch(at(p0=3), step.end, survey_of(p0=(0, 3), p1=(4, 6)))
    assert made.ranges == [OffsetRange("t", "id", 0, 3, 3), OffsetRange("t", "id", 1, 4, 6)]
    assert made.data_loss == ()


def test_a_topic_made_again_is_a_loss_and_starts_over() -> None:
    start, now = at("old", p0=50), survey_of("new", p0=(0, 7))
    step = next_end(start, now, None, anything)
    assert kinds(step.data_loss) == [TopicLost]
    assert "was deleted and made again" in str(step.data_loss[0])
    assert step.end == at("new", p0=7)
    assert plan_batch(start, step.end, now).ranges == [OffsetRange("t", "new", 0, 0, 7)]


def test_a_deleted_topic_is_a_loss_unless_it_is_not_wanted_any_more() -> None:
    assert kinds(next_end(at(p0=3), {}, None, anything).data_loss) == [TopicLost]
    step = next_end(at(p0=3), {}, None, lambda topic: False)
    assert (step.end, step.data_loss) == (StreamOffset({}, {}), ())


def test_what_retention_took_is_a_loss() -> None:
    now = survey_of(p0=(6, 9))
    step = next_end(at(p0=2), now, None, anything)
    made = plan_batch(at(p0=2), step.end, now)
    assert kinds(made.data_loss) == [OffsetOutOfRange]
    assert "t/0: messages 2 to 5 are gone" in str(made.data_loss[0])
    assert made.ranges == [OffsetRange("t", "id", 0, 6, 9)]
    # A micro-batch that is repeated when all of it is gone
    made = plan_batch(at(p0=2), at(p0=4), now)
    assert "messages 2 to 3 are gone" in str(made.data_loss[0])
    assert made.ranges == [OffsetRange("t", "id", 0, 4, 4)]


def test_a_loss_says_what_can_be_done_or_what_is_done(caplog: pytest.LogCaptureFixture) -> None:
    (loss,) = plan_batch(at(p0=2), at(p0=9), survey_of(p0=(6, 9))).data_loss
    with pytest.raises(OffsetOutOfRange, match=r"2 to 5 are gone, .* before 6; set failOnDataLoss to false to go on"):
        report_data_loss(loss, fail=True)
    report_data_loss(loss, fail=False)
    assert "before 6; failOnDataLoss is false: the query goes on with what is there" in caplog.text
    assert "set failOnDataLoss" not in caplog.text


def test_a_partition_without_a_leader_stays_where_it_is() -> None:
    now = {"t": TopicBounds("id", {0: OffsetBounds(0, 9)}, leaderless=frozenset({1, 2}))}
    step = next_end(at(p0=3, p1=5), now, None, anything)
    assert (step.end, step.data_loss) == (at(p0=9, p1=5), ())
    made = plan_batch(at(p0=3, p1=5), step.end, now)
    assert split_ranges(made.ranges, None) == [OffsetRange("t", "id", 0, 3, 9)]
    later = next_end(step.end, survey_of(p0=(0, 9), p1=(0, 8), p2=(0, 4)), None, anything)
    assert later.end == at(p0=9, p1=8, p2=4)


def test_a_micro_batch_waits_for_enough_messages_but_not_for_ever() -> None:
    delay = TriggerDelay(10, 60.0)
    assert delay.is_due(1, 1000.0)  # the first one
    assert not delay.is_due(9, 1059.0)
    assert delay.is_due(10, 1059.0)
    assert not delay.is_due(9, 1118.0)
    assert delay.is_due(1, 1119.0)
    assert TriggerDelay(None, 60.0).is_due(1, 0.0)


def test_a_partition_that_has_become_shorter_is_a_loss() -> None:
    start, now = at(p0=20), survey_of(p0=(4, 9))
    step = next_end(start, now, None, anything)
    assert kinds(step.data_loss) == [OffsetOutOfRange]
    assert step.end == at(p0=9)
    assert plan_batch(start, step.end, now).ranges == [OffsetRange("t", "id", 0, 4, 9)]


topic_partitions = st.tuples(st.sampled_from("ab"), st.integers(0, 3))
bounds = st.tuples(st.integers(0, 50), st.integers(0, 50)).map(lambda pair: OffsetBounds(pair[0], sum(pair)))


@given(
    st.dictionaries(topic_partitions, bounds, max_size=6),
    st.dictionaries(topic_partitions, st.integers(0, 120)),
    st.integers(1, 40),
)
def test_micro_batches_meet_without_gap_or_overlap(
    there: dict[TopicPartition, OffsetBounds], read: dict[TopicPartition, int], most: int
) -> None:
    snapshot = {
        topic: TopicBounds(f"id-{topic}", {p: b for (t, p), b in there.items() if t == topic}) for topic, _ in there
    }
    progress = StreamOffset({topic: f"id-{topic}" for topic, _ in read}, read)
    taken: dict[TopicPartition, list[int]] = {}
    while True:
        step = next_end(progress, snapshot, most, anything)
        ranges = plan_batch(progress, step.end, snapshot).ranges
        if step.end == progress:
            break
        assert sum(range_.size for range_ in ranges) <= max(most, len(there))
        for range_ in ranges:
            taken.setdefault((range_.topic, range_.partition), []).extend(range(range_.start, range_.end))
        progress = step.end
    for place, partition in there.items():
        before = read.get(place, 0)
        first = max(partition.beginning, before if before <= partition.end else 0)
        assert taken.get(place, []) == list(range(first, partition.end))
        assert progress.offsets.get(place, partition.end) == latest(snapshot).offsets[place]
