"""Points of history: rates, totals and tiers."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from db.models import TopicStatsHistoryRow
from db.stats import Figures, StoredLag
from db.stats_points import PointsInRange, catch_up_seconds, rates_between
from db.stats_thinning import ThinningRule
from myqueue.protocol.models import ConsumerLagMeasure
from write_manager.stats_history import (
    HistoryTiers,
    consumer_point,
    lag_with_rates,
    skew,
    topic_point,
)

NOW = datetime(2030, 1, 1, tzinfo=UTC)
TOPIC_ID = UUID("9f1d3c52-8d0a-4f6e-9a51-1b7f3f3f9c11")


def lag(cursor: int, end: int, before: StoredLag | None = None, *, minute: int = 0, partition: int = 0) -> StoredLag:
    measure = ConsumerLagMeasure(
        consumer_id=1,
        topic="t",
        partition_id=partition,
        cursor=cursor,
        end_offset=end,
        messages=end - cursor,
        stored_bytes=7 * (end - cursor),
        seconds=float(end - cursor),
    )
    return lag_with_rates(before, measure, NOW + timedelta(minutes=minute))


def test_rates_of_a_consumer() -> None:
    first = lag(10, 50)
    assert (first.rate_in_per_minute, first.rate_out_per_minute) == (None, None)
    second = lag(30, 60, first, minute=2)
    assert (second.rate_in_per_minute, second.rate_out_per_minute) == (5.0, 10.0)
    stuck = lag(30, 60, second, minute=3)
    assert (stuck.rate_in_per_minute, stuck.rate_out_per_minute) == (0.0, 0.0)
    assert lag(5, 60, second, minute=3).rate_out_per_minute is None, "a cursor that was moved back has read nothing"


@pytest.mark.parametrize(
    ("messages", "rate_in", "rate_out", "expected"),
    [
        (0, None, None, 0.0),
        (100, 10.0, 60.0, 120.0),
        (100, 60.0, 60.0, None),
        (100, 0.0, 0.0, None),
        (100, None, 5.0, None),
    ],
)
def test_time_to_catch_up(messages: int, rate_in: float | None, rate_out: float | None, expected: float | None) -> None:
    assert catch_up_seconds(messages, rate_in, rate_out) == expected


def test_totals_of_a_consumer_are_as_slow_as_its_slowest_partition() -> None:
    moving = lag(30, 60, lag(10, 50), minute=1)
    stuck = lag(0, 10, lag(0, 10, partition=1), minute=1, partition=1)
    total = consumer_point(1, [moving, stuck], NOW)
    assert (total.partitions, total.messages, total.stored_bytes, total.seconds) == (2, 40, 280, 30.0)
    assert (total.cursors, total.end_offsets, total.rate_in_per_minute, total.rate_out_per_minute) == (30, 70, 10, 20)
    assert total.catch_up_seconds is None, "one of its partitions never gets there"
    assert consumer_point(1, [moving], NOW).catch_up_seconds == 180


def test_totals_of_a_topic() -> None:
    one = Figures(0, 30, 30, 300, True, None, None, 0, 0, 6.0, NOW, stored_bytes=1000, rate_out_per_minute=2.0)
    empty = replace(one, end_offset=0, bytes=0, rate_per_minute=None, rate_out_per_minute=None)
    total = topic_point(TOPIC_ID, [one, empty, empty], NOW)
    assert (total.partitions, total.messages, total.payload_bytes, total.stored_bytes) == (3, 30, 300, 3000)
    assert (total.skew, total.rate_in_per_minute, total.rate_out_per_minute) == (3.0, 6.0, 2.0)
    assert topic_point(TOPIC_ID, [one, replace(one, stored_bytes=None)], NOW).stored_bytes is None
    assert topic_point(TOPIC_ID, [empty], NOW).skew is None
    assert skew([5, 5, 5]) == 1.0


def test_rates_between_points_are_means() -> None:
    def point(minute: int, end_offsets: int) -> TopicStatsHistoryRow:
        return TopicStatsHistoryRow(computed_at=NOW + timedelta(minutes=minute), end_offsets=end_offsets)

    newest_first = [point(70, 50), point(60, 600), point(10, 100), point(0, 100)]

    def rates(points: list[TopicStatsHistoryRow], before: TopicStatsHistoryRow | None = None) -> list[float | None]:
        return rates_between(PointsInRange(points, before), lambda each: each.end_offsets)

    assert rates(newest_first) == [None, 10.0, 0.0, None]
    assert rates(newest_first[:1]) == [None]
    assert rates(newest_first[1:2], newest_first[2]) == [10.0], "since the last one before the range"
    assert rates([]) == rates([], newest_first[0]) == []


def test_tiers() -> None:
    day = timedelta(days=1)
    expected = (ThinningRule(day, timedelta(minutes=5)), ThinningRule(30 * day, timedelta(hours=1)))
    assert HistoryTiers.parse("run:1d, 5m:30d,1h:365d") == HistoryTiers(expected, 365 * day)
    assert HistoryTiers.parse("run:36h") == HistoryTiers((), timedelta(hours=36))


@pytest.mark.parametrize(
    "text", ["", "1d", "5m:30d", "run:1d,5m:12h", "run:1d,5m:2d,5m:3d", "run:1d,run:2d", "run:0d", "run:999999d"]
)
def test_tiers_to_refuse(text: str) -> None:
    with pytest.raises(ValueError, match=r"run:1d|grow|100 years"):
        HistoryTiers.parse(text)
