"""Lists of statistics that either manager can answer."""

import time
from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, func, select, true
from sqlalchemy.orm import Session, aliased

from db import catalog
from db.listings import CATALOG_LISTINGS, Listing, check_topic, milliseconds, time_of
from db.models import (
    ConsumerRow,
    ConsumerStatsHistoryRow,
    ConsumerStatsRow,
    ConsumerTotalsHistoryRow,
    JobRun,
    PartitionStatsHistoryRow,
    PartitionStatsRow,
    StatsJob,
    TopicMinuteRow,
    TopicRow,
    TopicStatsHistoryRow,
)
from db.stats_points import PointsInRange, catch_up_seconds, point_ms, points_of, rates_between
from myqueue.protocol import routes, stats_answers
from myqueue.protocol.errors import ConsumerNotFound
from myqueue.protocol.limits import MAX_STATS_ROWS
from myqueue.protocol.models import MINUTE_MS
from myqueue.protocol.stats_queries import (
    AskConsumerStats,
    AskConsumerTotals,
    AskPartitionStats,
    AskTopicStats,
    AskTopicTotals,
    HistoryQuery,
    ListRuns,
)

_NO_POINTS: PointsInRange[Any] = PointsInRange([])


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _runs(session: Session, query: ListRuns) -> stats_answers.RunList:
    statement = select(JobRun).order_by(JobRun.run_id.desc()).limit(query.limit)
    if query.job is not None:
        statement = statement.where(JobRun.job == query.job)
    if query.before is not None:
        statement = statement.where(JobRun.run_id < query.before)
    wanted = query.time_range(_now_ms())
    if wanted is not None:
        statement = statement.where(
            JobRun.started_at >= time_of(wanted.start_ms), JobRun.started_at < time_of(wanted.end_ms)
        )
    return stats_answers.RunList(
        runs=[
            stats_answers.Run(
                run_id=run.run_id,
                job=run.job,
                holder=run.holder,
                trigger=run.trigger,
                tick=run.tick,
                started_at=milliseconds(run.started_at),
                ended_at=None if run.ended_at is None else milliseconds(run.ended_at),
                outcome=run.outcome,
                rows=run.rows,
                left_out=run.left_out,
                message=run.message,
            )
            for run in session.scalars(statement)
        ]
    )


def _partitions(session: Session, query: AskPartitionStats) -> stats_answers.PartitionStatsList:
    statement = (
        select(TopicRow.name, PartitionStatsRow)
        .join(TopicRow, TopicRow.topic_id == PartitionStatsRow.topic_id)
        .join(StatsJob, _counts(PartitionStatsRow))
    )
    if query.topic is not None:
        check_topic(session, query.topic)
        statement = statement.where(TopicRow.name == query.topic)
    found = session.execute(statement.order_by(TopicRow.name, PartitionStatsRow.partition_id)).all()
    keys = [(row.topic_id, row.partition_id) for _, row in found]
    past = points_of(session, PartitionStatsHistoryRow, keys, query, _now_ms())
    return stats_answers.PartitionStatsList(
        partitions=[
            stats_answers.PartitionStats(
                topic=topic,
                partition_id=row.partition_id,
                **_partition_figures(row, row.rate_per_minute),
                bytes_exact=row.bytes_exact,
                log_end_offset=row.log_end_offset,
                first_timestamp=row.first_timestamp,
                last_timestamp=row.last_timestamp,
                gaps=row.gaps,
                duplicates=row.duplicates,
                job=row.job,
                history=_partition_history(past.get((row.topic_id, row.partition_id), _NO_POINTS), query),
            )
            for topic, row in found
        ]
    )


def _partition_history(
    past: PointsInRange[PartitionStatsHistoryRow], query: HistoryQuery
) -> list[stats_answers.PartitionFigures]:
    rates = rates_between(past, lambda point: point.end_offset)
    if query.history:  # as they were stored: each since the run before
        rates = [point.rate_per_minute for point in past.points]
    return [
        stats_answers.PartitionFigures(**_partition_figures(point, rate))
        for point, rate in zip(past.points, rates, strict=True)
    ]


def _partition_figures(row: PartitionStatsRow | PartitionStatsHistoryRow, rate_in: float | None) -> dict[str, Any]:
    return {
        "messages": row.end_offset - row.first_offset,
        "payload_bytes": row.bytes,
        "stored_bytes": row.stored_bytes,
        "first_offset": row.first_offset,
        "end_offset": row.end_offset,
        "rate_in_per_minute": rate_in,
        "rate_out_per_minute": row.rate_out_per_minute,
        "computed_at": point_ms(row.computed_at),
        "bytes": row.bytes,
        "rate_per_minute": rate_in,
    }


def _topic_totals(session: Session, query: AskTopicTotals) -> stats_answers.TopicTotalsList:
    last = (
        select(TopicStatsHistoryRow)
        .where(TopicStatsHistoryRow.topic_id == TopicRow.topic_id)
        .order_by(TopicStatsHistoryRow.computed_at.desc())
        .limit(1)
        .lateral()
    )
    statement = select(TopicRow.name, aliased(TopicStatsHistoryRow, last)).join(last, true()).order_by(TopicRow.name)
    if query.topic is not None:
        check_topic(session, query.topic)
        statement = statement.where(TopicRow.name == query.topic)
    found = session.execute(statement).all()
    past = points_of(session, TopicStatsHistoryRow, [(row.topic_id,) for _, row in found], query, _now_ms())
    totals = []
    for topic, row in found:
        series = past.get((row.topic_id,), _NO_POINTS)
        rates = rates_between(series, lambda point: point.end_offsets)
        if query.history:
            rates = [point.rate_in_per_minute for point in series.points]
        history = [
            stats_answers.TopicFigures(**_topic_figures(*each)) for each in zip(series.points, rates, strict=True)
        ]
        current = _topic_figures(row, row.rate_in_per_minute)
        totals.append(stats_answers.TopicTotals(topic=topic, **current, history=history))
    return stats_answers.TopicTotalsList(topics=totals)


def _topic_figures(row: TopicStatsHistoryRow, rate_in: float | None) -> dict[str, Any]:
    return {
        "partitions": row.partitions,
        "messages": row.messages,
        "payload_bytes": row.payload_bytes,
        "stored_bytes": row.stored_bytes,
        "end_offsets": row.end_offsets,
        "skew": row.skew,
        "rate_in_per_minute": rate_in,
        "rate_out_per_minute": row.rate_out_per_minute,
        "computed_at": point_ms(row.computed_at),
    }


def _measured(
    session: Session, query: AskConsumerStats | AskConsumerTotals, measured: ColumnElement[bool]
) -> Sequence[int]:
    """The consumers of a page, and one more if there is another page."""
    statement = (
        select(ConsumerRow.consumer_id).join(TopicRow, TopicRow.topic_id == ConsumerRow.topic_id).where(measured)
    )
    if query.topic is not None:
        check_topic(session, query.topic)
        statement = statement.where(TopicRow.name == query.topic)
    if query.consumer_id is not None:
        if catalog.consumer(session, query.consumer_id) is None:
            raise ConsumerNotFound()
        statement = statement.where(ConsumerRow.consumer_id == query.consumer_id)
    if query.after is not None:
        statement = statement.where(ConsumerRow.consumer_id > query.after)
    return session.scalars(statement.order_by(ConsumerRow.consumer_id).limit(query.limit + 1)).all()


def _lags(session: Session, query: AskConsumerStats) -> stats_answers.ConsumerStatsList:
    has_figures = select(1).where(ConsumerStatsRow.consumer_id == ConsumerRow.consumer_id).exists()
    ids = _measured(session, query, has_figures)
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
    keys = [(row.consumer_id, row.partition_id) for _, _, row in found]
    past = points_of(session, ConsumerStatsHistoryRow, keys, query, _now_ms())
    return stats_answers.ConsumerStatsList(
        consumers=[
            stats_answers.ConsumerStats(
                consumer_id=row.consumer_id,
                name=name,
                topic=topic,
                partition_id=row.partition_id,
                **_lag_figures(row, row.rate_in_per_minute, row.rate_out_per_minute),
                history=_lag_history(past.get((row.consumer_id, row.partition_id), _NO_POINTS), query),
            )
            for topic, name, row in found
        ],
        next=None if is_last else found[-1][2].consumer_id,
    )


def _lag_history(past: PointsInRange[ConsumerStatsHistoryRow], query: HistoryQuery) -> list[stats_answers.LagFigures]:
    rates_in = rates_between(past, lambda point: point.end_offset)
    rates_out = rates_between(past, lambda point: point.cursor)
    if query.history:
        rates_in = [point.rate_in_per_minute for point in past.points]
        rates_out = [point.rate_out_per_minute for point in past.points]
    return [
        stats_answers.LagFigures(**_lag_figures(*each)) for each in zip(past.points, rates_in, rates_out, strict=True)
    ]


def _lag_figures(
    row: ConsumerStatsRow | ConsumerStatsHistoryRow, rate_in: float | None, rate_out: float | None
) -> dict[str, Any]:
    return {
        "cursor": row.cursor,
        "end_offset": row.end_offset,
        "messages": row.messages,
        "stored_bytes": row.bytes,
        "seconds": row.seconds,
        "rate_in_per_minute": rate_in,
        "rate_out_per_minute": rate_out,
        "catch_up_seconds": catch_up_seconds(row.messages, rate_in, rate_out),
        "computed_at": point_ms(row.computed_at),
        "bytes": row.bytes,
    }


def _consumer_totals(session: Session, query: AskConsumerTotals) -> stats_answers.ConsumerTotalsList:
    has_points = select(1).where(ConsumerTotalsHistoryRow.consumer_id == ConsumerRow.consumer_id).exists()
    ids = _measured(session, query, has_points)
    last = (
        select(ConsumerTotalsHistoryRow)
        .where(ConsumerTotalsHistoryRow.consumer_id == ConsumerRow.consumer_id)
        .order_by(ConsumerTotalsHistoryRow.computed_at.desc())
        .limit(1)
        .lateral()
    )
    statement = (
        select(ConsumerRow.topic_name, ConsumerRow.name, aliased(ConsumerTotalsHistoryRow, last))
        .join(last, true())
        .where(ConsumerRow.consumer_id.in_(ids[: query.limit]))
        .order_by(ConsumerRow.consumer_id)
    )
    found = session.execute(statement).all()
    past = points_of(session, ConsumerTotalsHistoryRow, [(row.consumer_id,) for _, _, row in found], query, _now_ms())
    totals = []
    for topic, name, row in found:
        series = past.get((row.consumer_id,), _NO_POINTS)
        rates_in = rates_between(series, lambda point: point.end_offsets)
        rates_out = rates_between(series, lambda point: point.cursors)
        if query.history:
            rates_in = [point.rate_in_per_minute for point in series.points]
            rates_out = [point.rate_out_per_minute for point in series.points]
        history = [
            stats_answers.ConsumerFigures(**_consumer_figures(*each))
            for each in zip(series.points, rates_in, rates_out, strict=True)
        ]
        current = _consumer_figures(row, row.rate_in_per_minute, row.rate_out_per_minute)
        totals.append(
            stats_answers.ConsumerTotals(
                consumer_id=row.consumer_id, name=name, topic=topic, **current, history=history
            )
        )
    return stats_answers.ConsumerTotalsList(
        consumers=totals, next=totals[-1].consumer_id if totals and len(ids) > query.limit else None
    )


def _consumer_figures(row: ConsumerTotalsHistoryRow, rate_in: float | None, rate_out: float | None) -> dict[str, Any]:
    return {
        "partitions": row.partitions,
        "messages": row.messages,
        "stored_bytes": row.stored_bytes,
        "seconds": row.seconds,
        "cursors": row.cursors,
        "end_offsets": row.end_offsets,
        "rate_in_per_minute": rate_in,
        "rate_out_per_minute": rate_out,
        "catch_up_seconds": row.catch_up_seconds,
        "computed_at": point_ms(row.computed_at),
    }


def _minutes(session: Session, query: AskTopicStats) -> stats_answers.TopicMinuteList:
    now_ms = _now_ms()
    wanted = query.time_range(now_ms)
    step_ms = (wanted.step_ms if wanted else None) or MINUTE_MS
    start = (TopicMinuteRow.minute // step_ms * step_ms).label("start")  # integers: what is left over is dropped
    messages, size = func.sum(TopicMinuteRow.messages), func.sum(TopicMinuteRow.bytes)
    statement = (
        select(TopicRow.name, start, messages, size)
        .join(TopicRow, TopicRow.topic_id == TopicMinuteRow.topic_id)
        .join(StatsJob, _counts(TopicMinuteRow))
        .group_by(TopicRow.name, start)
    )
    if query.topic is not None:
        check_topic(session, query.topic)
        statement = statement.where(TopicRow.name == query.topic)
    if wanted is None or (query.last is None and query.from_ is None and query.to is None):
        statement = statement.where(TopicMinuteRow.minute > now_ms - query.minutes * MINUTE_MS)
    else:
        statement = statement.where(TopicMinuteRow.minute >= wanted.start_ms, TopicMinuteRow.minute < wanted.end_ms)
    statement = statement.order_by(start.desc(), TopicRow.name).limit(MAX_STATS_ROWS)
    return stats_answers.TopicMinuteList(
        topics=[
            stats_answers.MinuteFigures(
                topic=topic, minute=int(minute), messages=int(count), payload_bytes=int(total), bytes=int(total)
            )
            for topic, minute, count, total in session.execute(statement)
        ]
    )


def _counts(table: type[PartitionStatsRow | TopicMinuteRow]) -> ColumnElement[bool]:
    """Only rows of the current generation count."""
    return (StatsJob.job == table.job) & (StatsJob.generation == table.generation)


STATS_LISTINGS = (
    Listing(routes.LIST_RUNS, ListRuns, _runs),
    Listing(routes.PARTITION_STATS, AskPartitionStats, _partitions),
    Listing(routes.CONSUMER_STATS, AskConsumerStats, _lags),
    Listing(routes.CONSUMER_TOTALS, AskConsumerTotals, _consumer_totals),
    Listing(routes.TOPIC_STATS, AskTopicStats, _minutes),
    Listing(routes.TOPIC_TOTALS, AskTopicTotals, _topic_totals),
)
LISTINGS = {listing.route.name: listing for listing in (*CATALOG_LISTINGS, *STATS_LISTINGS)}
