"""What a person sees while it runs: bars on a terminal, a line for each measurement elsewhere."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.measurement import Measurement, Result
from benchmarks.table import figure_text


class Watch:
    def __init__(self, console: Console, total: int) -> None:
        self._console = console
        self._total = total
        self._done = 0
        self._began = time.monotonic()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
            refresh_per_second=2,  # drawing must not take from what is measured
        )
        self._all = self._progress.add_task("all measurements", total=total)
        self._current = self._progress.add_task("starting", total=None)

    def say(self, text: str) -> None:
        if self._console.is_terminal:
            self._progress.update(self._current, description=text, total=None, completed=0)
        else:
            self._line(text)

    def begin(self, measurement: Measurement, seconds: float) -> None:
        name = f"{measurement.system}: {measurement.method}, {measurement.size} B"
        self._progress.update(self._current, description=name, total=round(seconds), completed=0)

    def tick(self, elapsed_s: float) -> None:
        self._progress.update(self._current, completed=round(elapsed_s))

    def end(self, result: Result) -> None:
        self._done += 1
        self._progress.update(self._all, completed=self._done)
        found = f"FAILED: {result.error}" if result.figure is None else figure_text(result.figure)
        self._line(f"[{self._done}/{self._total}] {result.system}: {result.method}, {result.size} B: {found}")

    def skip(self, count: int, text: str) -> None:
        """Measurements that will not take place."""
        self._done += count
        self._progress.update(self._all, completed=self._done)
        self._line(text)

    def _line(self, text: str) -> None:
        elapsed = time.monotonic() - self._began
        self._progress.console.print(f"{elapsed:6.0f} s  {text}", markup=False, highlight=False)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
