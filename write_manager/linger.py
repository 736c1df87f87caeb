"""Linger: work that is done in groups waits a moment for the clients that the group before has just answered.

Most of them send their next request at once. A group costs about the same however many requests share it, so it waits
for as many as there were, as long as they keep coming. A lone client is never waited for.
"""

import asyncio
from collections.abc import Callable

MAX_LINGER_S = 0.005
MAX_GAP_S = 0.002  # between two arrivals; longer than answering a whole group takes


class Linger:
    def __init__(self, waiting: Callable[[], int], end: Callable[[], None]) -> None:
        """`waiting` counts the requests that wait for the next group; `end` is called once after each `begin`."""
        self._waiting = waiting
        self._end = end
        self._expected = 0
        self._seen = 0  # requests that waited when the gap began
        self._gap_s = 0.0
        self._until_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, expected: int, round_trip_s: float) -> None:
        """The group before took `round_trip_s`. Two of those are the most that a request waits here."""
        self._expected = expected
        self._gap_s = min(round_trip_s, MAX_GAP_S)
        self._until_s = asyncio.get_running_loop().time() + min(2 * round_trip_s, MAX_LINGER_S)
        self._start_gap()
        self.arrived()

    def arrived(self) -> None:
        """More requests wait."""
        if self._timer is not None and self._waiting() >= self._expected:
            self._stop()

    def _start_gap(self) -> None:
        self._seen = self._waiting()
        self._timer = asyncio.get_running_loop().call_later(self._gap_s, self._gap_ended)

    def _gap_ended(self) -> None:
        waiting = self._waiting()
        # While nothing waits, nobody loses by it.
        if (waiting > self._seen or not waiting) and asyncio.get_running_loop().time() < self._until_s:
            self._start_gap()
        else:
            self._stop()

    def _stop(self) -> None:
        assert self._timer is not None
        self._timer.cancel()
        self._timer = None
        self._end()
