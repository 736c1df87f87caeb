"""Output of the demo before and after the run: what it is, the tables that prove the counts, and next steps."""

from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from examples.invoices import ALL_TOPIC, INVALID_TOPIC, VALID_TOPIC
from examples.invoices.audit import Audit
from examples.invoices.pipeline import PipelineOutcome, Plan


def print_start(console: Console, plan: Plan) -> None:
    console.print(f"\n[bold]Invoice pipeline[/] on {plan.url}   [dim]run {plan.run}[/]")
    console.print(
        f"  {plan.generators} generators → [cyan]{ALL_TOPIC}[/] → {plan.filters} filters → "
        f"[green]{VALID_TOPIC}[/] | [red]{INVALID_TOPIC}[/]\n"
    )


def print_outcome(console: Console, plan: Plan, outcome: PipelineOutcome) -> None:
    console.print()
    console.print(_by_filter(outcome))
    console.print()
    # One below the other where the console is too narrow for both.
    both = Table.grid(padding=(0, 4))
    both.add_row(_by_generator(outcome.audit), _by_reason(outcome.audit))
    console.print(both)
    console.print()
    console.print(_proof(outcome.audit))
    console.print(
        f"  pipeline {outcome.pipeline_s:.1f} s, with the start of {plan.generators + plan.filters} processes;"
        f" made again, read back and compared in {outcome.read_back_s:.1f} s",
        style="dim",
    )
    if outcome.audit.adds_up:
        console.print("\n  [bold green]✓ It adds up:[/] every invoice is on exactly one side, none lost, none twice.\n")
    else:
        console.print("\n  [bold red]✗ It does not add up.[/]\n")


def _by_filter(outcome: PipelineOutcome) -> Table:
    filtered = max(1, outcome.figures.filtered)
    table = Table(title="by filter", title_justify="left")
    table.add_column("")
    table.add_column("invoices", justify="right")
    table.add_column("share", justify="right")
    for name, one in outcome.figures.filters.items():
        table.add_row(name, f"{one.filtered:,}", f"{100 * one.filtered / filtered:.0f} %")
    return table


def _by_generator(audit: Audit) -> Table:
    table = Table(title="by generator", title_justify="left", show_footer=True)
    table.add_column("", footer="all")
    table.add_column("sent", justify="right", footer=f"{audit.total.sent:,}")
    table.add_column("valid", justify="right", footer=f"{audit.total.valid:,}", style="green")
    table.add_column("invalid", justify="right", footer=f"{audit.total.invalid:,}", style="red")
    for name, tally in sorted(audit.by_generator.items()):
        table.add_row(name, f"{tally.sent:,}", f"{tally.valid:,}", f"{tally.invalid:,}")
    return table


def _by_reason(audit: Audit) -> Table:
    table = Table(title="why invalid", title_justify="left", show_footer=True)
    table.add_column("reason", footer="all")
    table.add_column("invoices", justify="right", footer=f"{audit.reasons.total():,}")
    for reason, count in sorted(audit.reasons.items()):
        table.add_row(reason, f"{count:,}")
    return table


def _proof(audit: Audit) -> Table:
    table = Table(title="does it add up? (both topics read back by new consumers)", title_justify="left")
    table.add_column("")
    table.add_column("invoices", justify="right")
    table.add_column("")

    def check(what: str, count: int, good: bool) -> None:
        table.add_row(what, f"{count:,}", "[green]✓[/]" if good else "[red]✗[/]")

    table.add_row("sent by the generators", f"{audit.total.sent:,}", "")
    table.add_row(f"read back from {VALID_TOPIC}", f"{audit.total.valid:,}", "")
    table.add_row(f"read back from {INVALID_TOPIC}", f"{audit.total.invalid:,}", "")
    together = audit.total.valid + audit.total.invalid
    check("both sides together", together, together == audit.total.sent)
    table.add_row("sent again by another filter, and left out", f"{audit.sent_again:,}", "")
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
            f"[bold]{plan.url}/[/]  the console in a browser: rates, topics, consumers",
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
