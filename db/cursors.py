"""Cursors as stored: loaded once per consumer, written back in groups; those of consumers with a name, all at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any
from uuid import UUID

from sqlalchemy import bindparam, func, or_, select, update
from sqlalchemy.orm import Session

from db.models import ConsumerMetadata, ConsumerRow, TopicRow


@dataclass(frozen=True, slots=True)
class StoredCursor:
    partition_id: int
    offset: int
    given_back: tuple[int, ...]
    skipped: int


@dataclass(frozen=True, slots=True)
class StoredConsumer:
    consumer_id: int
    topic_id: UUID
    next_partition: int
    claims_in_flight: Sequence[Any]
    recent_claims: Sequence[Any]
    recent_commits: Sequence[Any]
    cursors: Sequence[StoredCursor]


def load(session: Session, consumer_id: int) -> StoredConsumer | None:
    consumer = session.get(ConsumerRow, consumer_id)
    if consumer is None:
        return None
    rows = session.scalars(
        select(ConsumerMetadata)
        .where(ConsumerMetadata.consumer_id == consumer_id)
        .order_by(ConsumerMetadata.partition_id)
    )
    cursors = [StoredCursor(row.partition_id, row.offset, tuple(row.given_back), row.skipped) for row in rows]
    return StoredConsumer(
        consumer_id,
        consumer.topic_id,
        consumer.next_partition,
        consumer.claims_in_flight,
        consumer.recent_claims,
        consumer.recent_commits,
        cursors,
    )


_CONSUMERS = (
    update(ConsumerRow.__table__)  # type: ignore[arg-type]
    .where(ConsumerRow.__table__.c.consumer_id == bindparam("id"))
    .values(
        next_partition=bindparam("next"),
        claims_in_flight=bindparam("in_flight"),
        recent_claims=bindparam("claims"),
        recent_commits=bindparam("commits"),
    )
)
_CURSORS = (
    update(ConsumerMetadata.__table__)  # type: ignore[arg-type]
    .where(
        ConsumerMetadata.__table__.c.consumer_id == bindparam("id"),
        ConsumerMetadata.__table__.c.partition_id == bindparam("partition"),
    )
    .values(offset=bindparam("to"), given_back=bindparam("back"), skipped=bindparam("gone"), updated_at=func.now())
)


def restart(session: Session, topic_id: UUID, partition_id: int) -> None:
    """Reset all cursors of a partition whose log restarts at 0."""
    consumers = select(ConsumerRow.consumer_id).where(ConsumerRow.topic_id == topic_id)
    session.execute(
        update(ConsumerMetadata)
        .where(
            ConsumerMetadata.consumer_id.in_(consumers),
            ConsumerMetadata.partition_id == partition_id,
            or_(ConsumerMetadata.offset > 0, func.cardinality(ConsumerMetadata.given_back) > 0),
        )
        .values(offset=0, given_back=[], updated_at=func.now()),
        execution_options={"synchronize_session": False},
    )


def save(session: Session, consumers: Sequence[StoredConsumer]) -> None:
    """Writes only the given cursors: leave out those that did not move."""
    session.connection().execute(
        _CONSUMERS,
        [
            {
                "id": c.consumer_id,
                "next": c.next_partition,
                "in_flight": list(c.claims_in_flight),
                "claims": list(c.recent_claims),
                "commits": list(c.recent_commits),
            }
            for c in consumers
        ],
    )
    moved = [
        {
            "id": c.consumer_id,
            "partition": cursor.partition_id,
            "to": cursor.offset,
            "back": list(cursor.given_back),
            "gone": cursor.skipped,
        }
        for c in consumers
        for cursor in c.cursors
    ]
    if moved:
        session.connection().execute(_CURSORS, moved)


@dataclass(frozen=True, slots=True)
class NamedConsumer:
    consumer_id: int
    topic_id: UUID
    topic: str
    name: str
    cursors: Sequence[StoredCursor]


def named_consumers(session: Session, max_cursors: int) -> tuple[list[NamedConsumer], int]:
    """Consumers that have a name, in the order of their ids, as many as have `max_cursors` together; how many there
    are in all."""
    named = (
        select(ConsumerRow.consumer_id)
        .join(TopicRow, TopicRow.topic_id == ConsumerRow.topic_id)  # rows of a deleted topic may be left for a while
        .where(ConsumerRow.name.is_not(None))
    )
    rows = session.execute(
        select(
            ConsumerRow.consumer_id,
            ConsumerRow.topic_id,
            ConsumerRow.topic_name,
            ConsumerRow.name,
            ConsumerMetadata.partition_id,
            ConsumerMetadata.offset,
            ConsumerMetadata.given_back,
            ConsumerMetadata.skipped,
        )
        .join(ConsumerMetadata, ConsumerMetadata.consumer_id == ConsumerRow.consumer_id)
        .where(ConsumerRow.consumer_id.in_(named))
        .order_by(ConsumerRow.consumer_id, ConsumerMetadata.partition_id)
        .limit(max_cursors + 1)
    ).all()
    if len(rows) > max_cursors:  # the last one may be there in part
        rows = [row for row in rows if row.consumer_id != rows[-1].consumer_id]
    found: list[NamedConsumer] = []
    for consumer_id, of_consumer in groupby(rows, key=lambda row: row.consumer_id):
        each = list(of_consumer)
        cursors = [StoredCursor(row.partition_id, row.offset, tuple(row.given_back), row.skipped) for row in each]
        found.append(NamedConsumer(consumer_id, each[0].topic_id, each[0].topic_name, each[0].name, cursors))
    return found, session.scalar(select(func.count()).select_from(named.subquery())) or 0
