"""What a commit of the broker's storage costs, as a ratio to a plain write of the same bytes."""

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measurement import Addresses, Figure, Measurement, Pace, Running
from benchmarks.ours import Ours
from benchmarks.store import opened_store
from myqueue import __version__

KEY = "myqueue-commits"
METHOD = "a commit / pwritev and fdatasync"
SIZES = (2 << 10, 1 << 20)
FILE_BYTES = 32 << 20
PAGE_BYTES = 4096

Commit = Callable[[bytes], None]


@dataclass(frozen=True, slots=True)
class CommitCost:
    """Medians of one run, in which the two took turns."""

    store_s: float
    plain_s: float
    rounds: int

    @property
    def ratio(self) -> float:
        return self.store_s / self.plain_s


def commit_ratio(store_commit: Commit, size: int, folder: Path, seconds: float, warm_up_s: float = 0.0) -> CommitCost:
    """In turn with the plain write: when the disk or another process slows down, it does so for both."""
    data = os.urandom(size)
    store_s: list[float] = []
    plain_s: list[float] = []
    with plain_file(folder) as plain_commit:
        warm = time.perf_counter() + warm_up_s
        end = warm + seconds
        while not store_s or time.perf_counter() < end:
            took = timed(store_commit, data), timed(plain_commit, data)
            if time.perf_counter() >= warm:
                store_s.append(took[0])
                plain_s.append(took[1])
    return CommitCost(statistics.median(store_s), statistics.median(plain_s), len(store_s))


def timed(commit: Commit, data: bytes) -> float:
    began = time.perf_counter()
    commit(data)
    return time.perf_counter() - began


@contextlib.contextmanager
def plain_file(folder: Path) -> Iterator[Commit]:
    """Writes into blocks that were written before, at the beginning of a page each time, and syncs them."""
    path = folder / f"plain-{os.getpid()}"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    position = 0

    def commit(data: bytes) -> None:
        nonlocal position
        if position + len(data) > FILE_BYTES:
            position = 0
        written = os.pwritev(descriptor, [data], position)
        if written != len(data):
            raise OSError(f"{written} bytes of {len(data)} were written")
        os.fdatasync(descriptor)
        position += -(-len(data) // PAGE_BYTES) * PAGE_BYTES

    try:
        for start in range(0, FILE_BYTES, 1 << 20):
            os.pwrite(descriptor, os.urandom(1 << 20), start)
        os.fsync(descriptor)
        yield commit
    finally:
        os.close(descriptor)
        path.unlink()


class OursCommits(Ours):
    """No stack: the storage of one broker in the process that measures."""

    key = KEY

    @contextlib.contextmanager
    def running(self, folder: Path) -> Iterator[Running]:
        yield Running(__version__, {"folder": str(folder)})

    def measurements(self) -> list[Measurement]:
        return [Measurement(KEY, "storage", METHOD, size, commit) for size in SIZES]


def commit(addresses: Addresses, pace: Pace, size: int) -> Figure:
    folder = Path(addresses["folder"])
    with opened_store(folder / f"store-{size}") as store:
        cost = commit_ratio(store.commit, size, folder, pace.seconds / 3, pace.warm_up_s / 3)
    return Figure(
        cost.ratio,
        "ratio",
        pace.seconds / 3,
        cost.rounds,
        {"store_ms": cost.store_s * 1000, "plain_ms": cost.plain_s * 1000},
    )
