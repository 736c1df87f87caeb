"""One run of the chosen measurements: each system alone on the machine, from its start to its end."""

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import machine
from benchmarks.commits import OursCommits
from benchmarks.measurement import Measurement, Pace, Result, System, SystemNote, median_of
from benchmarks.ours import Ours
from benchmarks.peers.kafka import ApacheKafka
from benchmarks.peers.nats import Nats
from benchmarks.peers.rabbitmq import RabbitMq
from benchmarks.peers.redis import Redis
from benchmarks.report import Report
from benchmarks.runner import expected_s, measure
from benchmarks.spark import OursSpark, OursSparkJobs
from benchmarks.storage import OursOccupied, OursStored
from benchmarks.table import figure_text

ROOM_BYTES_PER_S = 1_300_000_000  # for each second that one measurement takes
FIXED_ROOM_BYTES = 4_000_000_000
SYSTEMS: tuple[System, ...] = (
    Ours(),
    ApacheKafka(),
    OursStored(),
    OursOccupied(),
    OursCommits(),
    OursSpark(),
    OursSparkJobs(),
    Redis(),
    Nats(),
    RabbitMq(),
)


class ProgressDisplay:
    """Bars on a terminal, a line for each measurement elsewhere."""

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
            refresh_per_second=2,  # drawing must not disturb the measurement
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
        """Counts measurements that are left out."""
        self._done += count
        self._progress.update(self._all, completed=self._done)
        self._line(text)

    def _line(self, text: str) -> None:
        elapsed = time.monotonic() - self._began
        self._progress.console.print(f"{elapsed:6.0f} s  {text}", markup=False, highlight=False)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()


class NotEnoughRoom(Exception):
    """The disk would fill up before the end."""


def check_room(folder: Path, pace: Pace) -> None:
    """Three replicas of everything that is sent, at twice the rate that was seen."""
    needed = round(pace.seconds * ROOM_BYTES_PER_S) + FIXED_ROOM_BYTES
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise NotEnoughRoom(
            f"{folder} has {free / 1e9:.1f} GB free, a run needs {needed / 1e9:.0f} GB; choose another with --folder"
        )


def chosen(system: System, only: Sequence[str]) -> list[Measurement]:
    """Measurements with one of the texts in group.system.method.size; without texts all of them."""
    names = [(one, f"{one.group}.{one.key}") for one in system.measurements()]
    return [one for one, name in names if not only or any(text in name for text in only)]


def planned(systems: Sequence[System], only: Sequence[str], rounds: int) -> list[tuple[System, list[Measurement]]]:
    """All of them once, and the repeated ones in further rounds: what changes with time then meets every system."""
    plan = []
    for number in range(rounds):
        for system in systems:
            found = [one for one in chosen(system, only) if number == 0 or one.repeated]
            if found:
                plan.append((system, found))
    return plan


def run(pace: Pace, only: Sequence[str], parent_folder: Path | None, console: Console) -> Report:
    started = datetime.now(UTC).isoformat(timespec="seconds")
    plan = planned(SYSTEMS, only, pace.rounds)
    notes: dict[str, SystemNote] = {}
    rounds: dict[str, list[Result]] = {}
    with _folder(parent_folder) as folder:
        check_room(folder, pace)
        about = machine.describe(folder)
        if about["filesystem"] == "tmpfs":
            console.print(f"[yellow]{folder} is memory, not a disk: this run says nothing about durability")
        with ProgressDisplay(console, sum(len(measurements) for _, measurements in plan)) as display:
            for system, measurements in plan:
                note, found = _run_system(system, measurements, pace, folder / system.key, display)
                notes.setdefault(note.key, note)
                for result in found:
                    rounds.setdefault(result.key, []).append(result)
    results = [median_of(results) for results in rounds.values()]
    return Report(started, pace.quick, pace.seconds, about, list(notes.values()), results)


def _run_system(
    system: System, measurements: list[Measurement], pace: Pace, folder: Path, display: ProgressDisplay
) -> tuple[SystemNote, list[Result]]:
    note = SystemNote(system.key, system.title, system.durability, version=None, missing=system.missing())
    if note.missing:
        display.skip(len(measurements), f"{system.title} is missing: {note.missing}")
        return note, []
    results: list[Result] = []
    display.say(f"starting {system.title}")
    folder.mkdir(mode=0o711)
    try:
        with system.running(folder) as running:
            note = replace(note, version=running.version)
            for measurement in measurements:
                display.begin(measurement, expected_s(pace))
                result = measure(measurement, running.addresses, replace(pace, servers=running.pids), display.tick)
                results.append(result)
                display.end(result)
            display.say(f"ending {system.title}")
    except Exception as error:  # noqa: BLE001 one system that does not start or end must not hide the others' figures
        left = measurements[len(results) :] or [replace(measurements[-1], method="ending it")]
        for one in left:
            broken = Result(one.system, one.group, one.method, one.size, figure=None, error=repr(error))
            results.append(broken)
            display.end(broken)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.sync()  # writes of this system must not slow the next
    return note, results


@contextlib.contextmanager
def _folder(parent: Path | None) -> Iterator[Path]:
    """On the disk to be measured. Servers of other users can reach their own folders in it."""
    folder = Path(tempfile.mkdtemp(prefix="myqueue-bench-", dir=parent))
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
