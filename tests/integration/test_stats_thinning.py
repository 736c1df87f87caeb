"""Points of history thin out with age, a bounded number of rows at a time, and the newest of each step stays."""

from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from db import stats_thinning
from db.models import StatsThinning, TopicStatsHistoryRow
from db.primary import Primary
from db.stats import TopicPoint, add_topic_points
from db.stats_points import points_of
from db.stats_thinning import ThinningRule
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
        found = points_of(transaction.session, TopicStatsHistoryRow, [topic_id], 1, query, now_ms)
        assert [NOW - point.computed_at for point in found[topic_id,]] == [timedelta(minutes=n) for n in (1, 61)]
