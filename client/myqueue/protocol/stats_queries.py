"""Questions to the statistics API: what is listed, over which time, at which step, and in which format."""

import re
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from myqueue.protocol import limits
from myqueue.protocol.models import AFTER, MAX_OFFSET, JobName, PageLimit, Query, QueryId, TopicName, query_integer

_DURATION = re.compile(r"([0-9]{1,15})(ms|s|m|h|d|w)?\Z")
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}
_LONGEST_MS = 10 * 366 * 86_400_000


def duration_ms(value: object) -> object:
    """`90s`, `5m`, `24h`, `30d`, `2w`; a number alone is milliseconds."""
    if not isinstance(value, str):
        return value
    found = _DURATION.match(value)
    if found is None:
        raise ValueError("must be a duration such as 90s, 5m, 24h or 30d")
    return int(found[1]) * _UNITS_MS[found[2] or "ms"]


_DURATION_SCHEMA = WithJsonSchema({"type": "string", "pattern": "^[0-9]+(ms|s|m|h|d|w)?$", "examples": ["24h"]})
Duration = Annotated[int, BeforeValidator(duration_ms), Field(ge=1000, le=_LONGEST_MS), _DURATION_SCHEMA]
Moment = Annotated[int, BeforeValidator(query_integer), Field(ge=0, le=MAX_OFFSET // 1000)]
Format = Literal["json", "csv", "arrow"]
_History = Annotated[int, BeforeValidator(query_integer), Field(ge=0, le=1000)]
_HISTORY = f"Add the last points of each, so many; at most {limits.MAX_STATS_ROWS} in all."


@dataclass(frozen=True, slots=True)
class TimeRange:
    """From its start, up to and without its end, in ms. Without a step: every point that is kept."""

    start_ms: int
    end_ms: int
    step_ms: int | None


class StatsQuery(Query):
    format: Format | None = Field(None, description="Instead of an Accept header.")


class RangeQuery(StatsQuery):
    from_: Moment | None = Field(None, alias="from", description="Points since then (ms).")
    to: Moment | None = Field(None, description="Points before then (ms); default: now.")
    last: Duration | None = Field(None, description="Points of the last 24h, 30d, …; instead of `from` and `to`.")
    step: Duration | None = Field(
        None, description="One point each 5m, 1h, …: the last one of it. Default: every point that is kept."
    )

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        if self.last is not None and (self.from_ is not None or self.to is not None):
            raise ValueError("last: excludes from and to")
        if self.from_ is not None and self.to is not None and self.to <= self.from_:
            raise ValueError("to: must lie after from")
        return self

    def time_range(self, now_ms: int) -> TimeRange | None:
        """None: no points are asked for."""
        if self.last is not None:
            return TimeRange(now_ms - self.last, now_ms + 1, self.step)
        if self.from_ is None and self.to is None and self.step is None:
            return None
        return TimeRange(self.from_ or 0, now_ms + 1 if self.to is None else self.to, self.step)


class HistoryQuery(RangeQuery):
    history: _History = Field(0, description=_HISTORY)

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if self.history and self.time_range(0) is not None:
            raise ValueError("history: excludes from, to, last and step")
        return self


class ListRuns(RangeQuery):
    job: JobName | None = None
    limit: Annotated[int, BeforeValidator(query_integer), Field(ge=1, le=limits.MAX_STATS_RUNS)] = 20
    before: QueryId | None = Field(None, description="Only those with a lower run_id: the last one of the page before.")


class AskPartitionStats(HistoryQuery):
    topic: TopicName | None = None


class AskTopicTotals(HistoryQuery):
    topic: TopicName | None = None


class AskConsumerStats(HistoryQuery):
    topic: TopicName | None = None
    consumer_id: QueryId | None = None
    limit: PageLimit = Field(limits.DEFAULT_PAGE, description="Consumers, with all of their partitions.")
    after: QueryId | None = Field(None, description=AFTER)


class AskConsumerTotals(HistoryQuery):
    topic: TopicName | None = None
    consumer_id: QueryId | None = None
    limit: PageLimit = limits.DEFAULT_PAGE
    after: QueryId | None = Field(None, description=AFTER)


class AskTopicStats(RangeQuery):
    topic: TopicName | None = None
    minutes: Annotated[int, BeforeValidator(query_integer), Field(ge=1, le=limits.MAX_STATS_MINUTES)] = Field(
        60,
        description="How far to go back, unless `from`, `to` or `last` say it;"
        f" at most {limits.MAX_STATS_ROWS} rows are answered.",
    )


PlotMetric = Literal[
    "messages",
    "payload_bytes",
    "stored_bytes",
    "rate_in",
    "rate_out",
    "skew",
    "lag_messages",
    "lag_bytes",
    "lag_seconds",
    "catch_up_seconds",
]


class AskPlot(RangeQuery):
    metric: PlotMetric
    topic: TopicName | None = None
    width: Annotated[int, BeforeValidator(query_integer), Field(ge=200, le=2000)] = 720
    height: Annotated[int, BeforeValidator(query_integer), Field(ge=100, le=1000)] = 260
