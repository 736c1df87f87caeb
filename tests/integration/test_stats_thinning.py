"""Points of history thin out with age, a bounded number of rows at a time, and the newest of each step stays."""

from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from db import stats_points, stats_thinning
from db.models import StatsThinning, TopicStatsHistoryRow
from db.primary import Primary
from db.stats import TopicPoint, add_topic_points
from db.stats_points import points_of, rates_between
from db.stats_thinning import ThinningRule
from myqueue.protocol.errors import InvalidRequest
from myqueue.protocol.stats_queries import AskTopicTotals

NOW = datetime(2031, 5, 1, tzinfo=UTC)
RULE = ThinningRule(timedelta(days=1), timedelta(minutes=5))


def add(session: Session, topic_id: UUID, ages: list[timedelta]) -> None:
    points = [
        TopicPoint(topic_id, NOW - age, 1, n, 10 * n, None, 100 - n, None, None, None) for n, age in enumerate(ages)
    ]
    add_topic_points(session, points)


def ages_of(session: Session, topic_id: UUID) -> list[timedelta]:
    """Newest first."""
    asked = select(TopicStatsHistoryRow.computed_at).where(TopicStatsHistoryRow.topic_id == topic_id)
    return [NOW - when for when in session.scalars(asked.order_by(TopicStatsHistoryRow.computed_at.desc()))]


@pytest.fixture(autouse=True)
def only_mine(primary: Primary) -> None:
    with primary.transaction() as transaction:
        transaction.session.query(StatsThinning).delete()
        transaction.session.query(TopicStatsHistoryRow).delete()


def test_old_points_are_thinned_and_new_ones_are_not(primary: Primary) -> None:
    one, other = uuid4(), uuid4()
    minutes = [timedelta(minutes=n) for n in range(24 * 60 - 10, 24 * 60 + 12)]
    with primary.transaction() as transaction:
        add(transaction.session, one, minutes)
        add(transaction.session, other, [timedelta(hours=25)])
        stats_thinning.thin(transaction.session, RULE, NOW)
        kept = ages_of(transaction.session, one)
        day = 24 * 60
        expected = [*range(day - 10, day + 1), day + 1, day + 6, day + 11]
        assert kept == [timedelta(minutes=n) for n in expected], "the last one of each five minutes"
        assert ages_of(transaction.session, other) == [timedelta(hours=25)], "every series by itself"
        stats_thinning.thin(transaction.session, RULE, NOW)
        assert ages_of(transaction.session, one) == kept


def test_a_pass_is_bounded_and_the_next_one_goes_on(primary: Primary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats_thinning, "ROWS_PER_PRUNE", 10)
    topic_id = uuid4()
    with primary.transaction() as transaction:
        add(transaction.session, topic_id, [timedelta(days=2, minutes=n) for n in range(100)])
        counts = []
        for _ in range(30):
            stats_thinning.thin(transaction.session, RULE, NOW)
            counts.append(len(ages_of(transaction.session, topic_id)))
        assert 100 - counts[0] <= 10
        assert counts == sorted(counts, reverse=True)
        assert counts[-1] == 21, "20 steps, and the first minute of one more"
        state = transaction.session.scalars(
            select(StatsThinning).where(StatsThinning.table_name == "topic_stats_history")
        )
        assert state.one().thinned_to == NOW - timedelta(days=1)


def test_a_step_of_more_points_than_a_pass_deletes(primary: Primary, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large cluster has so many in one step that no statement could delete them in its time."""
    monkeypatch.setattr(stats_thinning, "ROWS_PER_PRUNE", 10)
    topic_id, other = uuid4(), uuid4()
    with primary.transaction() as transaction:
        for each in (topic_id, other):
            add(transaction.session, each, [timedelta(days=2, seconds=n) for n in range(-30, 0)])
        counts = []
        for _ in range(8):
            stats_thinning.thin(transaction.session, RULE, NOW)
            counts.append(len(ages_of(transaction.session, topic_id)) + len(ages_of(transaction.session, other)))
        assert counts == [50, 40, 30, 20, 10, 2, 2, 2]
        newest = timedelta(days=2, seconds=-30)
        assert (ages_of(transaction.session, topic_id), ages_of(transaction.session, other)) == ([newest], [newest])


def test_points_older_than_the_last_tier_are_deleted(primary: Primary) -> None:
    topic_id = uuid4()
    with primary.transaction() as transaction:
        add(transaction.session, topic_id, [timedelta(days=n) for n in range(10)])
        stats_thinning.prune_points(transaction.session, NOW - timedelta(days=5))
        assert transaction.session.scalar(select(func.count()).select_from(TopicStatsHistoryRow)) == 6


def test_rates_are_those_between_the_points_that_are_left(primary: Primary) -> None:
    """A point of an hour must not claim the traffic of its last minute for the whole hour."""
    topic_id = uuid4()
    now_ms = round(NOW.timestamp() * 1000)
    with primary.transaction() as transaction:
        add(transaction.session, topic_id, [timedelta(minutes=n) for n in range(1, 121)])
        query = AskTopicTotals.model_validate({"from": str(now_ms - 7_200_000), "to": str(now_ms), "step": "1h"})
        found = points_of(transaction.session, TopicStatsHistoryRow, [(topic_id,)], query, now_ms)[topic_id,]
        assert [NOW - point.computed_at for point in found.points] == [timedelta(minutes=n) for n in (1, 61)]


def test_ranges_that_follow_each_other_have_the_rates_of_one(primary: Primary) -> None:
    topic_id, other = uuid4(), uuid4()
    now_ms = round(NOW.timestamp() * 1000)
    hour_ms = 3_600_000
    with primary.transaction() as transaction:
        add(transaction.session, topic_id, [timedelta(minutes=n) for n in range(1, 100)])
        add(transaction.session, other, [timedelta(minutes=5)])

        def rates(start: int, end: int, step: str | None = None, topic: UUID = topic_id) -> list[float | None]:
            query = AskTopicTotals.model_validate({"from": str(start), "to": str(end), "step": step})
            keys = [(topic_id,), (other,)]
            found = points_of(transaction.session, TopicStatsHistoryRow, keys, query, now_ms)
            return rates_between(found[topic,], lambda point: point.end_offsets)

        start, middle = now_ms - 2 * hour_ms, now_ms - hour_ms
        for step in (None, "5m"):
            whole = rates(start, now_ms, step)
            assert whole[-1] is None, "of the first one that there is"
            assert None not in whole[:-1]
            assert rates(middle, now_ms, step) + rates(start, middle, step) == whole
        assert rates(middle, now_ms, topic=other) == [None]


def test_more_points_than_an_answer_holds_are_refused(primary: Primary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats_points, "MAX_STATS_ROWS", 10)
    topic_id = uuid4()
    now_ms = round(NOW.timestamp() * 1000)
    with primary.transaction() as transaction:
        add(transaction.session, topic_id, [timedelta(minutes=n) for n in range(1, 12)])
        query = AskTopicTotals.model_validate({"from": "0", "to": str(now_ms)})
        with pytest.raises(InvalidRequest, match="more than 10 points") as refused:
            points_of(transaction.session, TopicStatsHistoryRow, [(topic_id,)], query, now_ms)
        assert refused.value.details == {"max_points": 10}
