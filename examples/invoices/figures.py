"""What the workers have reported so far, and how fast it goes. No IO; fed by the threads that read their output."""

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

SAMPLE_S = 0.25
MAX_SAMPLES = 4800  # of a run of 20 minutes; a longer one is drawn by its end
RATE_SAMPLES = 4  # a rate is that of the last second
_BLOCKS = "▁▂▃▄▅▆▇█"


@dataclass(slots=True)
class FilterFigures:
    filtered: int = 0
    partitions: list[int] = field(default_factory=list)
    recent: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=RATE_SAMPLES + 1))

    def rate(self) -> float:
        if len(self.recent) < 2:
            return 0.0
        (first_s, before), (last_s, after) = self.recent[0], self.recent[-1]
        return (after - before) / (last_s - first_s)


@dataclass(frozen=True, slots=True)
class Sample:
    at_s: float
    generated: int
    filtered: int


@dataclass(frozen=True, slots=True)
class Event:
    at_s: float
    text: str
    good: bool


class Figures:
    """May be used by several threads. Times are seconds since the start."""

    def __init__(self, generators: Sequence[str], filters: Sequence[str]) -> None:
        self._lock = threading.Lock()
        self._started = time.monotonic()
        self._sent = dict.fromkeys(generators, 0)
        self.filters = {name: FilterFigures() for name in filters}
        self.events: list[Event] = []
        self.samples: deque[Sample] = deque([Sample(0.0, 0, 0)], maxlen=MAX_SAMPLES)
        self.read_back = 0
        self._ended = False

    def now_s(self) -> float:
        return time.monotonic() - self._started

    def report(self, name: str, figures: dict[str, Any]) -> None:
        with self._lock:
            if name in self._sent:
                self._sent[name] = int(figures["sent"])
            else:
                one = self.filters[name]
                one.filtered = int(figures["filtered"])
                if not self._ended:
                    one.partitions = list(figures.get("partitions", one.partitions))
            if self.now_s() - self.samples[-1].at_s >= SAMPLE_S:
                self._sample()

    def sample(self) -> None:
        """Also when nobody reports."""
        with self._lock:
            if self.now_s() - self.samples[-1].at_s >= SAMPLE_S:
                self._sample()

    def _sample(self) -> None:
        if self._ended:
            return
        now_s = self.now_s()
        self.samples.append(Sample(now_s, self.generated, self.filtered))
        for one in self.filters.values():
            one.recent.append((now_s, one.filtered))

    def end(self) -> None:
        """Everything is filtered: filters that leave one after the other count no more."""
        with self._lock:
            self._ended = True

    def tell(self, text: str, *, good: bool = True) -> None:
        with self._lock:
            self.events.append(Event(self.now_s(), text, good))

    @property
    def generated(self) -> int:
        """Invoices that are stored: as the generators know, who learn it a moment later than a quick filter."""
        return max(sum(self._sent.values()), self.filtered)

    @property
    def filtered(self) -> int:
        return sum(one.filtered for one in self.filters.values())

    @property
    def waiting(self) -> int:
        return self.generated - self.filtered

    def rate(self, what: str, total: int) -> float:
        """Of the last second; once all are done, on the average."""
        with self._lock:
            samples = list(self.samples)
        counted = [(one.at_s, int(getattr(one, what))) for one in samples]
        if counted[-1][1] >= total:
            first = max(0, sum(count == 0 for _, count in counted) - 1)
            last = next(at for at, (_, count) in enumerate(counted) if count >= total)
            counted = counted[first : last + 1]
        else:
            counted = counted[-RATE_SAMPLES - 1 :]
        took_s = counted[-1][0] - counted[0][0]
        return (counted[-1][1] - counted[0][1]) / took_s if took_s > 0 else 0.0

    def history(self, what: str, bucket_s: float) -> list[float]:
        """A figure for each `bucket_s` since the first invoice: the rate, or how many invoices wait at most."""
        with self._lock:
            samples = list(self.samples)
        samples = samples[max(0, sum(one.generated == 0 for one in samples) - 1) :]
        buckets: dict[int, list[Sample]] = {}
        for one in samples:
            buckets.setdefault(int((one.at_s - samples[0].at_s) / bucket_s), []).append(one)
        values = []
        before = samples[0]
        for _, bucket in sorted(buckets.items()):
            last = bucket[-1]
            if what == "waiting":
                values.append(float(max(max(0, one.generated - one.filtered) for one in bucket)))
            elif last is not before:
                values.append((getattr(last, what) - getattr(before, what)) / (last.at_s - before.at_s))
            before = last
        return values


def sparkline(values: Sequence[float]) -> str:
    highest = max(values, default=0.0)
    if highest <= 0:
        return _BLOCKS[0] * len(values)
    return "".join(_BLOCKS[min(7, int(8 * max(0.0, value) / highest))] for value in values)
