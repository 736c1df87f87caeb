"""The catalog: queries and changes of topics, partitions, producers and consumers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import ColumnElement, func, or_, select, text, update
from sqlalchemy.orm import Session

from db import broker_registry
from db.models import ConsumerMetadata, ConsumerRow, DeletedTopic, PartitionMetadata, ProducerMetadata, TopicRow
from myqueue.protocol.internal import PartitionRecord, PartitionReport, TopicRecord
from myqueue.protocol.limits import MAX_PRODUCER_EPOCH

Voter = tuple[int, str]  # broker id, incarnation of its replica


class ReplicaStates(NamedTuple):
    """Of one partition, as its brokers reported them."""

    damaged: Mapping[int, str]  # why, by broker
    voters: Sequence[int] | None


@dataclass(frozen=True, slots=True)
class LockedTopic:
    topic_id: UUID
    partitions: int


def topic_names(session: Session) -> list[str]:
    return sorted(session.scalars(select(TopicRow.name)))


def topic_record(session: Session, name: str) -> TopicRecord | None:
    topic = session.get(TopicRow, name)
    if topic is None:
        return None
    return _records(session, [topic])[0]


def topic_records(session: Session) -> list[TopicRecord]:
    return _records(session, list(session.scalars(select(TopicRow).order_by(TopicRow.name))))


def _records(session: Session, topics: Sequence[TopicRow]) -> list[TopicRecord]:
    alive = {
        broker.broker_id: broker.endpoint for broker in broker_registry.brokers(session) if broker.status == "active"
    }
    rows = session.scalars(
        select(PartitionMetadata)
        .where(PartitionMetadata.topic_name.in_([topic.name for topic in topics]))
        .order_by(PartitionMetadata.topic_name, PartitionMetadata.partition_id)
    )
    partitions: dict[str, list[PartitionRecord]] = {topic.name: [] for topic in topics}
    for partition in rows:
        partitions[partition.topic_name].append(
            {
                "partition_id": partition.partition_id,
                "broker_id": partition.broker_id,
                "endpoints": [alive[b] for b in leader_first(partition.broker_id, partition.replicas) if b in alive],
                "term": partition.term,
                "replicas": list(partition.replicas),
                "beginning_offset": partition.beginning_offset,
                "end_offset": partition.end_offset,
                "size_bytes": partition.size_bytes,
                "damaged": [{"broker_id": int(b), "reason": why} for b, why in partition.damaged.items()],
                "voters": None if partition.voters is None else list(partition.voters),
            }
        )
    return [
        {
            "name": topic.name,
            "topic_id": str(topic.topic_id),
            "replication": topic.replication,
            "retention_ms": topic.retention_ms,
            "retention_bytes": topic.retention_bytes,
            "partitions": partitions[topic.name],
        }
        for topic in topics
    ]


def leader_first(leader: int | None, replicas: Sequence[int]) -> list[int]:
    return sorted(replicas, key=lambda broker_id: broker_id != leader)


def insert_topic(session: Session, topic: TopicRow, voters: Sequence[Sequence[Voter]]) -> None:
    """`voters` has the initial voters of each partition, the preferred leader first."""
    session.add(topic)
    session.flush()
    first = take_ids(session, "partition", len(voters))
    session.add_all(
        PartitionMetadata(
            id=first + number,
            topic_name=topic.name,
            partition_id=number,
            broker_id=None,
            replicas=[broker_id for broker_id, _ in members],
            initial_voters=[list(member) for member in members],
        )
        for number, members in enumerate(voters)
    )
    session.flush()


def set_retention(session: Session, topic_id: UUID, retention_ms: int | None, retention_bytes: int | None) -> bool:
    """False when the topic is not there."""
    values = {"retention_ms": retention_ms, "retention_bytes": retention_bytes}
    changed = update(TopicRow).where(TopicRow.topic_id == topic_id).values(**values).returning(TopicRow.name)
    return session.scalar(changed) is not None


def initial_voters(session: Session) -> dict[str, dict[int, tuple[Voter, ...]]]:
    """Of all partitions of all topics."""
    found: dict[str, dict[int, tuple[Voter, ...]]] = {}
    for name, partition_id, members in session.execute(
        select(PartitionMetadata.topic_name, PartitionMetadata.partition_id, PartitionMetadata.initial_voters)
    ):
        found.setdefault(name, {})[partition_id] = tuple((b, incarnation) for b, incarnation in members)
    return found


def set_replicas(
    session: Session, topic_id: UUID, partition_id: int, expected: Sequence[int], replicas: Sequence[int]
) -> bool:
    """False unless the stored ones are those that the change was decided on, or the change was made before."""
    stored = PartitionMetadata.replicas
    changed = session.execute(
        update(PartitionMetadata)
        .where(*_is_partition(topic_id, partition_id), or_(stored == list(expected), stored == list(replicas)))
        .values(replicas=list(replicas))
    )
    return bool(changed.rowcount)  # type: ignore[attr-defined]


def reset_partition(
    session: Session, topic_id: UUID, partition_id: int, expected: Sequence[Voter], voters: Sequence[Voter]
) -> bool:
    """Another group under the same name, with nothing in it. False and no change as for `set_replicas`."""
    stored, before, after = PartitionMetadata.initial_voters, _voter_rows(expected), _voter_rows(voters)
    changed = session.execute(
        update(PartitionMetadata)
        .where(*_is_partition(topic_id, partition_id), or_(stored == before, stored == after))
        .values(initial_voters=after, broker_id=None, term=0, beginning_offset=0, end_offset=0, size_bytes=0)
    )
    return bool(changed.rowcount)  # type: ignore[attr-defined]


def _is_partition(topic_id: UUID, partition_id: int) -> tuple[ColumnElement[bool], ...]:
    """By the topic's id: another topic may have its name by now."""
    name = select(TopicRow.name).where(TopicRow.topic_id == topic_id).scalar_subquery()
    return PartitionMetadata.topic_name == name, PartitionMetadata.partition_id == partition_id


def _voter_rows(voters: Sequence[Voter]) -> list[list[int | str]]:
    return [list(voter) for voter in voters]


def delete_topic(session: Session, name: str) -> None:
    """With its partitions. Its id is kept: replicas, producers and consumers of it are deleted later."""
    topic = session.get(TopicRow, name)
    if topic is None:
        return
    session.add(DeletedTopic(topic_id=topic.topic_id, name=name))
    session.delete(topic)
    session.flush()


def lock_topics(session: Session, names: Iterable[str]) -> dict[str, LockedTopic]:
    """Those of the topics that exist: none of them can be deleted before the transaction ends."""
    locked = session.execute(
        select(TopicRow.name, TopicRow.topic_id)
        .where(TopicRow.name.in_(names))
        .order_by(TopicRow.name)
        .with_for_update(read=True, key_share=True)
    ).all()
    topic_name = PartitionMetadata.topic_name
    statement = select(topic_name, func.count()).where(topic_name.in_([name for name, _ in locked]))
    counts = dict(session.execute(statement.group_by(topic_name)).all())
    return {name: LockedTopic(topic_id, counts[name]) for name, topic_id in locked}


def deleted_topics(session: Session) -> set[str]:
    return {str(topic_id) for topic_id in session.scalars(select(DeletedTopic.topic_id))}


def record_reports(
    session: Session,
    names: Mapping[str, str],
    reports: Mapping[int, Iterable[PartitionReport]],
    states: Mapping[tuple[str, int], ReplicaStates],
) -> None:
    """Store the reports of leaders, and the states of replicas (by topic id and partition id).

    `names` maps topic ids to names; an older term never overwrites. In the order of the partitions: all transactions
    that change several of these rows lock them in the same order.
    """
    changes: list[tuple[str, int, int, list[ColumnElement[bool]], dict[str, Any]]] = [
        (
            names[report["topic_id"]],
            report["partition_id"],
            broker_id,
            [PartitionMetadata.term <= report["term"]],
            {
                "broker_id": broker_id,
                "term": report["term"],
                "beginning_offset": report["beginning_offset"],
                "end_offset": report["end_offset"],
                "size_bytes": report["size_bytes"],
            },
        )
        for broker_id, of_broker in reports.items()
        for report in of_broker
        if report["topic_id"] in names and report["role"] == "leader"
    ]
    changes += [
        (
            names[topic_id],
            partition_id,
            0,
            [],
            {"damaged": {str(b): why for b, why in state.damaged.items()}, "voters": state.voters},
        )
        for (topic_id, partition_id), state in states.items()
        if topic_id in names
    ]
    for name, partition_id, _, conditions, values in sorted(changes, key=lambda change: change[:3]):
        is_row = (PartitionMetadata.topic_name == name, PartitionMetadata.partition_id == partition_id)
        session.execute(update(PartitionMetadata).where(*is_row, *conditions).values(**values))


def remove_voter(session: Session, broker_id: int) -> None:
    """The broker has lost its data: none of its replicas counts until a leader reports it again."""
    voters = PartitionMetadata.voters
    remaining = func.array_remove(voters, broker_id)
    session.execute(update(PartitionMetadata).where(voters.contains([broker_id])).values(voters=remaining))


def next_epoch(session: Session, producer_id: int) -> int | None:
    """A new epoch of the producer, counted from 0; None when it has used up all of them."""
    epoch: int | None = session.scalar(
        update(ProducerMetadata)
        .where(
            ProducerMetadata.producer_id == producer_id,
            func.coalesce(ProducerMetadata.epoch, -1) < MAX_PRODUCER_EPOCH,
        )
        .values(epoch=func.coalesce(ProducerMetadata.epoch, -1) + 1)
        .returning(ProducerMetadata.epoch)
    )
    return epoch


def release_name(session: Session, producer_id: int) -> None:
    """The producer continues without its name, which another producer may then have."""
    session.execute(update(ProducerMetadata).where(ProducerMetadata.producer_id == producer_id).values(name=None))


def lock_consumers(session: Session, consumer_ids: Iterable[int]) -> dict[int, tuple[UUID, int | None]]:
    """Topic and partition of those of the consumers that exist; they stay until the transaction ends.

    Partition None: it reads all of them.
    """
    rows = session.execute(
        select(ConsumerRow.consumer_id, ConsumerRow.topic_id, ConsumerRow.partition_id)
        .where(ConsumerRow.consumer_id.in_(consumer_ids))
        .order_by(ConsumerRow.consumer_id)
        .with_for_update(read=True, key_share=True)
    )
    return {consumer_id: (topic_id, partition_id) for consumer_id, topic_id, partition_id in rows}


def consumer(session: Session, consumer_id: int) -> ConsumerRow | None:
    """None also when its topic was deleted."""
    statement = select(ConsumerRow).join(TopicRow, TopicRow.topic_id == ConsumerRow.topic_id)
    return session.scalar(statement.where(ConsumerRow.consumer_id == consumer_id))


def cursors(session: Session, consumer_id: int) -> list[ConsumerMetadata]:
    return list(
        session.scalars(
            select(ConsumerMetadata)
            .where(ConsumerMetadata.consumer_id == consumer_id)
            .order_by(ConsumerMetadata.partition_id)
        )
    )


def take_ids(session: Session, kind: str, count: int = 1) -> int:
    """The first of `count` new ids, counted from 0 without holes. The row stays locked until the transaction ends."""
    first: int = session.execute(
        text(
            "INSERT INTO id_counter (kind, next_id) VALUES (:kind, :count) ON CONFLICT (kind) DO UPDATE"
            " SET next_id = id_counter.next_id + :count RETURNING next_id - :count"
        ),
        {"kind": kind, "count": count},
    ).scalar_one()
    return first


def next_id(session: Session, kind: str) -> int:
    """The id that would be taken next."""
    found = session.execute(text("SELECT next_id FROM id_counter WHERE kind = :kind"), {"kind": kind}).scalar()
    return 0 if found is None else int(found)
