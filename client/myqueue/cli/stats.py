"""`myqueue stats`: what the jobs have measured, with the last hours as a line in each row."""

import csv
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from myqueue.cli.completion import checked_topic, topic_names
from myqueue.cli.failures import parsed
from myqueue.cli.output import Cell, Styled, bytes_text, duration_text
from myqueue.cli.quantities import duration_ms
from myqueue.cli.session import Session, command, group
from myqueue.protocol import routes
from myqueue.protocol.limits import MAX_STATS_ROWS
from myqueue.protocol.routes import Route
from myqueue.transport import Transport

Json = dict[str, Any]

app = group("Sizes, rates, lag and skew over time, as the scheduled jobs measured them.")

POINTS = 24  # of a sparkline
CONSUMERS_PER_PAGE = MAX_STATS_ROWS // (POINTS + 2)  # a time may touch two steps more than it is long
_BARS = "▁▂▃▄▅▆▇█"
_FORMER_NAMES = ("bytes", "rate_per_minute")

Topic = Annotated[
    str | None,
    typer.Argument(metavar="TOPIC", help="Only of this one.", autocompletion=topic_names, callback=checked_topic),
]
Last = Annotated[str, typer.Option("--last", metavar="DURATION", help="How far the lines go back: 90m, 24h, 7d.")]


def sparkline(values: Sequence[float | None]) -> str:
    """Oldest first, from zero to the highest; a blank where nothing was measured."""
    highest = max((value for value in values if value is not None), default=0.0)
    return "".join(
        " " if value is None else _BARS[round(value / highest * (len(_BARS) - 1)) if highest > 0 else 0]
        for value in values
    )


def in_steps(history: Sequence[Mapping[str, Any]], field: str, end_ms: int, span_ms: int) -> list[float | None]:
    """The last value of each of POINTS steps up to `end_ms`, oldest first; None where there is no point."""
    values: list[float | None] = [None] * POINTS
    for point in reversed(history):
        place = POINTS - 1 - (end_ms - point["computed_at"]) * POINTS // max(1, span_ms)
        if 0 <= place < POINTS:
            values[place] = point[field]
    return values


@command(app, takes_csv=True)
def topics(session: Session, topic: Topic = None, last: Last = "24h") -> None:
    """Messages, bytes, rates and skew of topics."""
    columns = ("topic", "messages", "payload", "stored", "skew", "in/min", "out/min", "in over time", "measured")

    def row(each: Json, line: Callable[[str], str]) -> list[Cell]:
        sizes = [each["messages"], _bytes(each["payload_bytes"]), _bytes(each["stored_bytes"])]
        rates = [_number(each["rate_in_per_minute"]), _number(each["rate_out_per_minute"])]
        return [each["topic"], *sizes, _number(each["skew"]), *rates, line("rate_in_per_minute"), _when(each)]

    _show(session, routes.TOPIC_TOTALS, "topics", _of_topic(topic), last, columns, row)


@command(app, takes_csv=True)
def partitions(session: Session, topic: Topic = None, last: Last = "24h") -> None:
    """Messages, bytes, offsets and rates of partitions."""
    columns = (
        "topic",
        "partition",
        "messages",
        "payload",
        "stored",
        "first",
        "end",
        "in/min",
        "in over time",
        "measured",
    )

    def row(each: Json, line: Callable[[str], str]) -> list[Cell]:
        sizes = [each["messages"], _bytes(each["payload_bytes"]), _bytes(each["stored_bytes"])]
        offsets = [each["first_offset"], each["end_offset"], _number(each["rate_in_per_minute"])]
        return [each["topic"], each["partition_id"], *sizes, *offsets, line("rate_in_per_minute"), _when(each)]

    _show(session, routes.PARTITION_STATS, "partitions", _of_topic(topic), last, columns, row)


@command(app, takes_csv=True)
def consumers(session: Session, topic: Topic = None, last: Last = "24h") -> None:
    """How far consumers are behind, how fast they read, and when they will have caught up."""
    columns = ("number", "name", "topic", "lag", "stored", "oldest", "out/min", "catch up", "lag over time", "measured")

    def row(each: Json, line: Callable[[str], str]) -> list[Cell]:
        lag = [each["messages"], _bytes(each["stored_bytes"]), duration_text(each["seconds"])]
        wait = each["catch_up_seconds"]
        catch_up: Cell = Styled("never", "red") if wait is None else duration_text(wait)
        names = [each["consumer_id"], each["name"], each["topic"]]
        return [*names, *lag, _number(each["rate_out_per_minute"]), catch_up, line("messages"), _when(each)]

    query = {**_of_topic(topic), "limit": CONSUMERS_PER_PAGE}
    _show(session, routes.CONSUMER_TOTALS, "consumers", query, last, columns, row)


@command(app, takes_csv=True)
def runs(
    session: Session,
    job: Annotated[str | None, typer.Argument(metavar="JOB", help="Only of this one.")] = None,
    count: Annotated[int, typer.Option("-n", "--count", metavar="N", min=1, max=1000, help="The last N.")] = 20,
) -> None:
    """The last runs of the jobs, newest first."""
    query: dict[str, str | int] = {"limit": count} if job is None else {"limit": count, "job": job}
    found = _ask(session, routes.LIST_RUNS, "runs", query)
    if session.output.as_csv:
        _print_csv(found)
    elif session.output.as_json:
        session.output.document(found)
    elif not found:
        session.output.note("no job has run yet")
    else:
        columns = ("run", "job", "started (UTC)", "took", "outcome", "rows", "left out", "message")
        session.output.table(columns, [_run_row(run) for run in found])


def _run_row(run: Json) -> list[Cell]:
    took = None if run["ended_at"] is None else duration_text((run["ended_at"] - run["started_at"]) / 1000)
    good = run["outcome"] in ("succeeded", "running")
    outcome = Styled(run["outcome"], "green" if good else "red")
    return [
        *(run["run_id"], run["job"], _moment(run["started_at"]), took, outcome),
        *(run["rows"], run["left_out"], (run["message"] or "").split("\n", 1)[0]),
    ]


def _show(
    session: Session,
    route: Route,
    name: str,
    query: dict[str, str | int],
    last: str,
    columns: Sequence[str],
    row: Callable[[Json, Callable[[str], str]], list[Cell]],
) -> None:
    span_ms = parsed("--last", duration_ms, last)
    output = session.output
    step_ms = max(1000, span_ms // POINTS)
    found = _ask(session, route, name, {**query, "last": f"{span_ms}ms", "step": f"{step_ms}ms"})
    if output.as_csv:
        _print_csv([_flat(each) for each in found])
    elif output.as_json:
        output.document(found)
    elif not found:
        output.note("nothing was measured yet: `make spark` runs the jobs")
    else:
        end_ms = max(each["computed_at"] for each in found)
        rows = []
        for each in found:
            history = each["history"]
            rows.append(row(each, lambda field, of=history: sparkline(in_steps(of, field, end_ms, span_ms))))  # type: ignore[misc]
        output.table(columns, rows)


def _ask(session: Session, route: Route, name: str, query: dict[str, str | int]) -> list[Json]:
    """Of all pages."""
    session.reach()
    transport = Transport(session.url, retry=session.retry)
    rows: list[Json] = []
    try:
        while True:
            body = transport.call(route, query=query).body
            rows += body[name]
            if body.get("next") is None:
                return rows
            query["after"] = body["next"]
    finally:
        transport.close()


def _print_csv(rows: Sequence[Mapping[str, Any]]) -> None:
    if rows:
        writer = csv.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """The figures as last measured; the API gives the history as CSV, too."""
    return {name: value for name, value in row.items() if name != "history" and name not in _FORMER_NAMES}


def _of_topic(topic: str | None) -> dict[str, str | int]:
    return {} if topic is None else {"topic": topic}


def _bytes(count: int | None) -> str | None:
    return None if count is None else bytes_text(count)


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:,.1f}"


def _when(row: Mapping[str, Any]) -> str:
    return _moment(row["computed_at"])


def _moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
