"""How fast the disk answers: a broker whose disk is slow should not lead."""

import threading
import time
from collections import deque

SLOW_S = 0.3
_OBSERVED = 5
_FORGOTTEN_S = 10.0


class SlowDisk:
    def __init__(self) -> None:
        self._last: deque[tuple[float, float]] = deque(maxlen=_OBSERVED)  # when, and how long it took
        self._lock = threading.Lock()

    def observe(self, seconds: float) -> None:
        with self._lock:
            self._last.append((time.monotonic(), seconds))

    def is_slow(self) -> bool:
        """Every one of the last commits was: a single hiccup is not worth a change of leaders."""
        since_s = time.monotonic() - _FORGOTTEN_S
        with self._lock:
            recent = [seconds for at_s, seconds in self._last if at_s > since_s]
        return len(recent) == _OBSERVED and min(recent) > SLOW_S
