"""Statistics of partitions, consumers and topics as stored: the last figures, and a point of history of every run.

Rows are stored in the order of their keys, so that two jobs that store the same ones never deadlock.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import (
    JSON,
    TableValuedAlias,
    Text,
    case,
    cast,
    column,
    func,
    inspect,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import Insert, insert
from sqlalchemy.orm import Session

from db.models import (
    Base,
    ConsumerRow,
    ConsumerStatsHistoryRow,
    ConsumerStatsRow,
    ConsumerTotalsHistoryRow,
    PartitionMetadata,
    PartitionStatsHistoryRow,
    PartitionStatsRow,
    TopicMinuteRow,
    TopicStatsHistoryRow,
)
from myqueue.protocol.models import MAX_OFFSET

ROWS_PER_STATEMENT = 2_000

PartitionKey = tuple[UUID, int]
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class StatsSource:
    """The job and generation whose batches are summed. Rows of another job or generation do not count for it."""

    job: str
    generation: int


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one partition: its messages from `first_offset` to `end_offset`."""

    first_offset: int
    end_offset: int
    log_end_offset: int  # as the leader reported
    bytes: int  # of the payload
    bytes_exact: bool
    first_timestamp: int | None
    last_timestamp: int | None
    gaps: int
    duplicates: int
    rate_per_minute: float | None
    computed_at: datetime
    stored_bytes: int | None = None  # on the leader's disk; None: not measured
    rate_out_per_minute: float | None = None  # None: no consumer was measured lately

    @property
    def messages(self) -> int:
        return self.end_offset - self.first_offset


@dataclass(frozen=True, slots=True)
class StoredLag:
    consumer_id: int
    partition_id: int
    cursor: int
    end_offset: int
    messages: int
    bytes: int  # as stored
    seconds: float
    computed_at: datetime
    rate_in_per_minute: float | None = None
    rate_out_per_minute: float | None = None


@dataclass(frozen=True, slots=True)
class TopicPoint:
    """Sums over all partitions of a topic."""

    topic_id: UUID
    computed_at: datetime
    partitions: int
    messages: int
    payload_bytes: int
    stored_bytes: int | None
    end_offsets: int
    skew: float | None
    rate_in_per_minute: float | None
    rate_out_per_minute: float | None


@dataclass(frozen=True, slots=True)
class ConsumerPoint:
    """Sums over all partitions of a consumer; `seconds` and `catch_up_seconds` of the slowest."""

    consumer_id: int
    computed_at: datetime
    partitions: int
    messages: int
    stored_bytes: int
    seconds: float
    cursors: int
    end_offsets: int
    rate_in_per_minute: float | None
    rate_out_per_minute: float | None
    catch_up_seconds: float | None


@dataclass(frozen=True, slots=True)
class StoredMinute:
    topic_id: UUID
    minute: int
    messages: int
    bytes: int


def figures_of(session: Session, source: StatsSource, topics: Iterable[UUID]) -> dict[PartitionKey, Figures]:
    rows = session.scalars(
        select(PartitionStatsRow).where(
            PartitionStatsRow.job == source.job,
            PartitionStatsRow.generation == source.generation,
            PartitionStatsRow.topic_id.in_(topics),
        )
    )
    return {
        (row.topic_id, row.partition_id): Figures(
            row.first_offset,
            row.end_offset,
            row.log_end_offset,
            row.bytes,
            row.bytes_exact,
            row.first_timestamp,
            row.last_timestamp,
            row.gaps,
            row.duplicates,
            row.rate_per_minute,
            row.computed_at,
            row.stored_bytes,
            row.rate_out_per_minute,
        )
        for row in rows
    }


def rates_out(session: Session, topics: Iterable[UUID], since: datetime) -> dict[PartitionKey, float]:
    """What consumers that were measured since then read of each partition, in messages a minute."""
    rate = func.sum(ConsumerStatsRow.rate_out_per_minute)
    rows = session.execute(
        select(ConsumerRow.topic_id, ConsumerStatsRow.partition_id, rate)
        .join(ConsumerStatsRow, ConsumerStatsRow.consumer_id == ConsumerRow.consumer_id)
        .where(ConsumerRow.topic_id.in_(topics), ConsumerStatsRow.computed_at >= since)
        .where(ConsumerStatsRow.rate_out_per_minute.is_not(None))
        .group_by(ConsumerRow.topic_id, ConsumerStatsRow.partition_id)
    )
    return {(topic_id, partition_id): total for topic_id, partition_id, total in rows if total is not None}


def lags_of(session: Session, consumers: Iterable[int]) -> dict[tuple[int, int], StoredLag]:
    rows = session.scalars(select(ConsumerStatsRow).where(ConsumerStatsRow.consumer_id.in_(consumers)))
    return {
        (row.consumer_id, row.partition_id): StoredLag(
            row.consumer_id,
            row.partition_id,
            row.cursor,
            row.end_offset,
            row.messages,
            row.bytes,
            row.seconds,
            row.computed_at,
            row.rate_in_per_minute,
            row.rate_out_per_minute,
        )
        for row in rows
    }


def save_figures(
    session: Session, source: StatsSource, figures: Mapping[PartitionKey, Figures], names: Mapping[UUID, str]
) -> None:
    """`names` are those of the topics."""
    rows = [
        {"topic_id": topic_id, "partition_id": partition_id, **_row(source), **_row(found)}
        for (topic_id, partition_id), found in sorted(figures.items(), key=lambda item: item[0])
    ]
    _add_points(session, PartitionStatsHistoryRow, rows)
    _upsert(session, PartitionStatsRow, rows)
    sizes = [
        {"topic_name": names[topic_id], "partition_id": partition_id, "size": found.messages}
        for (topic_id, partition_id), found in figures.items()
    ]
    _save_sizes(session, sizes)


def _save_sizes(session: Session, sizes: Rows) -> None:
    if not sizes:
        return
    values = _values(PartitionMetadata, sizes)
    differs = (
        (PartitionMetadata.topic_name == values.c.topic_name)
        & (PartitionMetadata.partition_id == values.c.partition_id)
        & (PartitionMetadata.size != values.c.size)
    )
    # Locked in the order in which reports of leaders lock these rows, so that the two never deadlock.
    session.execute(
        select(PartitionMetadata.id)
        .join(values, differs)
        .order_by(PartitionMetadata.topic_name, PartitionMetadata.partition_id)
        .with_for_update(of=PartitionMetadata)
    )
    session.execute(
        update(PartitionMetadata).where(differs).values(size=values.c.size).execution_options(synchronize_session=False)
    )


def save_lags(session: Session, lags: Sequence[StoredLag]) -> None:
    rows = [_row(lag) for lag in sorted(lags, key=lambda lag: (lag.consumer_id, lag.partition_id))]
    _add_points(session, ConsumerStatsHistoryRow, rows)
    _upsert(session, ConsumerStatsRow, rows)


def add_topic_points(session: Session, points: Sequence[TopicPoint]) -> None:
    _add_points(session, TopicStatsHistoryRow, [_row(point) for point in points])


def add_consumer_points(session: Session, points: Sequence[ConsumerPoint]) -> None:
    _add_points(session, ConsumerTotalsHistoryRow, [_row(point) for point in points])


def add_minutes(session: Session, source: StatsSource, minutes: Sequence[StoredMinute], *, replace: bool) -> None:
    """Add to the rows of this source, or replace them; rows of another source are replaced."""
    ordered = sorted(minutes, key=lambda minute: (minute.topic_id, minute.minute))
    for statement in _insertions(TopicMinuteRow, [{**_row(source), **_row(minute)} for minute in ordered]):
        new = statement.excluded
        known = (TopicMinuteRow.job == new.job) & (TopicMinuteRow.generation == new.generation) & (not replace)
        changes = {
            "job": new.job,
            "generation": new.generation,
            **{
                name: case((known, func.least(before, MAX_OFFSET - new[name]) + new[name]), else_=new[name])
                for name, before in (("messages", TopicMinuteRow.messages), ("bytes", TopicMinuteRow.bytes))
            },
        }
        session.execute(statement.on_conflict_do_update(index_elements=_key_of(TopicMinuteRow), set_=changes))


def _upsert(session: Session, table: type[Base], rows: Rows) -> None:
    for statement in _insertions(table, rows):
        changes = {name: statement.excluded[name] for name in rows[0] if name not in _key_of(table)}
        session.execute(statement.on_conflict_do_update(index_elements=_key_of(table), set_=changes))


def _add_points(session: Session, history: type[Base], rows: Rows) -> None:
    """Also when nothing has changed: that a rate is zero, and for how long, is what a plot has to show."""
    kept = inspect(history).columns.keys()
    for statement in _insertions(history, [{name: row[name] for name in kept} for row in rows]):
        session.execute(statement.on_conflict_do_nothing())


def _key_of(table: type[Base]) -> list[str]:
    return [column.name for column in inspect(table).primary_key]


def _insertions(table: type[Base], rows: Rows) -> Iterator[Insert]:
    for some in _portions(rows):
        yield insert(table).from_select(list(some[0]), select(_values(table, some)))


def _row(values: StatsSource | Figures | StoredLag | StoredMinute | TopicPoint | ConsumerPoint) -> dict[str, Any]:
    """As asdict, which copies every value."""
    return {field.name: getattr(values, field.name) for field in fields(values)}


def _portions(rows: Rows) -> Iterator[Rows]:
    return (rows[start : start + ROWS_PER_STATEMENT] for start in range(0, len(rows), ROWS_PER_STATEMENT))


def _values(table: type[Base], rows: Rows) -> TableValuedAlias:
    """The rows as one parameter of a statement: thousands of them take as long as dozens do one by one."""
    columns = (column(name, inspect(table).columns[name].type) for name in rows[0])
    text = json.dumps(rows, default=str)
    return func.json_to_recordset(cast(text, Text).cast(JSON)).table_valued(*columns).render_derived(with_types=True)
