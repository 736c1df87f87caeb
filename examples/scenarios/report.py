"""What a run shows: progress while it goes on, a table that proves it, and everything that is wrong."""

import time
from collections import Counter
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from examples.scenarios.checking import Consumed, Verdict
from examples.scenarios.mapping import Scenario

WIDEST = 100
LINE_EVERY_S = 2.0  # in a log, where bars cannot move
EXAMPLES = 3  # of each kind of mistake


def new_console() -> Console:
    console = Console(highlight=False)
    console.width = min(console.width, WIDEST)
    return console


class ProgressView:
    """Bars on a terminal, a line now and then in a log."""

    def __init__(self, console: Console, expected: dict[int, int]) -> None:
        self._console = console
        self._last_line = time.monotonic()
        self._progress = Progress(
            TextColumn("  {task.description:<20}"),
            BarColumn(bar_width=40),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._bars = {number: self._progress.add_task(f"C{number}", total=total) for number, total in expected.items()}

    def show(self, phase: str, received: dict[int, int]) -> None:
        for number, bar in self._bars.items():
            self._progress.update(bar, completed=received[number], description=f"C{number} ({phase})")
        if not self._console.is_terminal and time.monotonic() - self._last_line >= LINE_EVERY_S:
            self._last_line = time.monotonic()
            counts = "  ".join(f"C{number} {count}" for number, count in received.items())
            self._console.print(f"  {phase}: {counts}", markup=False)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()


def print_start(console: Console, scenario: Scenario, url: str) -> None:
    console.print(f"\n[bold]{scenario.name}[/] on {url}")
    for topic in scenario.topics:
        senders = " ".join(f"P{number}" for number, topics in scenario.producers.items() if topic in topics)
        readers = " ".join(f"C{number}" for number, topics in scenario.consumers.items() if topic in topics)
        console.print(f"  {topic}: {senders} → {readers}", markup=False)


def print_verdicts(console: Console, scenario: Scenario, verdicts: dict[int, Verdict]) -> None:
    table = Table(title="what the consumers have read", title_justify="left")
    table.add_column("")
    table.add_column("topics")
    for heading in ("sent", "read", "missing", "twice", "never sent", "disorder"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for number, verdict in verdicts.items():
        mistakes = (verdict.missing.total(), verdict.repeated.total(), verdict.unknown.total(), len(verdict.disordered))
        table.add_row(
            f"C{number}",
            " ".join(scenario.consumers[number]),
            str(verdict.expected),
            str(verdict.received),
            *map(str, mistakes),
            "[green]✓[/]" if verdict.is_good else "[red]✗[/]",
        )
    console.print(table)
    for number, verdict in verdicts.items():
        for problem in problems(verdict):
            console.print(f"  C{number}: {problem}", style="red", markup=False, soft_wrap=True)
    unjudged = max((verdict.unjudged for verdict in verdicts.values()), default=0)
    if unjudged:
        console.print(
            f"  {unjudged} messages were sent alike by several lanes: they are counted, their order is not judged"
        )


def problems(verdict: Verdict) -> list[str]:
    """A line for each kind of mistake, with the first ones named."""
    kinds = (("missing", verdict.missing), ("read too often", verdict.repeated), ("never sent", verdict.unknown))
    lines = [f"{counted.total()} {what}: {_named(counted)}" for what, counted in kinds if counted]
    if verdict.disordered:
        lines.append(f"{len(verdict.disordered)} out of order: {'; '.join(verdict.disordered[:EXAMPLES])}")
    return lines


def _named(counted: Counter[Consumed]) -> str:
    named = ", ".join(f"{topic} {message[:80]!r}" for topic, message in list(counted)[:EXAMPLES])
    return named + (" …" if len(counted) > EXAMPLES else "")
