"""Which statistics a query reads: the tables with their columns, and the options, checked before any request. Pure but
for the default of the address."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql.types import (
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from myqueue.protocol import routes
from myqueue.protocol.errors import InvalidRequest
from myqueue.protocol.limits import topic_name_problem
from myqueue.protocol.routes import Route
from myqueue.spark.kafka_options import unknown_option
from myqueue.spark.options import DEFAULT_TIMEOUT_MS, read_option, url_option, whole_number

_LONG, _INT, _DOUBLE, _STRING, _TIME = LongType(), IntegerType(), DoubleType(), StringType(), TimestampType()

# A column has one type, in whichever table it is.
_TYPES: dict[str, DataType] = {
    "topic": _STRING,
    "partition_id": _INT,
    "consumer_id": _LONG,
    "name": _STRING,
    "computed_at": _TIME,
    "minute": _TIME,
    "partitions": _INT,
    "messages": _LONG,
    "payload_bytes": _LONG,
    "stored_bytes": _LONG,
    "first_offset": _LONG,
    "end_offset": _LONG,
    "end_offsets": _LONG,
    "cursor": _LONG,
    "cursors": _LONG,
    "seconds": _DOUBLE,
    "catch_up_seconds": _DOUBLE,
    "skew": _DOUBLE,
    "rate_in_per_minute": _DOUBLE,
    "rate_out_per_minute": _DOUBLE,
    "bytes_exact": BooleanType(),
    "log_end_offset": _LONG,
    "first_timestamp": _TIME,
    "last_timestamp": _TIME,
    "gaps": _LONG,
    "duplicates": _LONG,
    "job": _STRING,
    "run_id": _LONG,
    "holder": _STRING,
    "trigger": _STRING,
    "tick": _TIME,
    "started_at": _TIME,
    "ended_at": _TIME,
    "outcome": _STRING,
    "rows": _LONG,
    "left_out": _LONG,
    "message": _STRING,
}
_RATES = ("rate_in_per_minute", "rate_out_per_minute")
_PARTITION = ("messages", "payload_bytes", "stored_bytes", "first_offset", "end_offset", *_RATES)
_CHECKED = ("bytes_exact", "log_end_offset", "first_timestamp", "last_timestamp", "gaps", "duplicates", "job")
_LAG = ("cursor", "end_offset", "messages", "stored_bytes", "seconds", *_RATES, "catch_up_seconds")
_TOPIC = ("partitions", "messages", "payload_bytes", "stored_bytes", "end_offsets", "skew", *_RATES)
_CONSUMER = ("partitions", "messages", "stored_bytes", "seconds", "cursors", "end_offsets", *_RATES, "catch_up_seconds")
_RUN = ("run_id", "job", "trigger", "tick", "started_at", "ended_at", "outcome", "rows", "left_out", "message")


@dataclass(frozen=True, slots=True)
class StatsTable:
    route: Route
    names: tuple[str, ...]  # of what a row is
    figures: tuple[str, ...]  # of every point
    current: tuple[str, ...] = ()  # only of the newest figures, when no time is given

    def columns(self, *, history: bool) -> tuple[str, ...]:
        return self.names + self.figures + (() if history else self.current)


TABLES = {
    "topics": StatsTable(routes.TOPIC_STATS, ("topic", "minute"), ("messages", "payload_bytes")),
    "partitions": StatsTable(routes.PARTITION_STATS, ("topic", "partition_id", "computed_at"), _PARTITION, _CHECKED),
    "consumers": StatsTable(
        routes.CONSUMER_STATS, ("topic", "consumer_id", "name", "partition_id", "computed_at"), _LAG
    ),
    "topic_totals": StatsTable(routes.TOPIC_TOTALS, ("topic", "computed_at"), _TOPIC),
    "consumer_totals": StatsTable(routes.CONSUMER_TOTALS, ("topic", "consumer_id", "name", "computed_at"), _CONSUMER),
    "runs": StatsTable(routes.LIST_RUNS, (), (*_RUN, "holder")),
}
_OPTIONS = ("url", "table", "topic", "job", "from", "to", "last", "step", "timeoutMs")
_DURATION = re.compile(r"([0-9]{1,9})(s|m|h|d|w)")
_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}
_HOUR_MS = 3_600_000  # of topics by the minute, if no time is given
_LONGEST_MS = 3650 * 86_400_000
_LATEST_MS = 253_370_764_800_000  # 9999


@dataclass(frozen=True, slots=True)
class StatsOptions:
    url: str
    table: str
    filters: Mapping[str, str]  # by topic, or by job
    from_ms: int | None
    to_ms: int | None  # excluded
    last_ms: int | None
    step_ms: int | None
    timeout_s: float  # of retries of one request

    @property
    def history(self) -> bool:
        """Whether a time is given; else the newest figures are read, or all runs."""
        return self.from_ms is not None or self.last_ms is not None

    def time_range(self, now_ms: int) -> tuple[int, int]:
        if self.from_ms is None:
            return max(0, now_ms - (self.last_ms or _HOUR_MS)), now_ms + 1
        return self.from_ms, now_ms + 1 if self.to_ms is None else self.to_ms


def stats_options(given: Mapping[str, str]) -> StatsOptions:
    if unknown := unknown_option(given, _OPTIONS, "a read of statistics"):
        raise InvalidRequest(unknown)
    values = {name.lower(): value for name, value in given.items()}
    if "table" not in values:
        raise InvalidRequest(f"option table is not given; it takes one of {', '.join(TABLES)}")
    moment = whole_number(0, _LATEST_MS)
    options = StatsOptions(
        url=url_option(values),
        table=read_option(values, "table", _table, ""),
        filters={name: values[name] for name in ("topic", "job") if name in values},
        from_ms=read_option(values, "from", moment, None),
        to_ms=read_option(values, "to", moment, None),
        last_ms=read_option(values, "last", _duration_ms, None),
        step_ms=read_option(values, "step", _duration_ms, None),
        timeout_s=read_option(values, "timeoutMs", whole_number(1), DEFAULT_TIMEOUT_MS) / 1000,
    )
    _check_filters(options)
    _check_time(options)
    return options


def _table(text: str) -> str:
    if text.lower() not in TABLES:
        raise ValueError(f"takes one of {', '.join(TABLES)}, not {text!r}")
    return text.lower()


def _duration_ms(text: str) -> int:
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None or not 1000 <= int(match[1]) * _UNITS_MS[match[2]] <= _LONGEST_MS:
        raise ValueError(f"takes a time as 90s, 5m, 24h or 30d, not {text!r}")
    return int(match[1]) * _UNITS_MS[match[2]]


def _check_filters(options: StatsOptions) -> None:
    of_runs = options.table == "runs"
    for name in ("topic", "step") if of_runs else ("job",):
        if name in options.filters or (name == "step" and options.step_ms is not None):
            raise InvalidRequest(f"option {name} means nothing for table {options.table}")
    topic = options.filters.get("topic")
    if topic is not None and (problem := topic_name_problem(topic)):
        raise InvalidRequest(f"option topic: {topic!r}: {problem}")


def _check_time(options: StatsOptions) -> None:
    if options.last_ms is not None and (options.from_ms is not None or options.to_ms is not None):
        raise InvalidRequest("options last, from and to: give last, or from and to")
    if not options.history and (options.to_ms is not None or options.step_ms is not None):
        alone = "to" if options.to_ms is not None else "step"
        raise InvalidRequest(f"option {alone}: give from or last, too, to say where the time begins")
    if options.from_ms is not None and options.to_ms is not None and options.to_ms <= options.from_ms:
        raise InvalidRequest("option to: must lie after from")


def types_of(options: StatsOptions) -> dict[str, DataType]:
    return {name: _TYPES[name] for name in TABLES[options.table].columns(history=options.history)}


def stats_schema(options: StatsOptions) -> StructType:
    return StructType([StructField(name, kind) for name, kind in types_of(options).items()])


class TimeWindows:
    """A range of time in pieces, each of which a response can hold. They end where a step ends, so that the last point
    of a step is that of the whole range."""

    def __init__(self, start_ms: int, end_ms: int, step_ms: int | None) -> None:
        self._start = start_ms
        self._end = end_ms
        self._unit = step_ms or 1
        self._length = max(1, end_ms - start_ms)

    @property
    def current(self) -> tuple[int, int] | None:
        """The piece to be read; None after the last."""
        return None if self._start >= self._end else (self._start, min(self._end, self._piece_end()))

    def shorten(self) -> bool:
        """It has too many points. False: it cannot be shorter."""
        if self.current is None or self.current[1] - self.current[0] <= self._unit:
            return False
        self._length = (self.current[1] - self.current[0]) // 2
        return True

    def advance(self, *, lengthen: bool) -> None:
        """It was read. `lengthen`: it had so few points that the next one may be longer."""
        self._start = self._piece_end()
        if lengthen:
            self._length *= 2

    def _piece_end(self) -> int:
        aligned = (self._start + self._length) // self._unit * self._unit
        return aligned if aligned > self._start else (self._start // self._unit + 1) * self._unit
