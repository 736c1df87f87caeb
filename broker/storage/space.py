"""Free space of the disk, and the two marks below which less and less is written.

Below the low mark leaders append no messages any more. Below the hard mark followers refuse entries too. Between the
marks there is room for all that is in flight and for a retention cut; what is left below the hard mark belongs to votes
and to the files that a cut has to write before it frees others.
"""

from collections.abc import Callable

from myqueue.protocol.errors import DiskFull


class FreeSpace:
    """`free_bytes` answers None when nothing limits it."""

    def __init__(self, free_bytes: Callable[[], int | None], reserve_bytes: int) -> None:
        self.free_bytes = free_bytes
        self.low_mark_bytes = reserve_bytes
        self.hard_mark_bytes = reserve_bytes // 2

    def is_low(self, in_flight_bytes: int) -> bool:
        """`in_flight_bytes` have been accepted and will take room in the files."""
        return self._is_below(self.low_mark_bytes, in_flight_bytes)

    def is_below_hard_mark(self, in_flight_bytes: int) -> bool:
        return self._is_below(self.hard_mark_bytes, in_flight_bytes)

    def is_exhausted(self, in_flight_bytes: int) -> bool:
        """Not even a snapshot fits."""
        return self._is_below(self.hard_mark_bytes // 4, in_flight_bytes)

    def _is_below(self, mark_bytes: int, in_flight_bytes: int) -> bool:
        free = self.free_bytes()
        return free is not None and free - in_flight_bytes < mark_bytes

    def check(self, in_flight_bytes: int) -> None:
        if self.is_low(in_flight_bytes):
            raise DiskFull(
                f"the broker's disk is almost full: {self.free_bytes()} bytes free,"
                f" {self.low_mark_bytes} kept in reserve"
            )
