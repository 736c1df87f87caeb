"""What the disk itself can do: one small write made durable, over and over."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

FILE_BYTES = 16 << 20
BLOCK = 4096


@contextlib.contextmanager
def fdatasync_probe(folder: Path) -> Iterator[Callable[[], float]]:
    """Gives a function that writes 4 KiB into a file of full length, makes them durable and tells how long it took."""
    path = folder / f"fdatasync-{os.getpid()}.probe"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    block = os.urandom(BLOCK)
    position = 0

    def sync() -> float:
        nonlocal position
        began = time.perf_counter()
        os.pwrite(descriptor, block, position)
        os.fdatasync(descriptor)
        position = (position + BLOCK) % FILE_BYTES
        return time.perf_counter() - began

    try:
        os.pwrite(descriptor, os.urandom(FILE_BYTES), 0)
        os.fsync(descriptor)
        yield sync
    finally:
        os.close(descriptor)
        path.unlink()


def fdatasync_latencies(folder: Path, seconds: float) -> list[float]:
    """One after the other without a pause."""
    with fdatasync_probe(folder) as sync:
        deadline = time.perf_counter() + seconds
        latencies = [sync()]
        while time.perf_counter() < deadline:
            latencies.append(sync())
        return latencies
