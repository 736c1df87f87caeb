"""Producers and consumers as stored: registered in groups, looked up one at a time."""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import TypeVar
from uuid import UUID

from sqlalchemy import ColumnElement, Float, cast, delete, func, insert, select, tuple_
from sqlalchemy.orm import InstrumentedAttribute, Session

from db import catalog
from db.catalog import take_ids
from db.models import Base, ConsumerMetadata, ConsumerRow, ProducerMetadata, TopicRow

Name = tuple[UUID, str]  # of a topic's producer or consumer


@dataclass(frozen=True, slots=True)
class WantedProducer:
    topic_id: UUID
    topic: str
    name: str | None
    opens: bool  # with a new epoch


@dataclass(frozen=True, slots=True)
class WantedConsumer:
    topic_id: UUID
    topic: str
    name: str | None
    partition_id: int | None
    cursors: Mapping[int, int] | None  # where a new one starts; None: it must exist already


Wanted = WantedProducer | WantedConsumer


@dataclass(frozen=True, slots=True)
class RegistrationResult:
    id: int
    new: bool
    epoch: int | None = None  # of a producer that was opened
    partition_id: int | None = None  # of a consumer


class Missing(Enum):
    TOPIC = "topic"
    CONSUMER = "consumer"


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    producer_id: int
    topic_id: UUID
    name: str | None


@dataclass(frozen=True, slots=True)
class ConsumerIdentity:
    consumer_id: int
    topic_id: UUID
    topic: str
    name: str | None
    partition_id: int | None


def register(session: Session, wanted: Sequence[Wanted]) -> list[RegistrationResult | Missing]:
    """The id of each, new or as stored before. The same name twice, also in `wanted`, is one producer or consumer.

    The topics are locked until the transaction ends, so that none can be deleted and leave new rows behind.
    """
    topics = _lock_topics(session, {each.topic_id for each in wanted})
    done: dict[int, RegistrationResult | Missing] = {}
    producers: list[tuple[int, WantedProducer]] = []
    consumers: list[tuple[int, WantedConsumer]] = []
    for number, each in enumerate(wanted):
        if each.topic_id not in topics:
            done[number] = Missing.TOPIC
        elif isinstance(each, WantedProducer):
            producers.append((number, each))
        else:
            consumers.append((number, each))
    done |= _register_producers(session, producers)
    done |= _register_consumers(session, consumers)
    return [done[number] for number in range(len(wanted))]


def _lock_topics(session: Session, topic_ids: Iterable[UUID]) -> set[UUID]:
    statement = select(TopicRow.topic_id).where(TopicRow.topic_id.in_(topic_ids)).order_by(TopicRow.name)
    return set(session.scalars(statement.with_for_update(read=True, key_share=True)))


def _register_producers(
    session: Session, wanted: Sequence[tuple[int, WantedProducer]]
) -> dict[int, RegistrationResult]:
    ids = _producers_named(session, _names(wanted))
    new = _first_of_each(wanted, ids)
    first = take_ids(session, "producer", len(new)) if new else 0
    done: dict[int, RegistrationResult] = {}
    rows = []
    for producer_id, (number, each) in enumerate(new, first):
        epoch = 0 if each.opens else None
        rows.append(_producer_row(producer_id, each, epoch))
        done[number] = RegistrationResult(producer_id, True, epoch)
        if each.name is not None:
            ids[each.topic_id, each.name] = producer_id
    if rows:
        _insert(session, ProducerMetadata, rows)
    for number, each in wanted:
        if number in done or each.name is None:
            continue
        producer_id, next_epoch = ids[each.topic_id, each.name], None
        if each.opens:
            next_epoch = catalog.next_epoch(session, producer_id)
            if next_epoch is None:  # all used up: the name goes on with another id
                catalog.release_name(session, producer_id)
                producer_id, next_epoch = take_ids(session, "producer"), 0
                _insert(session, ProducerMetadata, [_producer_row(producer_id, each, next_epoch)])
                ids[each.topic_id, each.name] = producer_id
        done[number] = RegistrationResult(producer_id, False, next_epoch)
    return done


def _producer_row(producer_id: int, wanted: WantedProducer, epoch: int | None) -> dict[str, object]:
    return {
        "producer_id": producer_id,
        "topic_id": wanted.topic_id,
        "topic_name": wanted.topic,
        "name": wanted.name,
        "epoch": epoch,
    }


def _register_consumers(
    session: Session, wanted: Sequence[tuple[int, WantedConsumer]]
) -> dict[int, RegistrationResult | Missing]:
    known = _consumers_named(session, _names(wanted))
    new = _first_of_each([(number, each) for number, each in wanted if each.cursors is not None], known)
    first = take_ids(session, "consumer", len(new)) if new else 0
    done: dict[int, RegistrationResult | Missing] = {}
    rows, cursors = [], []
    for consumer_id, (number, each) in enumerate(new, first):
        row = {"topic_id": each.topic_id, "topic_name": each.topic, "name": each.name}
        rows.append({"consumer_id": consumer_id, "partition_id": each.partition_id, **row})
        cursors += [
            {"consumer_id": consumer_id, "partition_id": at, "topic_name": each.topic, "offset": offset}
            for at, offset in (each.cursors or {}).items()
        ]
        done[number] = RegistrationResult(consumer_id, True, None, each.partition_id)
        if each.name is not None:
            known[each.topic_id, each.name] = consumer_id, each.partition_id
    if rows:
        _insert(session, ConsumerRow, rows)
        _insert(session, ConsumerMetadata, cursors)
    for number, each in wanted:
        if number in done:
            continue
        found = None if each.name is None else known.get((each.topic_id, each.name))
        done[number] = Missing.CONSUMER if found is None else RegistrationResult(found[0], False, None, found[1])
    return done


def _insert(session: Session, table: type[Base], rows: Sequence[Mapping[str, object]]) -> None:
    """Without the ORM, which takes several times as long."""
    session.connection().execute(insert(table.__table__), rows)  # type: ignore[arg-type]


W = TypeVar("W", WantedProducer, WantedConsumer)


def _first_of_each(wanted: Iterable[tuple[int, W]], known: Container[Name]) -> list[tuple[int, W]]:
    """Those to insert: all without a name, and the first of each new name."""
    first: dict[Name | int, tuple[int, W]] = {}
    for number, each in wanted:
        if each.name is None:
            first[number] = number, each
        elif (each.topic_id, each.name) not in known:
            first.setdefault((each.topic_id, each.name), (number, each))
    return list(first.values())


def _names(wanted: Iterable[tuple[int, Wanted]]) -> list[Name]:
    return [(each.topic_id, each.name) for _, each in wanted if each.name is not None]


def _producers_named(session: Session, names: Sequence[Name]) -> dict[Name, int]:
    if not names:
        return {}
    table = ProducerMetadata
    statement = select(table.topic_id, table.name, table.producer_id)
    rows = session.execute(statement.where(tuple_(table.topic_id, table.name).in_(names)))
    return {(topic_id, name): producer_id for topic_id, name, producer_id in rows if name is not None}


def _consumers_named(session: Session, names: Sequence[Name]) -> dict[Name, tuple[int, int | None]]:
    if not names:
        return {}
    statement = select(ConsumerRow.topic_id, ConsumerRow.name, ConsumerRow.consumer_id, ConsumerRow.partition_id)
    rows = session.execute(statement.where(tuple_(ConsumerRow.topic_id, ConsumerRow.name).in_(names)))
    return {(topic_id, name): (found, partition_id) for topic_id, name, found, partition_id in rows if name is not None}


def producer(session: Session, producer_id: int) -> tuple[ProducerIdentity, float] | None:
    """And how long ago it was last used, in seconds."""
    statement = select(ProducerMetadata.topic_id, ProducerMetadata.name, _silent_s(ProducerMetadata.last_seen))
    row = session.execute(statement.where(ProducerMetadata.producer_id == producer_id)).first()
    return None if row is None else (ProducerIdentity(producer_id, row[0], row[1]), row[2])


def consumer(session: Session, consumer_id: int) -> tuple[ConsumerIdentity, float] | None:
    """As for a producer."""
    statement = select(
        ConsumerRow.topic_id,
        ConsumerRow.topic_name,
        ConsumerRow.name,
        ConsumerRow.partition_id,
        _silent_s(ConsumerRow.last_seen),
    )
    row = session.execute(statement.where(ConsumerRow.consumer_id == consumer_id)).first()
    return None if row is None else (ConsumerIdentity(consumer_id, *row[:4]), row[4])


def _silent_s(last_seen: InstrumentedAttribute[datetime]) -> ColumnElement[float]:
    return cast(func.extract("epoch", func.now() - last_seen), Float)


def delete_consumer(session: Session, consumer_id: int) -> bool:
    """False when there is none, or its topic was deleted."""
    there = ConsumerRow.topic_id.in_(select(TopicRow.topic_id))
    gone = delete(ConsumerRow).where(ConsumerRow.consumer_id == consumer_id, there).returning(ConsumerRow.consumer_id)
    return session.execute(gone).first() is not None
