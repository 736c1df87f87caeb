"""One run of everything that was chosen: each system alone on the machine, from its start to its end."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from benchmarks import machine
from benchmarks.measurement import Measurement, Pace, Result
from benchmarks.ours import Ours
from benchmarks.peers.kafka_mock import KafkaMock
from benchmarks.peers.nats import Nats
from benchmarks.peers.rabbitmq import RabbitMq
from benchmarks.peers.redis import Redis
from benchmarks.progress import Watch
from benchmarks.report import Report
from benchmarks.runner import expected_s, measure
from benchmarks.spark import OursSpark, OursSparkJobs
from benchmarks.storage import OursStored
from benchmarks.system import System, SystemNote

ROOM_BYTES_PER_S = 1_300_000_000  # for each second that one measurement takes
FIXED_ROOM_BYTES = 4_000_000_000

SYSTEMS: tuple[System, ...] = (
    Ours(),
    OursStored(),
    OursSpark(),
    OursSparkJobs(),
    Redis(),
    Nats(),
    KafkaMock(),
    RabbitMq(),
)


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
    """Those whose key (system.method.size) has one of the texts in it; all of them without any."""
    return [one for one in system.measurements() if not only or any(text in one.key for text in only)]


def run(pace: Pace, only: Sequence[str], parent_folder: Path | None, console: Console) -> Report:
    started = datetime.now(UTC).isoformat(timespec="seconds")
    plan = [(system, measurements) for system in SYSTEMS if (measurements := chosen(system, only))]
    notes: list[SystemNote] = []
    results: list[Result] = []
    with _folder(parent_folder) as folder:
        check_room(folder, pace)
        about = machine.describe(folder)
        if about["filesystem"] == "tmpfs":
            console.print(f"[yellow]{folder} is memory, not a disk: this run says nothing about durability")
        with Watch(console, sum(len(measurements) for _, measurements in plan)) as watch:
            for system, measurements in plan:
                note, found = _run_system(system, measurements, pace, folder / system.key, watch)
                notes.append(note)
                results.extend(found)
    return Report(started, pace.quick, pace.seconds, about, notes, results)


def _run_system(
    system: System, measurements: list[Measurement], pace: Pace, folder: Path, watch: Watch
) -> tuple[SystemNote, list[Result]]:
    note = SystemNote(system.key, system.title, system.durability, version=None, missing=system.missing())
    if note.missing:
        watch.skip(len(measurements), f"{system.title} is missing: {note.missing}")
        return note, []
    results: list[Result] = []
    watch.say(f"starting {system.title}")
    folder.mkdir(mode=0o711)
    try:
        with system.running(folder) as running:
            note = replace(note, version=running.version)
            for measurement in measurements:
                watch.begin(measurement, expected_s(pace))
                result = measure(measurement, running.addresses, replace(pace, servers=running.pids), watch.tick)
                results.append(result)
                watch.end(result)
            watch.say(f"ending {system.title}")
    except Exception as error:  # noqa: BLE001 one system that does not start or end must not hide the others' figures
        left = measurements[len(results) :] or [replace(measurements[-1], method="ending it")]
        for one in left:
            broken = Result(one.system, one.group, one.method, one.size, figure=None, error=repr(error))
            results.append(broken)
            watch.end(broken)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.sync()  # what this one left to write must not slow the next
    return note, results


@contextlib.contextmanager
def _folder(parent: Path | None) -> Iterator[Path]:
    """On the disk that is to be measured. Servers of other users get to their own folders through it."""
    folder = Path(tempfile.mkdtemp(prefix="myqueue-bench-", dir=parent))
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
