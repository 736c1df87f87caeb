"""What the demo shows: progress while it runs, tables that prove the counts, where to look next."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from examples.invoices import ALL_TOPIC, INVALID_TOPIC, VALID_TOPIC
from examples.invoices.audit import Audit
from examples.invoices.pipeline import Counts, Outcome, Plan

WIDEST = 100
LINE_EVERY_S = 2.0  # in a log, where bars cannot move


def new_console() -> Console:
    console = Console(highlight=False)
    console.width = min(console.width, WIDEST)
    return console


class ProgressView:
    """Bars on a terminal, a line now and then in a log."""

    def __init__(self, console: Console, invoices: int) -> None:
        self._console = console
        self._invoices = invoices
        self._last_line = 0.0
        self._progress = Progress(
            TextColumn("  {task.description:<10}"),
            BarColumn(bar_width=40),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        bars = ("generated", "filtered", "valid", "invalid")
        self._bars = {name: self._progress.add_task(name, total=invoices) for name in bars}
        self._read_back = self._progress.add_task("read back", total=invoices)

    def show(self, counts: Counts) -> None:
        values = {name: getattr(counts, name) for name in self._bars}
        for name, bar in self._bars.items():
            self._progress.update(bar, completed=min(values[name], self._invoices))
        complete = counts.valid + counts.invalid >= self._invoices
        if complete:
            # Both sides together are all there is: their bars end where they stand.
            for name in ("valid", "invalid"):
                self._progress.update(self._bars[name], total=values[name])
        if not self._console.is_terminal and (complete or time.monotonic() - self._last_line >= LINE_EVERY_S):
            self._last_line = time.monotonic()
            self._console.print("  " + "   ".join(f"{name} {value}" for name, value in values.items()))

    def read_back(self) -> None:
        self._progress.advance(self._read_back)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()


def print_start(console: Console, plan: Plan) -> None:
    console.print(f"\n[bold]Invoice pipeline[/] on {plan.url}   [dim]run {plan.run}[/]")
    console.print(
        f"  {plan.generators} generators → [cyan]{ALL_TOPIC}[/] → {plan.filters} filters → "
        f"[green]{VALID_TOPIC}[/] | [red]{INVALID_TOPIC}[/]\n"
    )


def print_outcome(console: Console, plan: Plan, outcome: Outcome) -> None:
    console.print()
    for words in outcome.last_words:
        console.print(f"  {words}", style="dim")
    console.print()
    # One under the other where the width does not carry both.
    both = Table.grid(padding=(0, 4))
    both.add_row(_by_generator(outcome.audit), _by_reason(outcome.audit))
    console.print(both)
    console.print()
    console.print(_proof(outcome.audit))
    rate = plan.invoices / outcome.pipeline_s
    read_rate = (outcome.audit.total.valid + outcome.audit.total.invalid) / max(outcome.read_back_s, 0.001)
    console.print(
        f"  pipeline {outcome.pipeline_s:.1f} s, {rate:.0f} invoices/s    read back {outcome.read_back_s:.1f} s, "
        f"{read_rate:.0f} invoices/s",
        style="dim",
    )
    if outcome.audit.adds_up:
        console.print("\n  [bold green]✓ It adds up:[/] every invoice is on exactly one side, none lost, none twice.\n")
    else:
        console.print("\n  [bold red]✗ It does not add up.[/]\n")


def _by_generator(audit: Audit) -> Table:
    table = Table(title="by generator", title_justify="left", show_footer=True)
    table.add_column("", footer="all")
    table.add_column("sent", justify="right", footer=str(audit.total.sent))
    table.add_column("valid", justify="right", footer=str(audit.total.valid), style="green")
    table.add_column("invalid", justify="right", footer=str(audit.total.invalid), style="red")
    for name, tally in sorted(audit.by_generator.items()):
        table.add_row(name, str(tally.sent), str(tally.valid), str(tally.invalid))
    return table


def _by_reason(audit: Audit) -> Table:
    table = Table(title="why invalid", title_justify="left", show_footer=True)
    table.add_column("reason", footer="all")
    table.add_column("invoices", justify="right", footer=str(audit.reasons.total()))
    for reason, count in sorted(audit.reasons.items()):
        table.add_row(reason, str(count))
    return table


def _proof(audit: Audit) -> Table:
    table = Table(title="does it add up? (both topics read back by new consumers)", title_justify="left")
    table.add_column("")
    table.add_column("invoices", justify="right")
    table.add_column("")

    def check(what: str, count: int, good: bool) -> None:
        table.add_row(what, str(count), "[green]✓[/]" if good else "[red]✗[/]")

    table.add_row("sent by the generators", str(audit.total.sent), "")
    table.add_row(f"read back from {VALID_TOPIC}", str(audit.total.valid), "")
    table.add_row(f"read back from {INVALID_TOPIC}", str(audit.total.invalid), "")
    together = audit.total.valid + audit.total.invalid
    check("both sides together", together, together == audit.total.sent)
    table.add_section()
    for what, problems in (
        ("lost", audit.lost),
        ("more than once", audit.repeated),
        ("on the wrong side or with a wrong reason", audit.misjudged),
        ("never sent", audit.unknown),
    ):
        check(what, len(problems), not problems)
    return table


def print_next_steps(console: Console, plan: Plan) -> None:
    text = "\n".join(
        (
            f"[bold]{plan.url}/docs[/]  the API, to read and to try",
            "[bold]make status[/]  all processes   [bold]make logs[/]  what they say   [bold]make down[/]  stop",
            "[bold].venv/bin/myqueue --help[/]  topics, messages and the cluster from a shell",
            "[bold]README.md[/]  [bold]docs/client.md[/]  [bold]examples/invoices/[/]  how to use it from your code",
            "",
            f"curl {plan.url}/topics",
            f"curl {plan.url}/topics/{VALID_TOPIC}/partitions",
            f'curl {plan.url}/producer/register --json \'{{"topic":"hello"}}\'',
        )
    )
    console.print(Panel(text, title="where to look next", title_align="left", padding=(0, 1)))
