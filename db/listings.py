"""Lists that either manager can answer: a read manager from its standby, the write manager from the primary."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeVar

from sqlalchemy import ColumnElement, func, select, true
from sqlalchemy.orm import Session, aliased

from db import catalog
from db.models import (
    BrokerMetadata,
    ConsumerRow,
    ConsumerStatsHistoryRow,
    ConsumerStatsRow,
    JobRun,
    ManagerMetadata,
    PartitionMetadata,
    PartitionStatsHistoryRow,
    PartitionStatsRow,
    StatsJob,
    TopicMinuteRow,
    TopicRow,
    WriteManagerEpoch,
)
from myqueue.protocol import answers, routes
from myqueue.protocol.errors import ConsumerNotFound, InvalidRequest, TopicNotFound
from myqueue.protocol.limits import MAX_STATS_ROWS
from myqueue.protocol.models import (
    MINUTE_MS,
    AskConsumerStats,
    AskPartitionStats,
    AskTopicStats,
    ListConsumers,
    ListRuns,
    Nothing,
    Query,
)
from myqueue.protocol.routes import Route

H = TypeVar("H", PartitionStatsHistoryRow, ConsumerStatsHistoryRow)


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
                last_heartbeat=_ms(row.last_heartbeat),
            )
            for row in session.scalars(select(BrokerMetadata).order_by(BrokerMetadata.broker_id))
        ],
        read_managers=[
            answers.ClusterManager(name=row.name, state=_state(row.status), last_heartbeat=_ms(row.last_heartbeat))
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
        _check_topic(session, query.topic)
        statement = statement.where(TopicRow.name == query.topic)
    if query.name is not None:
        statement = statement.where(ConsumerRow.name == query.name)
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


def _runs(session: Session, query: ListRuns) -> answers.RunList:
    statement = select(JobRun).order_by(JobRun.run_id.desc()).limit(query.limit)
    if query.job is not None:
        statement = statement.where(JobRun.job == query.job)
    return answers.RunList(runs=[_run(run) for run in session.scalars(statement)])


def _run(run: JobRun) -> answers.Run:
    return answers.Run(
        run_id=run.run_id,
        job=run.job,
        holder=run.holder,
        trigger=run.trigger,
        tick=run.tick,
        started_at=_ms(run.started_at),
        ended_at=None if run.ended_at is None else _ms(run.ended_at),
        outcome=run.outcome,
        rows=run.rows,
        message=run.message,
    )


def _partitions(session: Session, query: AskPartitionStats) -> answers.PartitionStatsList:
    statement = (
        select(TopicRow.name, PartitionStatsRow)
        .join(TopicRow, TopicRow.topic_id == PartitionStatsRow.topic_id)
        .join(StatsJob, _counts(PartitionStatsRow))
    )
    if query.topic is not None:
        _check_topic(session, query.topic)
        statement = statement.where(TopicRow.name == query.topic)
    found = session.execute(statement.order_by(TopicRow.name, PartitionStatsRow.partition_id)).all()
    rows = [row for _, row in found]
    key = ("topic_id", "partition_id")
    past = _history(session, PartitionStatsRow, PartitionStatsHistoryRow, key, rows, query.history)
    return answers.PartitionStatsList(
        partitions=[
            answers.PartitionStats(
                topic=topic,
                partition_id=row.partition_id,
                **_partition_figures(row),
                bytes_exact=row.bytes_exact,
                log_end_offset=row.log_end_offset,
                first_timestamp=row.first_timestamp,
                last_timestamp=row.last_timestamp,
                gaps=row.gaps,
                duplicates=row.duplicates,
                job=row.job,
                history=[
                    answers.PartitionFigures(**_partition_figures(each))
                    for each in past.get((row.topic_id, row.partition_id), ())
                ],
            )
            for topic, row in found
        ]
    )


def _history(
    session: Session,
    table: type[PartitionStatsRow | ConsumerStatsRow],
    history: type[H],
    key: tuple[str, str],
    found: Sequence[PartitionStatsRow | ConsumerStatsRow],
    count: int,
) -> dict[tuple[Any, int], list[H]]:
    """The last `count` history rows of each found row, the newest first."""
    if len(found) * count > MAX_STATS_ROWS:
        raise InvalidRequest(
            f"history: {count} for each of {len(found)} is more than {MAX_STATS_ROWS} in all;"
            " ask for less, or for one topic"
        )
    if not (found and count):
        return {}
    owner, _ = key
    last = (
        select(history)
        .where(*(getattr(history, name) == getattr(table, name) for name in key))
        .order_by(history.computed_at.desc())
        .limit(count)
        .lateral()
    )
    statement = (
        select(aliased(history, last))
        .select_from(table)
        .join(last, true())
        .where(getattr(table, owner).in_({getattr(row, owner) for row in found}))
        .order_by(last.c.computed_at.desc())
    )
    past: dict[tuple[Any, int], list[H]] = {}
    for row in session.scalars(statement):
        past.setdefault((getattr(row, owner), row.partition_id), []).append(row)
    return past


def _partition_figures(row: PartitionStatsRow | PartitionStatsHistoryRow) -> dict[str, Any]:
    return {
        "messages": row.end_offset - row.first_offset,
        "bytes": row.bytes,
        "first_offset": row.first_offset,
        "end_offset": row.end_offset,
        "rate_per_minute": row.rate_per_minute,
        "computed_at": _ms(row.computed_at),
    }


def _lags(session: Session, query: AskConsumerStats) -> answers.ConsumerStatsList:
    measured = (
        select(ConsumerRow.consumer_id)
        .join(TopicRow, TopicRow.topic_id == ConsumerRow.topic_id)
        .where(select(1).where(ConsumerStatsRow.consumer_id == ConsumerRow.consumer_id).exists())
    )
    if query.topic is not None:
        _check_topic(session, query.topic)
        measured = measured.where(TopicRow.name == query.topic)
    if query.consumer_id is not None:
        if catalog.consumer(session, query.consumer_id) is None:
            raise ConsumerNotFound()
        measured = measured.where(ConsumerRow.consumer_id == query.consumer_id)
    if query.after is not None:
        measured = measured.where(ConsumerRow.consumer_id > query.after)
    ids = session.scalars(measured.order_by(ConsumerRow.consumer_id).limit(query.limit + 1)).all()
    statement = (
        select(ConsumerRow.topic_name, ConsumerRow.name, ConsumerStatsRow)
        .join(ConsumerRow, ConsumerRow.consumer_id == ConsumerStatsRow.consumer_id)
        .where(ConsumerStatsRow.consumer_id.in_(ids[: query.limit]))
        .order_by(ConsumerStatsRow.consumer_id, ConsumerStatsRow.partition_id)
    )
    found = session.execute(statement.limit(MAX_STATS_ROWS + 1)).all()
    is_last = len(ids) <= query.limit
    if len(found) > MAX_STATS_ROWS:  # a page ends with all partitions of a consumer
        cut = found[-1][2].consumer_id
        found, is_last = [each for each in found if each[2].consumer_id != cut], False
    rows = [row for _, _, row in found]
    key = ("consumer_id", "partition_id")
    past = _history(session, ConsumerStatsRow, ConsumerStatsHistoryRow, key, rows, query.history)
    return answers.ConsumerStatsList(
        consumers=[
            answers.ConsumerStats(
                consumer_id=row.consumer_id,
                name=name,
                topic=topic,
                partition_id=row.partition_id,
                **_lag_figures(row),
                history=[
                    answers.LagFigures(**_lag_figures(each))
                    for each in past.get((row.consumer_id, row.partition_id), ())
                ],
            )
            for topic, name, row in found
        ],
        next=None if is_last else found[-1][2].consumer_id,
    )


def _lag_figures(row: ConsumerStatsRow | ConsumerStatsHistoryRow) -> dict[str, Any]:
    return {
        "cursor": row.cursor,
        "end_offset": row.end_offset,
        "messages": row.messages,
        "bytes": row.bytes,
        "seconds": row.seconds,
        "computed_at": _ms(row.computed_at),
    }


def _minutes(session: Session, query: AskTopicStats) -> answers.TopicMinuteList:
    since = time.time_ns() // 1_000_000 - query.minutes * MINUTE_MS
    statement = (
        select(TopicRow.name, TopicMinuteRow)
        .join(TopicRow, TopicRow.topic_id == TopicMinuteRow.topic_id)
        .join(StatsJob, _counts(TopicMinuteRow))
    )
    if query.topic is not None:
        _check_topic(session, query.topic)
        statement = statement.where(TopicRow.name == query.topic)
    statement = statement.where(TopicMinuteRow.minute > since).order_by(TopicMinuteRow.minute.desc(), TopicRow.name)
    return answers.TopicMinuteList(
        topics=[
            answers.MinuteFigures(topic=topic, minute=row.minute, messages=row.messages, bytes=row.bytes)
            for topic, row in session.execute(statement.limit(MAX_STATS_ROWS))
        ]
    )


def _counts(table: type[PartitionStatsRow | TopicMinuteRow]) -> ColumnElement[bool]:
    """Only rows of the current generation count."""
    return (StatsJob.job == table.job) & (StatsJob.generation == table.generation)


def _check_topic(session: Session, name: str) -> None:
    if session.scalar(select(TopicRow.name).where(TopicRow.name == name)) is None:
        raise TopicNotFound()


def _ms(when: datetime) -> int:
    return round(when.timestamp() * 1000)


LISTINGS = {
    listing.route.name: listing
    for listing in (
        Listing(routes.CLUSTER, Nothing, _cluster),
        Listing(routes.LIST_CONSUMERS, ListConsumers, _consumers),
        Listing(routes.LIST_RUNS, ListRuns, _runs),
        Listing(routes.PARTITION_STATS, AskPartitionStats, _partitions),
        Listing(routes.CONSUMER_STATS, AskConsumerStats, _lags),
        Listing(routes.TOPIC_STATS, AskTopicStats, _minutes),
    )
}
