"""Points of history: rates and totals of each run, and how points thin out with age. No IO; `now` is an argument."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise
from uuid import UUID

from db.stats import ConsumerPoint, Figures, StoredLag, TopicPoint
from db.stats_points import catch_up_seconds
from db.stats_thinning import ThinningRule
from myqueue.protocol.models import MAX_OFFSET, ConsumerLagMeasure

_TIER = re.compile(r"(run|[1-9][0-9]{0,5}[smhd]):([1-9][0-9]{0,5}[smhd])\Z")
_LONGEST = timedelta(days=36_525)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, slots=True)
class HistoryTiers:
    """How long points are kept at which distance: of every run at first, then one for each step."""

    rules: tuple[ThinningRule, ...]
    kept: timedelta  # older points are deleted

    @staticmethod
    def parse(text: str) -> "HistoryTiers":
        """`run:1d,5m:30d,1h:365d`: every run for a day, one for each 5 minutes for 30 days, each hour for a year."""
        tiers: list[tuple[timedelta | None, timedelta]] = []
        for part in text.split(","):
            found = _TIER.match(part.strip())
            if found is None:
                raise ValueError(f"{part.strip()!r} is not like run:1d or 5m:30d (how often, and for how long)")
            tiers.append((None if found[1] == "run" else _duration(found[1]), _duration(found[2])))
        if tiers[0][0] is not None:
            raise ValueError("the first part must say how long the points of every run are kept, such as run:1d")
        rules = []
        for (step, age), (next_step, next_age) in pairwise(tiers):
            if next_step is None or next_step <= (step or timedelta()) or next_age <= age:
                raise ValueError("steps and ages must grow from part to part")
            rules.append(ThinningRule(age, next_step))
        if tiers[-1][1] > _LONGEST:
            raise ValueError("points can be kept for 100 years at the most")
        return HistoryTiers(tuple(rules), tiers[-1][1])


def _duration(text: str) -> timedelta:
    return timedelta(seconds=int(text[:-1]) * _SECONDS[text[-1]])


def lag_with_rates(before: StoredLag | None, lag: ConsumerLagMeasure, now: datetime) -> StoredLag:
    minutes = 0.0 if before is None else (now - before.computed_at).total_seconds() / 60
    return StoredLag(
        lag.consumer_id,
        lag.partition_id,
        lag.cursor,
        lag.end_offset,
        lag.messages,
        lag.stored_bytes,
        lag.seconds,
        now,
        None if before is None else rate_per_minute(lag.end_offset - before.end_offset, minutes),
        None if before is None else rate_per_minute(lag.cursor - before.cursor, minutes),
    )


def rate_per_minute(messages: int, minutes: float) -> float | None:
    """None: no time has passed, or a partition was begun again, or a cursor was moved back."""
    return messages / minutes if minutes > 0 and messages >= 0 else None


def skew(sizes: Sequence[int]) -> float | None:
    """The largest by the mean: 1 is even. None if there is nothing."""
    total = sum(sizes)
    return max(sizes) * len(sizes) / total if total else None


def topic_point(topic_id: UUID, partitions: Sequence[Figures], now: datetime) -> TopicPoint:
    """Of all partitions of the topic, as just computed."""
    stored = [each.stored_bytes for each in partitions]
    return TopicPoint(
        topic_id=topic_id,
        computed_at=now,
        partitions=len(partitions),
        messages=sum(each.messages for each in partitions),
        payload_bytes=min(MAX_OFFSET, sum(each.bytes for each in partitions)),
        stored_bytes=None if None in stored else min(MAX_OFFSET, sum(each or 0 for each in stored)),
        end_offsets=min(MAX_OFFSET, sum(each.end_offset for each in partitions)),
        skew=skew([each.messages for each in partitions]),
        rate_in_per_minute=_sum([each.rate_per_minute for each in partitions]),
        rate_out_per_minute=_sum([each.rate_out_per_minute for each in partitions]),
    )


def consumer_point(consumer_id: int, lags: Sequence[StoredLag], now: datetime) -> ConsumerPoint:
    """Of all partitions of the consumer, as just measured."""
    waits = [catch_up_seconds(each.messages, each.rate_in_per_minute, each.rate_out_per_minute) for each in lags]
    return ConsumerPoint(
        consumer_id=consumer_id,
        computed_at=now,
        partitions=len(lags),
        messages=min(MAX_OFFSET, sum(each.messages for each in lags)),
        stored_bytes=min(MAX_OFFSET, sum(each.bytes for each in lags)),
        seconds=max(each.seconds for each in lags),
        cursors=min(MAX_OFFSET, sum(each.cursor for each in lags)),
        end_offsets=min(MAX_OFFSET, sum(each.end_offset for each in lags)),
        rate_in_per_minute=_sum([each.rate_in_per_minute for each in lags]),
        rate_out_per_minute=_sum([each.rate_out_per_minute for each in lags]),
        catch_up_seconds=None if None in waits else max(each or 0.0 for each in waits),
    )


def with_rates_out(
    figures: Mapping[tuple[UUID, int], Figures], rates: Mapping[tuple[UUID, int], float]
) -> dict[tuple[UUID, int], Figures]:
    return {key: replace(each, rate_out_per_minute=rates.get(key)) for key, each in figures.items()}


def _sum(rates: Sequence[float | None]) -> float | None:
    """None only if none is known: a partition that nobody reads must not hide the rate of the others."""
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known else None
