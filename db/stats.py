"""Statistics of partitions, consumers and topics as stored: the last figures, and a history of those that differed.

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
    and_,
    case,
    cast,
    column,
    delete,
    func,
    inspect,
    select,
    tuple_,
    update,
)
from sqlalchemy.dialects.postgresql import Insert, insert
from sqlalchemy.orm import InstrumentedAttribute, Session

from db.models import (
    Base,
    ConsumerStatsHistoryRow,
    ConsumerStatsRow,
    PartitionMetadata,
    PartitionStatsHistoryRow,
    PartitionStatsRow,
    TopicMinuteRow,
)
from myqueue.protocol.models import MAX_OFFSET

# At least as many as one request stores, so that a backlog shrinks; few enough for one statement.
ROWS_PER_PRUNE = 10_000
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
    bytes: int
    bytes_exact: bool
    first_timestamp: int | None
    last_timestamp: int | None
    gaps: int
    duplicates: int
    rate_per_minute: float | None
    computed_at: datetime

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
    bytes: int
    seconds: float
    computed_at: datetime


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
    _add_history(session, PartitionStatsHistoryRow, PartitionStatsRow, rows, ("first_offset", "end_offset", "bytes"))
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
    _add_history(
        session, ConsumerStatsHistoryRow, ConsumerStatsRow, rows, ("cursor", "end_offset", "messages", "bytes")
    )
    _upsert(session, ConsumerStatsRow, rows)


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


def prune(session: Session, before: datetime) -> None:
    """Delete older rows, a limited number at a time; rows locked by another transaction are left to the next time."""
    _prune(session, PartitionStatsHistoryRow, PartitionStatsHistoryRow.computed_at, before)
    _prune(session, ConsumerStatsHistoryRow, ConsumerStatsHistoryRow.computed_at, before)
    _prune(session, TopicMinuteRow, TopicMinuteRow.minute, round(before.timestamp() * 1000))


def _prune(session: Session, table: type[Base], age: InstrumentedAttribute[Any], before: object) -> None:
    key = inspect(table).primary_key
    old = select(*key).where(age < before).limit(ROWS_PER_PRUNE).with_for_update(skip_locked=True)
    session.execute(delete(table).where(tuple_(*key).in_(old)).execution_options(synchronize_session=False))


def _upsert(session: Session, table: type[Base], rows: Rows) -> None:
    for statement in _insertions(table, rows):
        changes = {name: statement.excluded[name] for name in rows[0] if name not in _key_of(table)}
        session.execute(statement.on_conflict_do_update(index_elements=_key_of(table), set_=changes))


def _add_history(session: Session, history: type[Base], table: type[Base], rows: Rows, watched: Sequence[str]) -> None:
    """Add the rows whose watched columns differ from the table's. To be called before the table is updated."""
    kept = inspect(history).columns.keys()
    stored = inspect(table).columns
    for some in _portions(rows):
        values = _values(history, [{name: row[name] for name in kept} for row in some])
        same = and_(*(values.c[name] == stored[name] for name in (*_key_of(table), *watched)))
        differing = select(*(values.c[name] for name in kept)).where(~select(1).where(same).exists())
        session.execute(insert(history).from_select(kept, differing).on_conflict_do_nothing())


def _key_of(table: type[Base]) -> list[str]:
    return [column.name for column in inspect(table).primary_key]


def _insertions(table: type[Base], rows: Rows) -> Iterator[Insert]:
    for some in _portions(rows):
        yield insert(table).from_select(list(some[0]), select(_values(table, some)))


def _row(values: StatsSource | Figures | StoredLag | StoredMinute) -> dict[str, Any]:
    """As asdict, which copies every value."""
    return {field.name: getattr(values, field.name) for field in fields(values)}


def _portions(rows: Rows) -> Iterator[Rows]:
    return (rows[start : start + ROWS_PER_STATEMENT] for start in range(0, len(rows), ROWS_PER_STATEMENT))


def _values(table: type[Base], rows: Rows) -> TableValuedAlias:
    """The rows as one parameter of a statement: thousands of them take as long as dozens do one by one."""
    columns = (column(name, inspect(table).columns[name].type) for name in rows[0])
    text = json.dumps(rows, default=str)
    return func.json_to_recordset(cast(text, Text).cast(JSON)).table_valued(*columns).render_derived(with_types=True)
