"""Points of history that are deleted: by age, and all but the last of each step once they are old enough.

A pass looks at a bounded number of rows: it goes on from where the one before stopped, which is stored.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import DateTime, Interval, Select, cast, delete, func, inspect, literal, select, true, tuple_
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import InstrumentedAttribute, Mapper, Session, aliased

from db.models import (
    Base,
    ConsumerStatsHistoryRow,
    ConsumerTotalsHistoryRow,
    PartitionStatsHistoryRow,
    StatsThinning,
    TopicMinuteRow,
    TopicStatsHistoryRow,
)

# At least as many as one request stores, so that a backlog shrinks; few enough for one statement.
ROWS_PER_PRUNE = 10_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

HistoryTable = type[
    PartitionStatsHistoryRow | TopicStatsHistoryRow | ConsumerStatsHistoryRow | ConsumerTotalsHistoryRow
]
HISTORY_TABLES: tuple[HistoryTable, ...] = (
    PartitionStatsHistoryRow,
    TopicStatsHistoryRow,
    ConsumerStatsHistoryRow,
    ConsumerTotalsHistoryRow,
)


@dataclass(frozen=True, slots=True)
class ThinningRule:
    """Of points older than `age`, the last one of each `step` is kept. Steps are counted from 1970."""

    age: timedelta
    step: timedelta


def prune_points(session: Session, before: datetime) -> None:
    """Delete older points, a limited number at a time; rows locked by another transaction are left to the next time."""
    for table in HISTORY_TABLES:
        _prune(session, table, table.computed_at, before)


def prune_minutes(session: Session, before: datetime) -> None:
    _prune(session, TopicMinuteRow, TopicMinuteRow.minute, round(before.timestamp() * 1000))


def _prune(session: Session, table: type[Base], age: InstrumentedAttribute[Any], before: object) -> None:
    key = inspect(table).primary_key
    old = select(*key).where(age < before).limit(ROWS_PER_PRUNE).with_for_update(skip_locked=True)
    session.execute(delete(table).where(tuple_(*key).in_(old)).execution_options(synchronize_session=False))


def thin(session: Session, rule: ThinningRule, now: datetime) -> None:
    for table in HISTORY_TABLES:
        _thin(session, table, rule, _floor(now - rule.age, rule.step))


def _thin(session: Session, table: HistoryTable, rule: ThinningRule, end: datetime) -> None:
    """One slice, from where the last one ended to `end` at most; at most ROWS_PER_PRUNE points are deleted."""
    state = _locked_state(session, table, rule.step)
    if state.thinned_to >= end:
        return
    waiting = (
        select(table.computed_at)
        .where(table.computed_at >= state.thinned_to, table.computed_at < end)
        .order_by(table.computed_at)
    )
    first = session.scalar(waiting.limit(1))
    if first is None:
        state.thinned_to = end
        return
    start = _floor(first, rule.step)
    beyond = session.scalar(waiting.offset(ROWS_PER_PRUNE).limit(1))
    if beyond is not None:  # whole steps only, and at least one
        end = max(_floor(beyond, rule.step), start + rule.step)
    mapper: Mapper[Base] = inspect(table)
    doomed = tuple_(*mapper.primary_key).in_(_superseded(table, rule.step, start, end))
    deleted = session.execute(delete(table).where(doomed).execution_options(synchronize_session=False))
    if deleted.rowcount < ROWS_PER_PRUNE:  # type: ignore[attr-defined]  # else the next pass goes on here
        state.thinned_to = end


def _superseded(table: HistoryTable, step: timedelta, start: datetime, end: datetime) -> Select[Any]:
    """Points after which another one of their series comes in the same step, the oldest first, a limited number: a step
    of a large cluster has more of them than one statement has time for."""
    mapper: Mapper[Base] = inspect(table)
    key = [column.name for column in mapper.primary_key if column.name != "computed_at"]
    later = aliased(table)
    length = cast(step, Interval)
    ends = func.date_bin(length, table.computed_at, cast(_EPOCH, DateTime(timezone=True))) + length
    of_series = (getattr(later, name) == getattr(table, name) for name in key)
    newer = select(literal(1)).where(*of_series, later.computed_at > table.computed_at, later.computed_at < ends)
    return (
        select(*mapper.primary_key)
        .join(newer.limit(1).lateral(), true())  # one look into the index for each point
        .where(table.computed_at >= start, table.computed_at < end)
        .order_by(table.computed_at)
        .limit(ROWS_PER_PRUNE)
    )


def _locked_state(session: Session, table: HistoryTable, step: timedelta) -> StatsThinning:
    name, step_s = table.__tablename__, round(step.total_seconds())
    new = insert(StatsThinning).values(table_name=name, step_s=step_s, thinned_to=_EPOCH)
    session.execute(new.on_conflict_do_nothing())
    row = select(StatsThinning).where(StatsThinning.table_name == name, StatsThinning.step_s == step_s)
    return session.scalars(row.with_for_update()).one()


def _floor(when: datetime, step: timedelta) -> datetime:
    return when - (when - _EPOCH) % step
