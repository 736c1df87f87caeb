"""Free space of the data folder: the last of it is kept for what must still work on a full disk."""

import os
from collections.abc import Callable
from pathlib import Path

from myqueue.protocol.errors import DiskFull


def free_bytes_of(folder: Path) -> Callable[[], int]:
    def free_bytes() -> int:
        found = os.statvfs(folder)
        return found.f_bavail * found.f_frsize

    return free_bytes


class Space:
    """`free_bytes` None: nothing to watch, everything is in memory."""

    def __init__(self, free_bytes: Callable[[], int] | None, reserve_bytes: int) -> None:
        self._free_bytes = free_bytes
        self.reserve_bytes = reserve_bytes

    def free_bytes(self) -> int | None:
        return None if self._free_bytes is None else self._free_bytes()

    def fits(self, more_bytes: int) -> bool:
        """Whether the reserve stays untouched."""
        free = self.free_bytes()
        return free is None or free - more_bytes >= self.reserve_bytes

    def check(self, promised_bytes: int) -> None:
        """`promised_bytes` are on their way to the disk already."""
        if not self.fits(promised_bytes):
            raise DiskFull(
                f"the broker's disk is almost full: {self.free_bytes()} bytes free,"
                f" {self.reserve_bytes} kept in reserve"
            )
