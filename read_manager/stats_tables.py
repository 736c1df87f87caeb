"""Statistics for those who do not want JSON: CSV and Arrow tables, and plots as SVG.

With points of history a table has a row for each point, oldest first; without, a row for each partition, consumer, ….
"""

import csv
import io
import time
from collections.abc import Callable, Mapping
from typing import Any, get_args

import pyarrow as pa
from pydantic import BaseModel

from db.listings import LAST_MS, Listing
from db.stats_listings import LISTINGS
from myqueue.protocol import http_headers, routes, stats_answers
from myqueue.protocol.errors import InvalidRequest
from myqueue.protocol.models import Query
from myqueue.protocol.stats_queries import AskPlot, HistoryQuery, StatsQuery
from myqueue.protocol.token import Token
from service.http_messages import HttpRequest, HttpResponse, ThreadHandler
from service.stats_plots import FIGURES, plot_of
from service.svg_plot import svg

Row = Mapping[str, Any]
Listed = Callable[[Listing, Query, Token | None], BaseModel | Mapping[str, Any]]

_DAY_MS = 86_400_000
_YEAR_MS = 365 * _DAY_MS
_FORMER_NAMES = {"bytes", "rate_per_minute"}
_NAMES = ("topic", "partition_id", "consumer_id", "name")  # of a row of history, before its figures
_ROWS: dict[str, tuple[str, type[BaseModel], type[BaseModel] | None]] = {
    routes.PARTITION_STATS.name: ("partitions", stats_answers.PartitionStats, stats_answers.PartitionFigures),
    routes.CONSUMER_STATS.name: ("consumers", stats_answers.ConsumerStats, stats_answers.LagFigures),
    routes.CONSUMER_TOTALS.name: ("consumers", stats_answers.ConsumerTotals, stats_answers.ConsumerFigures),
    routes.TOPIC_TOTALS.name: ("topics", stats_answers.TopicTotals, stats_answers.TopicFigures),
    routes.TOPIC_STATS.name: ("topics", stats_answers.MinuteFigures, None),
    routes.LIST_RUNS.name: ("runs", stats_answers.Run, None),
}
_ARROW_TYPES: dict[type, pa.DataType] = {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_()}


def wanted_format(request: HttpRequest, query: StatsQuery) -> str:
    if query.format is not None:
        return query.format
    for name, kind in (("arrow", http_headers.ARROW_TYPE), ("csv", http_headers.CSV_TYPE)):
        if request.accepts(kind):
            return name
    return "json"


def table_response(name: str, query: StatsQuery, body: Mapping[str, Any], kind: str) -> HttpResponse:
    """The page of a list that has more is named in a header."""
    field, item, point = _ROWS[name]
    with_history = isinstance(query, HistoryQuery) and (query.history > 0 or query.time_range(0) is not None)
    if with_history and point is not None:
        names = [column for column in _NAMES if column in item.model_fields]
        columns = {column: item.model_fields[column].annotation for column in names} | _columns(point)
        rows = [
            {column: entry[column] for column in names} | past
            for entry in body[field]
            for past in reversed(entry["history"])
        ]
    else:
        columns, rows = _columns(item), body[field]
    encode = _as_arrow if kind == "arrow" else _as_csv
    content_type = http_headers.ARROW_TYPE if kind == "arrow" else f"{http_headers.CSV_TYPE}; charset=utf-8"
    headers = [("content-type", content_type), ("vary", "accept")]
    if body.get("next") is not None:
        headers.append((http_headers.NEXT.lower(), str(body["next"])))
    return HttpResponse(200, headers, encode(columns, rows))


def _columns(model: type[BaseModel]) -> dict[str, Any]:
    """Without the former names of figures, which tables never had."""
    return {
        name: field.annotation
        for name, field in model.model_fields.items()
        if name not in _FORMER_NAMES and name != "history"
    }


def _as_csv(columns: Mapping[str, Any], rows: list[Row]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows(["" if row[name] is None else row[name] for name in columns] for row in rows)
    return text.getvalue().encode()


def _as_arrow(columns: Mapping[str, Any], rows: list[Row]) -> bytes:
    schema = pa.schema([(name, _arrow_type(annotation)) for name, annotation in columns.items()])
    table = pa.table({name: [row[name] for row in rows] for name in columns}, schema=schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_table(table)
    encoded: bytes = sink.getvalue().to_pybytes()
    return encoded


def _arrow_type(annotation: Any) -> pa.DataType:
    """Of `int`, `float | None`, a Literal of strings, ..."""
    for each in (annotation, *get_args(annotation)):
        if each in _ARROW_TYPES:
            return _ARROW_TYPES[each]
    return pa.string()


def plotter(listed: Listed) -> ThreadHandler:
    """The handler of /v1/stats/plot.svg. Without a time it is the last day, without a step about one point a pixel."""

    def plot(request: HttpRequest) -> HttpResponse:
        query = request.parse_query(AskPlot)
        now_ms = time.time_ns() // 1_000_000
        wanted = query.time_range(now_ms)
        end = now_ms + 1 if wanted is None else wanted.end_ms
        start = max(0, (0 if wanted is None else wanted.start_ms) or end - _DAY_MS)
        if not start < end <= LAST_MS:
            raise InvalidRequest("from, to: must be a range of time up to the year 9999")
        step = (None if wanted is None else wanted.step_ms) or max(1000, min(_YEAR_MS, (end - start) // query.width))
        of = FIGURES[query.metric].of
        listing = LISTINGS[(routes.TOPIC_TOTALS if of == "topics" else routes.CONSUMER_TOTALS).name]
        asked = {"from": start, "to": end, "step": step, "topic": query.topic}
        body = listed(listing, listing.query.model_validate(asked), request.session_token())
        answer = body.model_dump() if isinstance(body, BaseModel) else body
        picture = svg(
            plot_of(query.metric, answer[of], start, end, query.topic), width=query.width, height=query.height
        )
        headers = [
            ("content-type", http_headers.SVG_TYPE),
            ("content-security-policy", "default-src 'none'"),
            ("cache-control", "max-age=30"),
        ]
        return HttpResponse(200, headers, picture.encode())

    return plot
