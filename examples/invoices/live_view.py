"""The run while it happens: bars, rates and sparklines on a terminal, a line every second in a log."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from examples.invoices.figures import SAMPLE_S, Event, Figures, sparkline
from examples.invoices.pipeline import Plan

LINE_INTERVAL_S = 1.0
FRAMES_PER_S = 8
SLOWER_S = 4.0  # than the rate says: for the start, and for the broker that is killed
RATE_CHARS = len("12,345/s")
COLOURS = ("cyan", "magenta", "yellow", "blue", "green", "red")


class LiveView:
    def __init__(self, console: Console, plan: Plan, figures: Figures) -> None:
        self._console = console
        self._plan = plan
        self._figures = figures
        self._last_line_s = -LINE_INTERVAL_S
        self._printed_events = 0
        self._last_line = ""
        self._live = Live(console=console, auto_refresh=False, transient=False)
        self._last_frame = 0.0

    def update(self) -> None:
        now = time.monotonic()
        if not self._console.is_terminal:
            self._log(now)
        elif now - self._last_frame >= 1 / FRAMES_PER_S:
            self._last_frame = now
            self._live.update(self._frame(), refresh=True)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._live.update(self._frame(), refresh=True)
            self._live.stop()
        else:
            self._log(time.monotonic(), last=True)

    def _log(self, now: float, *, last: bool = False) -> None:
        figures = self._figures
        for event in figures.events[self._printed_events :]:
            self._printed_events += 1
            self._console.print(f"  {event.at_s:4.1f} s  * {event.text}", markup=False, soft_wrap=False)
        if now - self._last_line_s < LINE_INTERVAL_S and not last:
            return
        self._last_line_s = now
        total = self._plan.invoices
        if not figures.generated:
            text = f"{self._plan.generators} generators and {self._plan.filters} filters start"
        elif figures.read_back:
            text = f"read back {figures.read_back:,} of {total:,}"
        else:
            text = (
                f"generated {figures.generated:,} ({figures.rate('generated', total):,.0f}/s)  "
                f"filtered {figures.filtered:,} ({figures.rate('filtered', total):,.0f}/s)  waiting {figures.waiting:,}"
            )
        if text != self._last_line:
            self._last_line = text
            self._console.print(f"  {figures.now_s():4.1f} s  {text}", markup=False)

    def _frame(self) -> Group:
        figures, plan = self._figures, self._plan
        return Group(
            self._totals(),
            Text(""),
            self._filters(),
            Text(""),
            *(self._event(event) for event in figures.events),
            *([Text("")] if figures.events else []),
            *([self._read_back()] if figures.read_back or figures.filtered >= plan.invoices else []),
        )

    def _totals(self) -> Table:
        figures, total = self._figures, self._plan.invoices
        bar = self._bar_width
        bucket_s = max(SAMPLE_S, (total / self._plan.rate + SLOWER_S) / bar)
        table = self._grid()
        for name, colour in (("generated", "cyan"), ("filtered", "green")):
            done = getattr(figures, name)
            table.add_row(
                f"  {name}",
                ProgressBar(total, min(done, total), width=bar, complete_style=colour, finished_style=colour),
                f"{done:,}",
                f"{figures.rate(name, total):,.0f}/s",
                Text(sparkline(figures.history(name, bucket_s))[-bar:], style=colour),
            )
        waiting = figures.history("waiting", bucket_s)
        rate = figures.rate("filtered", total)
        table.add_row(
            "  waiting",
            Text(f"{max(waiting, default=0):,.0f} at most", style="dim"),
            f"{figures.waiting:,}",
            f"{figures.waiting / rate:.1f} s" if rate else "",
            Text(sparkline(waiting)[-bar:], style="yellow"),
        )
        return table

    def _filters(self) -> Table:
        figures = self._figures
        filtered = max(1, figures.filtered)
        largest = max(1, *(one.filtered for one in figures.filters.values()))
        table = self._grid()
        for number, (name, one) in enumerate(figures.filters.items()):
            style = COLOURS[number % len(COLOURS)]
            held = ", ".join(map(str, one.partitions))
            partitions = f"partition{'s' if len(one.partitions) > 1 else ''} {held}" if held else "no partition yet"
            table.add_row(
                f"  {name}",
                ProgressBar(largest, one.filtered, width=self._bar_width, complete_style=style, finished_style=style),
                f"{one.filtered:,}",
                f"{one.rate():,.0f}/s",
                Text(f"{100 * one.filtered / filtered:2.0f} %  {partitions}", style="dim"),
            )
        return table

    @property
    def _bar_width(self) -> int:
        return 30 if self._console.width >= 96 else 20

    def _grid(self) -> Table:
        """Name, bar, count, rate and text; the columns keep their widths while the figures grow."""
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(min_width=11, no_wrap=True)
        table.add_column(min_width=self._bar_width, no_wrap=True)
        table.add_column(min_width=len(f"{self._plan.invoices:,}"), justify="right", no_wrap=True)
        table.add_column(min_width=RATE_CHARS, justify="right", no_wrap=True)
        table.add_column(no_wrap=True, overflow="ellipsis")
        return table

    def _event(self, event: Event) -> Text:
        text = Text(f"  {event.at_s:4.1f} s  ", style="dim")
        text.append("✓ " if event.good else "✗ ", style="green" if event.good else "red")
        text.append(event.text, style="default" if event.good else "bold red")
        return text

    def _read_back(self) -> Table:
        done, total = self._figures.read_back, self._plan.invoices
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_row("  read back", ProgressBar(total, min(done, total), width=30), f"{done:,} of {total:,}")
        return table
