"""What a person sees at the end of a command, as plain rows: figures, differences, schedules."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table

from spark.differences import Difference
from spark.schedules import Schedule

MAX_LINES = 20
LONGEST_WHY = 60
Row = Sequence[str]


@dataclass(frozen=True, slots=True)
class Done:
    """What a job has done, in words, and the differences that an audit found."""

    text: str
    differences: Sequence[Difference] = field(default=())


@dataclass(frozen=True, slots=True)
class Figures:
    headings: Row
    rows: Sequence[Row]


def partitions(stats: Sequence[Mapping[str, Any]]) -> Figures:
    return Figures(
        ("topic", "partition", "messages", "bytes", "first offset", "end offset", "per minute", "gaps", "duplicates"),
        [
            (
                each["topic"],
                str(each["partition_id"]),
                number(each["messages"]),
                ("" if each["bytes_exact"] else "~") + number(each["bytes"]),
                str(each["first_offset"]),
                str(each["end_offset"]),
                number(each["rate_per_minute"]),
                str(each["gaps"]),
                str(each["duplicates"]),
            )
            for each in stats
        ],
    )


def consumers(stats: Sequence[Mapping[str, Any]]) -> Figures:
    return Figures(
        ("consumer", "name", "topic", "partition", "cursor", "end offset", "messages", "bytes", "seconds"),
        [
            (
                str(each["consumer_id"]),
                each["name"] or "",
                each["topic"],
                str(each["partition_id"]),
                str(each["cursor"]),
                str(each["end_offset"]),
                number(each["messages"]),
                number(each["bytes"]),
                number(each["seconds"]),
            )
            for each in stats
        ],
    )


def minutes(stats: Sequence[Mapping[str, Any]]) -> Figures:
    return Figures(
        ("topic", "minute", "messages", "bytes"),
        [(each["topic"], moment(each["minute"]), number(each["messages"]), number(each["bytes"])) for each in stats],
    )


def show_differences(differences: Sequence[Difference], console: Console) -> None:
    table = Table(title="differences", title_justify="left", title_style="red")
    for heading in ("topic", "partition", "what", "expected", "found"):
        table.add_column(heading)
    for each in differences[:MAX_LINES]:
        table.add_row(each.topic, str(each.partition), each.what, str(each.expected), str(each.found))
    console.print(table)
    _say_more(len(differences), console)


def show_figures(figures: Figures, console: Console) -> None:
    if not figures.rows:
        return
    table = Table()
    for place, heading in enumerate(figures.headings):
        table.add_column(heading, justify="left" if place == 0 else "right")
    for row in figures.rows[:MAX_LINES]:
        table.add_row(*row)
    console.print(table)
    _say_more(len(figures.rows), console)


def schedule_row(job: str, schedule: Schedule, runs: Sequence[Mapping[str, Any]], now: datetime) -> Row:
    """Job, schedule, next run, last run, outcome, rows; `runs` are the job's last ones, newest first."""
    last = runs[0] if runs else None
    due = schedule.next_tick(now)
    is_due = schedule.is_missed(None if last is None else at(last["started_at"]), now)
    return (
        job,
        schedule.text,
        "now" if is_due else ("never" if due is None else _shown(due)),
        "never" if last is None else moment(last["started_at"]),
        "" if last is None else _outcome(last),
        "" if last is None else number(last["rows"]),
    )


def _outcome(run: Mapping[str, Any]) -> str:
    why = str(run["message"] or "").split("\n", 1)[0]
    if len(why) > LONGEST_WHY:
        why = why[: LONGEST_WHY - 3] + "..."
    return f"{run['outcome']}: {why}" if why else str(run["outcome"])


def last_success(runs: Sequence[Mapping[str, Any]]) -> datetime | None:
    """When the last run that succeeded began; `runs` newest first."""
    begun = next((run["started_at"] for run in runs if run["outcome"] == "succeeded"), None)
    return None if begun is None else at(begun)


def show_schedule(rows: Sequence[Row], console: Console) -> None:
    table = Table()
    for heading in ("job", "schedule", "next run", "last run", "outcome"):
        table.add_column(heading)
    table.add_column("rows", justify="right")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def at(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def milliseconds(time: datetime) -> int:
    return round(time.timestamp() * 1000)


def moment(milliseconds: int) -> str:
    return _shown(at(milliseconds))


def _shown(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def _say_more(count: int, console: Console) -> None:
    if count > MAX_LINES:
        console.print(f"... and {count - MAX_LINES} more", highlight=False)
