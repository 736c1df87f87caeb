"""Points of history in a time range: at most one for each step, newest first, with the rates between them."""

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Generic, TypeVar

from sqlalchemy import (
    JSON,
    ColumnElement,
    DateTime,
    FromClause,
    Interval,
    Select,
    TableValuedAlias,
    Text,
    cast,
    column,
    func,
    inspect,
    select,
    true,
)
from sqlalchemy.orm import Session, aliased

from db.listings import time_of
from db.models import (
    Base,
    ConsumerStatsHistoryRow,
    ConsumerTotalsHistoryRow,
    PartitionStatsHistoryRow,
    TopicStatsHistoryRow,
)
from myqueue.protocol.errors import InvalidRequest
from myqueue.protocol.limits import MAX_STATS_ROWS
from myqueue.protocol.stats_queries import HistoryQuery, TimeRange

HistoryRow = PartitionStatsHistoryRow | TopicStatsHistoryRow | ConsumerStatsHistoryRow | ConsumerTotalsHistoryRow
H = TypeVar("H", bound=HistoryRow)
Key = tuple[Any, ...]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class PointsInRange(Generic[H]):
    """Of one series. The point before the range makes the rate of the oldest one: ranges that follow each other have
    the rates of one long range."""

    points: list[H]  # newest first
    before: H | None = None


def points_of(
    session: Session, history: type[H], keys: Collection[Key], query: HistoryQuery, now_ms: int
) -> dict[Key, PointsInRange[H]]:
    """By the key, which is the primary key without the time."""
    wanted = query.time_range(now_ms)
    if not keys or (wanted is None and not query.history):
        return {}
    if wanted is None:
        if len(keys) * query.history > MAX_STATS_ROWS:
            raise InvalidRequest(
                f"history: {query.history} for each of {len(keys)} is more than {MAX_STATS_ROWS} in all;"
                " ask for less, or for one topic"
            )
        last = _read(session, history, _newest(history, keys, query.history, _columns_of(history)))
        return {key: PointsInRange(points) for key, points in last.items()}
    chosen = _all_of if wanted.step_ms is None else _of_steps
    # Counted first: the index alone tells it, and a refusal must not cost as much as an answer.
    listed = chosen(history, keys, wanted, [*_key_of(history), "computed_at"]).limit(MAX_STATS_ROWS + 1).subquery()
    if (session.scalar(select(func.count()).select_from(listed)) or 0) > MAX_STATS_ROWS:
        raise InvalidRequest(
            f"step: more than {MAX_STATS_ROWS} points; ask for a longer step, a shorter time, or one topic",
            details={"max_points": MAX_STATS_ROWS},
        )
    columns = _columns_of(history)
    before = _read(session, history, _newest(history, keys, 1, columns, before=time_of(wanted.start_ms)))
    return {
        key: PointsInRange(points, before.get(key, [None])[0])
        for key, points in _read(session, history, chosen(history, keys, wanted, columns)).items()
    }


# The tables hold millions of rows, and a statement has little time. So every series is read by its own way through the
# index of the primary key, and what is read is in proportion to what is answered, not to what is stored.


def _newest(
    history: type[H], keys: Collection[Key], count: int, columns: Sequence[str], before: datetime | None = None
) -> Select[Any]:
    """The last `count` points of each series."""
    series = _series(history, keys)
    rows = _of(history, _key_of(history), series, columns).order_by(history.computed_at.desc()).limit(count)
    if before is not None:
        rows = rows.where(history.computed_at < before)
    found = rows.lateral()
    return select(found).select_from(series).join(found, true())


def _all_of(history: type[H], keys: Collection[Key], wanted: TimeRange, columns: Sequence[str]) -> Select[Any]:
    series = _series(history, keys)
    rows = (
        _of(history, _key_of(history), series, columns)
        .where(*_within(history, wanted))
        .order_by(history.computed_at.desc())
    )
    found = rows.limit(MAX_STATS_ROWS + 1).lateral()
    return select(found).select_from(series).join(found, true())


def _of_steps(history: type[H], keys: Collection[Key], wanted: TimeRange, columns: Sequence[str]) -> Select[Any]:
    """The newest point of each step, from one to the next without the points between them."""
    step = cast(timedelta(milliseconds=wanted.step_ms or 0), Interval)
    origin = cast(_EPOCH, DateTime(timezone=True))
    series = _series(history, keys)
    in_range = _of(history, _key_of(history), series, columns).where(*_within(history, wanted))
    first = in_range.order_by(history.computed_at.desc()).limit(1).lateral()
    walk = select(first).select_from(series).join(first, true()).cte("walk", recursive=True)
    earlier = aliased(history)
    before = (
        _of(earlier, _key_of(history), walk, columns)
        .where(*_within(earlier, wanted), earlier.computed_at < func.date_bin(step, walk.c.computed_at, origin))
        .order_by(earlier.computed_at.desc())
        .limit(1)
        .lateral()
    )
    walk = walk.union_all(select(before).select_from(walk).join(before, true()))
    return select(walk)


def _key_of(history: type[Base]) -> list[str]:
    return [column.name for column in inspect(history).primary_key if column.name != "computed_at"]


def _series(history: type[Base], keys: Collection[Key]) -> TableValuedAlias:
    """The keys as a table: one parameter, however many there are."""
    names, columns = _key_of(history), inspect(history).columns
    given = json.dumps([dict(zip(names, key, strict=True)) for key in keys], default=str)
    typed = (column(name, columns[name].type) for name in names)
    return func.json_to_recordset(cast(given, Text).cast(JSON)).table_valued(*typed).render_derived(with_types=True)


def _columns_of(history: type[Base]) -> list[str]:
    return list(inspect(history).columns.keys())


def _of(history: type[H], key: Sequence[str], series: FromClause, columns: Sequence[str]) -> Select[Any]:
    chosen = select(*(getattr(history, name) for name in columns))
    return chosen.where(*(getattr(history, name) == series.c[name] for name in key))


def _within(history: type[H], wanted: TimeRange) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return history.computed_at >= time_of(wanted.start_ms), history.computed_at < time_of(wanted.end_ms)


def _read(session: Session, history: type[H], rows: Select[Any]) -> dict[Key, list[H]]:
    """By the key, newest first."""
    names = _key_of(history)
    found: dict[Key, list[H]] = {}
    for row in session.scalars(select(aliased(history, rows.subquery()))):
        found.setdefault(tuple(getattr(row, name) for name in names), []).append(row)
    return {key: sorted(points, key=lambda point: point.computed_at, reverse=True) for key, points in found.items()}


def rates_between(found: PointsInRange[H], count: Callable[[H], int]) -> list[float | None]:
    """Messages a minute from each point's predecessor to it. None: of the first one that there is, and where the count
    has gone down. Over thinned points it is the mean of the time between them, not that of one run."""
    rates: list[float | None] = []
    points = found.points if found.before is None else [*found.points, found.before]
    for point, before in pairwise(points):
        minutes = (point.computed_at - before.computed_at).total_seconds() / 60
        counted = count(point) - count(before)
        rates.append(counted / minutes if counted >= 0 and minutes > 0 else None)
    return rates if len(rates) == len(found.points) else [*rates, None]


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
