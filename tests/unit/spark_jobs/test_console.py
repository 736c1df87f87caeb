"""What commands print."""

import io
from datetime import UTC, datetime
from typing import Any

from rich.console import Console

from spark import console
from spark.console import Figures
from spark.jobs.work import Difference
from spark.schedules import parse

NOW = datetime(2025, 3, 5, 12, 0, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)


def run(outcome: str, ago_s: int, message: str | None = None) -> dict[str, Any]:
    return {"started_at": NOW_MS - ago_s * 1000, "outcome": outcome, "rows": 1234, "message": message}


def test_schedule_rows() -> None:
    schedule = parse("interval:60s")
    assert console.schedule_row("j", schedule, [], NOW) == ("j", "interval:60s", "now", "never", "", "")
    assert console.schedule_row("j", schedule, [run("succeeded", 20)], NOW) == (
        "j",
        "interval:60s",
        "now",
        "2025-03-05 11:59:40",
        "succeeded",
        "1,234",
    )
    # A tick whose run failed is not repeated.
    row = console.schedule_row("j", schedule, [run("failed", 0, "no"), run("succeeded", 80)], NOW)
    assert row[2:5] == ("2025-03-05 12:01:00", "2025-03-05 12:00:00", "failed: no")
    assert (
        console.schedule_row("j", schedule, [run("failed", 20, "x" * 99 + "\ny")], NOW)[4] == f"failed: {'x' * 57}..."
    )
    assert console.schedule_row("j", parse("off"), [run("lost", 5)], NOW)[2:5] == (
        "never",
        "2025-03-05 11:59:55",
        "lost",
    )


def test_long_tables_are_cut_and_say_so() -> None:
    printed = io.StringIO()
    terminal = Console(file=printed, width=120)
    rows = [(f"t{n}", "1") for n in range(console.MAX_LINES + 3)]
    console.show_differences([Difference("t", 4, "bytes", 7, 8)], terminal)
    console.show_figures(Figures(("topic", "messages"), rows), terminal)
    said = printed.getvalue()
    for part in ("differences", "bytes", "t19", "... and 3 more"):
        assert part in said
    assert "t20" not in said
