"""The kernel's cache of the data file: what was written a while ago makes room for what is written now.

A log grows without end, and so would its cached pages, each of them new memory. Whoever reads old messages has the
kernel read ahead from the disk.
"""

import os
from pathlib import Path

_KEPT_BYTES = 256 << 20  # of the end of the file: readers that are a little behind
_STEP_BYTES = 16 << 20


class PageCache:
    """Close it only after every connection to the file: closing any descriptor drops SQLite's locks on it."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY)
        self._given_up = 0

    def give_up_old(self) -> None:
        end = os.fstat(self._descriptor).st_size - _KEPT_BYTES
        if end >= self._given_up + _STEP_BYTES:
            os.posix_fadvise(self._descriptor, self._given_up, end - self._given_up, os.POSIX_FADV_DONTNEED)
            self._given_up = end

    def close(self) -> None:
        os.close(self._descriptor)
