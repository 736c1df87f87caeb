"""Rows that are not needed any more: found and deleted in slices."""

from collections.abc import Collection, Sequence
from datetime import timedelta
from uuid import UUID

from sqlalchemy import ColumnElement, delete, func, or_, select, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from db.models import ConsumerRow, DeletedTopic, ProducerMetadata

RegistrationTable = type[ProducerMetadata] | type[ConsumerRow]

# A slice must end well before the statement timeout, and deleting a consumer deletes its cursors, up to 256.
PRODUCERS_PER_SLICE = 2000
CONSUMERS_PER_SLICE = 200
TOPICS_PER_SLICE = 100


def stamp(session: Session, table: RegistrationTable, ids: Collection[int]) -> None:
    """Set the time of their last use to now."""
    session.execute(update(table).where(_key(table).in_(ids)).values(last_seen=func.now()), execution_options=_IN_SQL)


def expired(session: Session, *, table: RegistrationTable, ttl: timedelta) -> Sequence[int]:
    """Some without a name that were not used for `ttl`."""
    old = select(_key(table)).where(table.name.is_(None), table.last_seen < func.now() - ttl)
    return session.scalars(old.order_by(table.last_seen).limit(_slice(table))).all()


def orphans(session: Session, *, table: RegistrationTable, topic_id: UUID) -> Sequence[int]:
    """Some of a deleted topic."""
    return session.scalars(select(_key(table)).where(table.topic_id == topic_id).limit(_slice(table))).all()


def delete_registered(session: Session, table: RegistrationTable, ids: Collection[int]) -> None:
    session.execute(delete(table).where(_key(table).in_(ids)), execution_options=_IN_SQL)


def topics_with_orphans(session: Session) -> Sequence[UUID]:
    left = or_(*(_rows_of(table) for table in (ProducerMetadata, ConsumerRow)))
    return session.scalars(select(DeletedTopic.topic_id).where(left).limit(TOPICS_PER_SLICE)).all()


def forgettable_topics(session: Session, ttl: timedelta, held: Collection[UUID]) -> Sequence[UUID]:
    """Some that were deleted this long ago, of which no rows are left, and which are not `held`."""
    left = or_(*(_rows_of(table) for table in (ProducerMetadata, ConsumerRow)))
    old = select(DeletedTopic.topic_id).where(DeletedTopic.deleted_at < func.now() - ttl, ~left)
    return session.scalars(old.where(DeletedTopic.topic_id.not_in(held)).limit(TOPICS_PER_SLICE)).all()


def forget_topics(session: Session, topic_ids: Collection[UUID]) -> None:
    session.execute(delete(DeletedTopic).where(DeletedTopic.topic_id.in_(topic_ids)), execution_options=_IN_SQL)


_IN_SQL = {"synchronize_session": False}


def _key(table: RegistrationTable) -> InstrumentedAttribute[int]:
    return table.consumer_id if issubclass(table, ConsumerRow) else table.producer_id


def _slice(table: RegistrationTable) -> int:
    return CONSUMERS_PER_SLICE if issubclass(table, ConsumerRow) else PRODUCERS_PER_SLICE


def _rows_of(table: RegistrationTable) -> ColumnElement[bool]:
    return select(1).where(table.topic_id == DeletedTopic.topic_id).exists()
