"""Rates of counters that are sampled now and then: the change over the last seconds, or None while it is not known."""

from collections import deque
from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

WINDOW_S = 5.0


class RateWindow(Generic[K]):
    """No IO; `now_s` is an argument and never goes back."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._samples: deque[tuple[float, Mapping[K, float]]] = deque()

    def add(self, now_s: float, values: Mapping[K, float]) -> None:
        self._samples.append((now_s, values))
        while now_s - self._samples[0][0] > self._window_s:
            self._samples.popleft()

    def rate(self, key: K) -> float | None:
        """Per second. None: there is no second sample of it in the window, or it has started again meanwhile."""
        rate = self.change(key)
        return rate if rate is None or rate >= 0 else None

    def change(self, key: K) -> float | None:
        """Per second, of something that may also shrink."""
        if not self._samples or key not in self._samples[-1][1]:
            return None
        now_s, values = self._samples[-1]
        for then_s, before in self._samples:
            if key in before and then_s < now_s:
                return (values[key] - before[key]) / (now_s - then_s)
        return None
