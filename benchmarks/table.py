"""The run as tables: for the terminal, and as Markdown in the documentation."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.figures import short
from benchmarks.goals import Outcome
from benchmarks.measurement import Figure, Result
from benchmarks.plot import svg
from benchmarks.report import Report
from stack.config import CHECKOUT

GROUPS = (
    "produce", "consume", "single HTTP produce", "single HTTP consume", "latency", "end to end", "metadata", "storage",
    "Spark",
)  # fmt: skip
COLOURS = {"reached": "green", "falls short": "red", "not measured": "yellow", "no goal": "dim"}
OURS = "myqueue"
Rows = list[tuple[str, ...]]


BEGIN = "<!-- figures of the last published benchmark run: begin -->"
END = "<!-- figures of the last published benchmark run: end -->"
PAGE = CHECKOUT / "docs" / "performance.md"
PICTURE = CHECKOUT / "docs" / "benchmark.svg"
RESULT_HEADINGS = ("measured", "size", "system", "how", "figure")
GOAL_HEADINGS = ("ratio", "measured", "goal", "")
SYSTEM_HEADINGS = ("system", "version", "durability")
CPU_HEADINGS = ("µs of CPU time for a message", "size", "client", "nginx", "brokers", "managers", "PostgreSQL", "all")
CPU_KINDS = (("client",), ("nginx",), ("broker-",), ("write-manager", "read-manager"), ("postgres",))


def in_order(results: Iterable[Result]) -> list[Result]:
    """By what is compared, then by size; the order of the run inside."""
    return sorted(results, key=lambda result: (GROUPS.index(result.group), result.size))


def figure_text(figure: Figure) -> str:
    match figure.unit:
        case "ms":
            rounds = _rounds_text(figure, 2)
            return f"p50 {figure.details['p50_ms']:.2f} ms{rounds}, p99 {figure.details['p99_ms']:.2f} ms"
        case "messages/s":
            return f"{figure.value:,.0f} /s{_rounds_text(figure, 0)}"
        case "share":
            return f"{figure.value:.2f} of the rate with none ({_count_text(figure, 'messages_stored_before')} stored)"
        case "times":
            histories = [_count_text(figure, f"{which}_history") for which in ("short", "long")]
            return f"{figure.value:.2f} times as long ({' → '.join(histories)} stored)"
        case "ratio":
            return f"{figure.value:.2f} ×"


def _rounds_text(figure: Figure, digits: int) -> str:
    """The spread of a median."""
    values = figure.details.get("rounds_all")
    return f" ({min(values):,.{digits}f}–{max(values):,.{digits}f})" if isinstance(values, list) else ""


def _count_text(figure: Figure, detail: str) -> str:
    count = figure.details[detail]
    assert isinstance(count, int)
    return f"{count:,}"


def size_text(size: int) -> str:
    if size < 1 << 10:
        return f"{size} B" if size else ""
    return f"{size >> 10} KiB" if size < 1 << 20 else f"{size >> 20} MiB"


def result_rows(report: Report) -> Rows:
    return [
        (
            result.group,
            size_text(result.size),
            report.title_of(result.system),
            result.method,
            f"failed: {result.error}" if result.figure is None else figure_text(result.figure),
        )
        for result in in_order(report.results)
    ]


def goal_rows(outcomes: Sequence[Outcome]) -> Rows:
    return [
        (outcome.goal.text, _value_text(outcome), _limit_text(outcome), outcome.verdict.replace("no goal", ""))
        for outcome in outcomes
    ]


def _value_text(outcome: Outcome) -> str:
    return "" if outcome.value is None else f"{short(outcome.value)}{outcome.goal.unit}"


def _limit_text(outcome: Outcome) -> str:
    goal = outcome.goal
    return "" if goal.limit is None else f"{'≤' if goal.at_most else '≥'} {goal.limit:g}{goal.unit}"


def system_rows(report: Report) -> Rows:
    rows = [
        (note.title, note.version or "", f"missing: {note.missing}" if note.missing else note.durability)
        for note in report.systems
        if note.version or note.missing
    ]
    return list(dict.fromkeys(rows))  # our own system has two stacks


def cpu_rows(report: Report) -> Rows:
    """Microseconds of CPU time for a message, by the kind of process, of everything that our own stack did."""
    rows: Rows = []
    for result in in_order(report.results):
        figure = result.figure
        if result.system != OURS or figure is None or figure.unit != "messages/s":
            continue
        spent = {
            name.removeprefix("cpu_s."): value / figure.messages * 1e6
            for name, value in figure.details.items()
            if name.startswith("cpu_s.") and isinstance(value, float | int)
        }
        sums = [sum(cpu for name, cpu in spent.items() if name.startswith(kind)) for kind in CPU_KINDS]
        rows.append((result.method, size_text(result.size), *(short(value) for value in (*sums, sum(spent.values())))))
    return rows


def show(report: Report, console: Console) -> None:
    console.print(_table("What was measured", RESULT_HEADINGS, result_rows(report), right=4))
    console.print(_table("Who promises what", SYSTEM_HEADINGS, system_rows(report)))
    console.print(_table("Where the time goes", CPU_HEADINGS, cpu_rows(report)))
    goals = _table("Ratios", GOAL_HEADINGS, [], right=1)
    for outcome, row in zip(report.outcomes, goal_rows(report.outcomes), strict=True):
        goals.add_row(*row[:3], f"[{COLOURS[outcome.verdict]}]{row[3]}")
    console.print(goals)
    if report.quick:
        console.print(f"Measured for {report.seconds:g} s each: quick figures, not ones to quote.")


def _table(title: str, headings: Sequence[str], rows: Rows, right: int | None = None) -> Table:
    table = Table(title=title, title_justify="left")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number == right else "left")
    for row in rows:
        table.add_row(*row)
    return table


def markdown(report: Report) -> str:
    machine = report.machine
    about = (
        f"Measured {report.started[:10]} on {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"{machine['filesystem']}, one fdatasync {machine['fdatasync_p50_ms']} ms (p50), Python {machine['python']}; "
        f"clients and servers share the machine; {report.seconds:g} s each."
    )
    parts = [
        about,
        _markdown_table(GOAL_HEADINGS, goal_rows(report.outcomes)),
        _markdown_table(RESULT_HEADINGS, result_rows(report)),
        _markdown_table(SYSTEM_HEADINGS, system_rows(report)),
        _markdown_table(CPU_HEADINGS, cpu_rows(report)),
    ]
    return "\n\n".join(parts)


def _markdown_table(headings: Sequence[str], rows: Rows) -> str:
    lines = [headings, tuple("---" for _ in headings), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '∣') for cell in line)} |" for line in lines)


def replace_between(text: str, new: str) -> str:
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError("the page has no markers for the figures")
    return f"{before}{BEGIN}\n{new}\n{END}{after}"


def publish(report: Report, page: Path = PAGE, picture: Path = PICTURE) -> list[Path]:
    """Puts the figures into the documentation, between markers."""
    page.write_text(replace_between(page.read_text(), markdown(report)))
    picture.write_text(svg(report))
    return [page, picture]
