"""Output of the demo: progress, the tables that prove the counts, and next steps."""

from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from examples.invoices import ALL_TOPIC, INVALID_TOPIC, VALID_TOPIC
from examples.invoices.audit import Audit
from examples.invoices.pipeline import Counts, PipelineOutcome, Plan
from examples.progress import ProgressBars

BARS = ("generated", "filtered", "valid", "invalid")
READ_BACK = "read back"


class InvoiceProgress:
    def __init__(self, console: Console, invoices: int) -> None:
        self._invoices = invoices
        self._shown = False
        self.bars = ProgressBars(console, dict.fromkeys((*BARS, READ_BACK), invoices), label_width=10)

    def show(self, counts: Counts) -> None:
        values = {name: getattr(counts, name) for name in BARS}
        for name, value in values.items():
            self.bars.update(name, min(value, self._invoices))
        complete = counts.valid + counts.invalid >= self._invoices
        if complete:
            # Only both sides together reach the number of invoices: end each bar where it stands.
            for name in ("valid", "invalid"):
                self.bars.update(name, total=values[name])
        self.bars.log_line(
            "   ".join(f"{name} {value}" for name, value in values.items()), now=complete or not self._shown
        )
        self._shown = True

    def add_read_back(self) -> None:
        self.bars.advance(READ_BACK)


def print_start(console: Console, plan: Plan) -> None:
    console.print(f"\n[bold]Invoice pipeline[/] on {plan.url}   [dim]run {plan.run}[/]")
    console.print(
        f"  {plan.generators} generators → [cyan]{ALL_TOPIC}[/] → {plan.filters} filters → "
        f"[green]{VALID_TOPIC}[/] | [red]{INVALID_TOPIC}[/]\n"
    )


def print_outcome(console: Console, plan: Plan, outcome: PipelineOutcome) -> None:
    console.print()
    for text in outcome.worker_output:
        console.print(f"  {text}", style="dim")
    console.print()
    # One below the other where the console is too narrow for both.
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
