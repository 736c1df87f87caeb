"""Output of a run: progress, the table that proves it, and every mistake."""

from collections import Counter

from rich.console import Console
from rich.table import Table

from examples.progress import ProgressBars
from examples.scenarios.checking import Consumed, ConsumerCheck
from examples.scenarios.mapping import Scenario

EXAMPLES = 3  # of each kind of mistake


class ScenarioProgress:
    def __init__(self, console: Console, expected: dict[int, int]) -> None:
        self.bars = ProgressBars(console, {f"C{number}": total for number, total in expected.items()}, label_width=20)

    def show(self, phase: str, received: dict[int, int]) -> None:
        for number, count in received.items():
            self.bars.update(f"C{number}", count, label=f"C{number} ({phase})")
        counts = "  ".join(f"C{number} {count}" for number, count in received.items())
        self.bars.log_line(f"{phase}: {counts}")


def print_start(console: Console, scenario: Scenario, url: str) -> None:
    console.print(f"\n[bold]{scenario.name}[/] on {url}")
    for topic in scenario.topics:
        senders = " ".join(f"P{number}" for number, topics in scenario.producers.items() if topic in topics)
        readers = " ".join(f"C{number}" for number, topics in scenario.consumers.items() if topic in topics)
        console.print(f"  {topic}: {senders} → {readers}", markup=False)


def print_verdicts(console: Console, scenario: Scenario, verdicts: dict[int, ConsumerCheck]) -> None:
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


def problems(verdict: ConsumerCheck) -> list[str]:
    """A line for each kind of mistake, with the first ones named."""
    kinds = (("missing", verdict.missing), ("read too often", verdict.repeated), ("never sent", verdict.unknown))
    lines = [f"{counted.total()} {what}: {_named(counted)}" for what, counted in kinds if counted]
    if verdict.disordered:
        lines.append(f"{len(verdict.disordered)} out of order: {'; '.join(verdict.disordered[:EXAMPLES])}")
    return lines


def _named(counted: Counter[Consumed]) -> str:
    named = ", ".join(f"{topic} {message[:80]!r}" for topic, message in list(counted)[:EXAMPLES])
    return named + (" …" if len(counted) > EXAMPLES else "")
