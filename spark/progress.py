"""What a person sees while a run works: Spark's tasks as a bar on a terminal, a line for each step elsewhere."""

import time
from types import TracebackType
from typing import Self

from pyspark import SparkContext
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from spark.runs import Run


def tasks(context: SparkContext) -> tuple[int, int]:
    """Done and all tasks of the stages that are running."""
    tracker = context.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    known = [stage for stage in stages if stage is not None]
    return sum(stage.numCompletedTasks for stage in known), sum(stage.numTasks for stage in known)


class Watch:
    def __init__(self, run: Run, console: Console) -> None:
        self._run = run
        self._console = console
        self._began = time.monotonic()
        self._said = ""
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[tasks]}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self._bar = self._progress.add_task(run.job, total=None, tasks="")

    def look(self, context: SparkContext | None) -> None:
        doing = self._run.doing
        if not self._console.is_terminal:
            if doing != self._said:
                self._said = doing
                elapsed = time.monotonic() - self._began
                self._console.print(f"{elapsed:6.0f} s  {self._run.job}: {doing}", markup=False, highlight=False)
            return
        done, all_of_them = tasks(context) if context is not None else (0, 0)
        self._progress.update(
            self._bar,
            description=f"{self._run.job}: {doing}",
            completed=done,
            total=all_of_them or None,
            tasks=f"{done}/{all_of_them} tasks" if all_of_them else "",
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
