"""Lists of the catalog that either manager can answer: a read manager from its standby, the write manager from the
primary."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from db.models import (
    BrokerMetadata,
    ConsumerRow,
    ManagerMetadata,
    PartitionMetadata,
    TopicRow,
    WriteManagerEpoch,
)
from myqueue.protocol import answers, routes
from myqueue.protocol.errors import TopicNotFound
from myqueue.protocol.models import ListConsumers, Nothing, Query
from myqueue.protocol.routes import Route


@dataclass(frozen=True, slots=True)
class Listing:
    route: Route
    query: type[Query]
    read: Callable[[Session, Any], answers.Answer]  # raises when the topic or consumer in the query does not exist


def _cluster(session: Session, _: Nothing) -> answers.Cluster:
    """Without the databases: the manager that answers adds them."""
    partitions = session.execute(select(PartitionMetadata.broker_id, PartitionMetadata.replicas)).all()
    leads = [leader for leader, _ in partitions]
    holds = [broker_id for _, replicas in partitions for broker_id in replicas]
    writer = session.get(WriteManagerEpoch, 1)
    return answers.Cluster(
        brokers=[
            answers.ClusterBroker(
                broker_id=row.broker_id,
                state=_state(row.status),
                leads=leads.count(row.broker_id),
                holds=holds.count(row.broker_id),
                last_heartbeat=milliseconds(row.last_heartbeat),
            )
            for row in session.scalars(select(BrokerMetadata).order_by(BrokerMetadata.broker_id))
        ],
        read_managers=[
            answers.ClusterManager(
                name=row.name, state=_state(row.status), last_heartbeat=milliseconds(row.last_heartbeat)
            )
            for row in session.scalars(select(ManagerMetadata).order_by(ManagerMetadata.name))
        ],
        write_manager=None if writer is None else answers.ClusterWriter(name=writer.holder, epoch=writer.epoch),
        databases=[],
        topics=session.scalar(select(func.count()).select_from(TopicRow)) or 0,
        partitions=len(partitions),
    )


def _state(status: str) -> Literal["active", "inactive"]:
    return "active" if status == "active" else "inactive"


def _consumers(session: Session, query: ListConsumers) -> answers.ConsumerList:
    # Rows of a deleted topic may be left for a while.
    statement = select(ConsumerRow.consumer_id, TopicRow.name, ConsumerRow.name, ConsumerRow.partition_id).join(
        TopicRow, TopicRow.topic_id == ConsumerRow.topic_id
    )
    if query.topic is not None:
        check_topic(session, query.topic)
        statement = statement.where(TopicRow.name == query.topic)
    if query.name is not None:
        statement = statement.where(ConsumerRow.name == query.name)
    if query.active_since is not None:
        is_in_use = ConsumerRow.last_seen >= time_of(query.active_since)
        statement = statement.where(or_(ConsumerRow.name.is_not(None), is_in_use))
    if query.after is not None:
        statement = statement.where(ConsumerRow.consumer_id > query.after)
    found = session.execute(statement.order_by(ConsumerRow.consumer_id).limit(query.limit + 1)).all()
    page = found[: query.limit]
    return answers.ConsumerList(
        consumers=[
            answers.ListedConsumer(consumer_id=consumer_id, topic=topic, name=name, partition_id=partition_id)
            for consumer_id, topic, name, partition_id in page
        ],
        next=page[-1].consumer_id if len(found) > len(page) else None,
    )


def check_topic(session: Session, name: str) -> None:
    if session.scalar(select(TopicRow.name).where(TopicRow.name == name)) is None:
        raise TopicNotFound()


def milliseconds(when: datetime) -> int:
    return round(when.timestamp() * 1000)


LAST_MS = milliseconds(datetime(9999, 1, 1, tzinfo=UTC))


def time_of(ms: int) -> datetime:
    """Of a moment in a query; what lies beyond the last one is that."""
    return datetime.fromtimestamp(min(ms, LAST_MS) / 1000, UTC)


CATALOG_LISTINGS = (
    Listing(routes.CLUSTER, Nothing, _cluster),
    Listing(routes.LIST_CONSUMERS, ListConsumers, _consumers),
)
