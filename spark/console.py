"""What a command prints: figures, differences and schedules as tables, and the progress of a run."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self

from pyspark import SparkContext
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from spark.job_run import JobRun
from spark.jobs.work import Difference
from spark.schedules import Schedule

MAX_LINES = 20
MAX_WHY_CHARS = 60
Row = Sequence[str]


@dataclass(frozen=True, slots=True)
class Figures:
    headings: Row
    rows: Sequence[Row]


def partition_figures(stats: Sequence[Mapping[str, Any]]) -> Figures:
    return Figures(
        (
            "topic",
            "partition",
            "messages",
            "payload bytes",
            "stored bytes",
            "first offset",
            "end offset",
            "per minute",
            "gaps",
            "duplicates",
        ),
        [
            (
                each["topic"],
                str(each["partition_id"]),
                number(each["messages"]),
                ("" if each["bytes_exact"] else "~") + number(each["payload_bytes"]),
                number(each["stored_bytes"]),
                str(each["first_offset"]),
                str(each["end_offset"]),
                number(each["rate_in_per_minute"]),
                str(each["gaps"]),
                str(each["duplicates"]),
            )
            for each in stats
        ],
    )


def consumer_figures(stats: Sequence[Mapping[str, Any]]) -> Figures:
    return Figures(
        ("consumer", "name", "topic", "partition", "cursor", "end offset", "messages", "stored bytes", "seconds"),
        [
            (
                str(each["consumer_id"]),
                each["name"] or "",
                each["topic"],
                str(each["partition_id"]),
                str(each["cursor"]),
                str(each["end_offset"]),
                number(each["messages"]),
                number(each["stored_bytes"]),
                number(each["seconds"]),
            )
            for each in stats
        ],
    )


def minute_figures(stats: Sequence[Mapping[str, Any]]) -> Figures:
    return Figures(
        ("topic", "minute", "messages", "payload bytes"),
        [
            (each["topic"], moment(each["minute"]), number(each["messages"]), number(each["payload_bytes"]))
            for each in stats
        ],
    )


def show_differences(differences: Sequence[Difference], console: Console) -> None:
    table = Table(title="differences", title_justify="left", title_style="red")
    for heading in ("topic", "partition", "what", "expected", "found"):
        table.add_column(heading)
    for each in differences[:MAX_LINES]:
        table.add_row(each.topic, str(each.partition), each.what, str(each.expected), str(each.found))
    console.print(table)
    _print_rest(len(differences), console)


def show_figures(figures: Figures, console: Console) -> None:
    if not figures.rows:
        return
    table = Table()
    for place, heading in enumerate(figures.headings):
        table.add_column(heading, justify="left" if place == 0 else "right")
    for row in figures.rows[:MAX_LINES]:
        table.add_row(*row)
    console.print(table)
    _print_rest(len(figures.rows), console)


def schedule_row(job: str, schedule: Schedule, runs: Sequence[Mapping[str, Any]], now: datetime) -> Row:
    """Job, schedule, next run, last run, outcome, rows; `runs` are the job's last ones, newest first."""
    last = runs[0] if runs else None
    due = schedule.next_tick(now)
    is_due = schedule.is_missed(None if last is None else _time(last["started_at"]), now)
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
    if len(why) > MAX_WHY_CHARS:
        why = why[: MAX_WHY_CHARS - 3] + "..."
    return f"{run['outcome']}: {why}" if why else str(run["outcome"])


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


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def moment(milliseconds: int) -> str:
    return _shown(_time(milliseconds))


def _shown(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def _print_rest(count: int, console: Console) -> None:
    if count > MAX_LINES:
        console.print(f"... and {count - MAX_LINES} more", highlight=False)


def tasks(context: SparkContext) -> tuple[int, int]:
    """Completed and all tasks of the running stages."""
    tracker = context.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    known = [stage for stage in stages if stage is not None]
    return sum(stage.numCompletedTasks for stage in known), sum(stage.numTasks for stage in known)


class ProgressDisplay:
    """Spark's tasks as a bar on a terminal, a line for each step elsewhere."""

    def __init__(self, run: JobRun, console: Console) -> None:
        self._run = run
        self._console = console
        self._began = time.monotonic()
        self._printed = ""
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[tasks]}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self._bar = self._progress.add_task(run.job, total=None, tasks="")

    def update(self, context: SparkContext | None) -> None:
        doing = self._run.doing
        if not self._console.is_terminal:
            if doing != self._printed:
                self._printed = doing
                elapsed = time.monotonic() - self._began
                self._console.print(f"{elapsed:6.0f} s  {self._run.job}: {doing}", markup=False, highlight=False)
            return
        done, total = tasks(context) if context is not None else (0, 0)
        self._progress.update(
            self._bar,
            description=f"{self._run.job}: {doing}",
            completed=done,
            total=total or None,
            tasks=f"{done}/{total} tasks" if total else "",
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
