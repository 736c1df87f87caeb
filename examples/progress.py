"""Progress of an example: bars on a terminal, a line every two seconds in a log."""

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

MAX_WIDTH = 100
LINE_INTERVAL_S = 2.0


def new_console() -> Console:
    console = Console(highlight=False)
    console.width = min(console.width, MAX_WIDTH)
    return console


class ProgressBars:
    def __init__(self, console: Console, totals: Mapping[str, int], *, label_width: int) -> None:
        self._console = console
        self._last_line_s = time.monotonic()
        self._progress = Progress(
            TextColumn(f"  {{task.description:<{label_width}}}"),
            BarColumn(bar_width=40),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._bars = {name: self._progress.add_task(name, total=total) for name, total in totals.items()}

    def update(
        self, name: str, completed: int | None = None, *, total: int | None = None, label: str | None = None
    ) -> None:
        self._progress.update(self._bars[name], completed=completed, total=total, description=label)

    def advance(self, name: str) -> None:
        self._progress.advance(self._bars[name])

    def log_line(self, text: str, *, now: bool = False) -> None:
        """Only in a log; `now`: however short the time since the last one."""
        if not self._console.is_terminal and (now or time.monotonic() - self._last_line_s >= LINE_INTERVAL_S):
            self._last_line_s = time.monotonic()
            self._console.print(f"  {text}", markup=False)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
