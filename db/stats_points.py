"""Points of history in a time range: at most one for each step, newest first, with the rates between them."""

from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, TypeVar

from sqlalchemy import DateTime, Interval, cast, func, inspect, select, true
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Session, aliased

from db.listings import time_of
from db.models import (
    Base,
    ConsumerRow,
    ConsumerStatsHistoryRow,
    ConsumerStatsRow,
    ConsumerTotalsHistoryRow,
    PartitionStatsHistoryRow,
    PartitionStatsRow,
    TopicRow,
    TopicStatsHistoryRow,
)
from myqueue.protocol.errors import InvalidRequest
from myqueue.protocol.limits import MAX_STATS_ROWS
from myqueue.protocol.stats_queries import HistoryQuery, TimeRange

H = TypeVar("H", PartitionStatsHistoryRow, TopicStatsHistoryRow, ConsumerStatsHistoryRow, ConsumerTotalsHistoryRow)
Key = tuple[Any, ...]
# Has the keys of a history once each: to collect them from the history would be to read all of it.
_MEASURED: dict[type[Base], type[Base]] = {
    PartitionStatsHistoryRow: PartitionStatsRow,
    TopicStatsHistoryRow: TopicRow,
    ConsumerStatsHistoryRow: ConsumerStatsRow,
    ConsumerTotalsHistoryRow: ConsumerRow,
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def points_of(
    session: Session, history: type[H], owners: Collection[Any], series: int, query: HistoryQuery, now_ms: int
) -> dict[Key, list[H]]:
    """By the key without the time, newest first. `series` is how many keys the owners (topics, consumers) have."""
    wanted = query.time_range(now_ms)
    if not owners or (wanted is None and not query.history):
        return {}
    if wanted is None:
        if series * query.history > MAX_STATS_ROWS:
            raise InvalidRequest(
                f"history: {query.history} for each of {series} is more than {MAX_STATS_ROWS} in all;"
                " ask for less, or for one topic"
            )
        return _last_points(session, history, owners, query.history)
    return _points_in(session, history, owners, wanted)


def _key_of(history: type[Base]) -> list[str]:
    return [column.name for column in inspect(history).primary_key if column.name != "computed_at"]


def _last_points(session: Session, history: type[H], owners: Collection[Any], count: int) -> dict[Key, list[H]]:
    names = _key_of(history)
    columns, measured = inspect(history).columns, inspect(_MEASURED[history]).columns
    keys = select(*(measured[name] for name in names)).where(measured[names[0]].in_(owners)).subquery()
    last = (
        select(history)
        .where(*(columns[name] == keys.c[name] for name in names))
        .order_by(history.computed_at.desc())
        .limit(count)
        .lateral()
    )
    statement = select(aliased(history, last)).select_from(keys).join(last, true()).order_by(last.c.computed_at.desc())
    return _grouped(names, session.scalars(statement).all())


def _points_in(session: Session, history: type[H], owners: Collection[Any], wanted: TimeRange) -> dict[Key, list[H]]:
    names = _key_of(history)
    columns = inspect(history).columns
    key = [columns[name] for name in names]
    statement = select(history).where(
        key[0].in_(owners),
        history.computed_at >= time_of(wanted.start_ms),
        history.computed_at < time_of(wanted.end_ms),
    )
    if wanted.step_ms is None:
        statement = statement.order_by(history.computed_at.desc())
    else:
        step = cast(timedelta(milliseconds=wanted.step_ms), Interval)
        of_step = func.date_bin(step, history.computed_at, cast(_EPOCH, DateTime(timezone=True)))
        statement = statement.ext(distinct_on(*key, of_step)).order_by(*key, of_step.desc(), history.computed_at.desc())
    rows = session.scalars(statement.limit(MAX_STATS_ROWS + 1)).all()
    if len(rows) > MAX_STATS_ROWS:
        raise InvalidRequest(
            f"step: more than {MAX_STATS_ROWS} points; ask for a longer step, a shorter time, or one topic"
        )
    return _grouped(names, rows)


def _grouped(names: Sequence[str], rows: Sequence[H]) -> dict[Key, list[H]]:
    found: dict[Key, list[H]] = {}
    for row in rows:
        found.setdefault(tuple(getattr(row, name) for name in names), []).append(row)
    return found


def rates_between(points: Sequence[H], count: Callable[[H], int]) -> list[float | None]:
    """Messages a minute from each point's predecessor to it, of points newest first. None: of the oldest, and where
    the count has gone down. Over thinned points it is the mean of the time between them, not that of one run."""
    rates: list[float | None] = []
    for point, before in pairwise(points):
        minutes = (point.computed_at - before.computed_at).total_seconds() / 60
        counted = count(point) - count(before)
        rates.append(counted / minutes if counted >= 0 and minutes > 0 else None)
    return [*rates, None] if points else []


def catch_up_seconds(messages: int, rate_in: float | None, rate_out: float | None) -> float | None:
    """Until nothing is unread, at these rates per minute. None: never, or not known yet."""
    if messages == 0:
        return 0.0
    if rate_in is None or rate_out is None or rate_out <= rate_in:
        return None
    return messages / (rate_out - rate_in) * 60


def point_ms(when: datetime) -> int:
    """Rounded down, so that a range that begins at a listed point has it, and one that ends there has not."""
    return (when - _EPOCH) // timedelta(milliseconds=1)
