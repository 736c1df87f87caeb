"""Metrics and log lines of requests."""

import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from myqueue.protocol.errors import MyQueueError
from service.logs import Log

LINES_PER_SECOND = 50
UNMATCHED = "none"  # the route of a request that matches none
# Clients choose the method of an unmatched request; unknown ones share a label, so that the series stay bounded.
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"})
_OTHER_METHOD = "other"
_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


@dataclass(slots=True)
class _LineLimit:
    """At most `LINES_PER_SECOND` log lines of one kind; the next one that is written counts those left out."""

    second: int = 0
    lines: int = 0
    left_out: int = 0

    def admits(self, limit: int) -> bool:
        second = int(time.monotonic())
        if second != self.second:
            self.second = second
            self.lines = 0
        if self.lines >= limit:
            self.left_out += 1
            return False
        self.lines += 1
        return True

    def take_left_out(self) -> dict[str, int]:
        more = {"left_out": self.left_out} if self.left_out else {}
        self.left_out = 0
        return more


@dataclass(slots=True)
class _RequestTimes:
    """Of one route."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(_BUCKETS_S) + 1))  # the last one: longer than all
    sum_s: float = 0.0

    def buckets(self) -> list[tuple[str, float]]:
        names = [*map(str, map(float, _BUCKETS_S)), "+Inf"]
        return [(name, float(count)) for name, count in zip(names, accumulate(self.counts), strict=True)]


class RequestObserver(Collector):
    """Counts every request. Logs at most `lines_per_second` of each route and of each error: frequent requests do not
    hide rare ones. Used on one event loop; `collect` on any thread."""

    def __init__(self, registry: CollectorRegistry, log: Log, lines_per_second: int = LINES_PER_SECOND) -> None:
        # Plain numbers: the metrics of prometheus_client take a lock and several calls for each request.
        self._counts: dict[tuple[str, str, int], int] = {}
        self._times: dict[str, _RequestTimes] = {}
        self._log = log
        self._lines_per_second = lines_per_second
        self._limits: defaultdict[str, _LineLimit] = defaultdict(_LineLimit)
        registry.register(self)

    def count(self, route: str, method: str, status: int, seconds: float) -> None:
        if route == UNMATCHED and method not in _METHODS:
            method = _OTHER_METHOD
        key = (route, method, status)
        self._counts[key] = self._counts.get(key, 0) + 1
        times = self._times.get(route)
        if times is None:
            times = self._times[route] = _RequestTimes()
        times.counts[bisect_left(_BUCKETS_S, seconds)] += 1
        times.sum_s += seconds

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "myqueue_http_requests", "Requests answered", labels=["route", "method", "status"]
        )
        for (route, method, status), count in list(self._counts.items()):
            requests.add_metric([route, method, str(status)], count)
        yield requests
        seconds = HistogramMetricFamily("myqueue_http_request_seconds", "Time to answer", labels=["route"])
        for route, times in list(self._times.items()):
            seconds.add_metric([route], times.buckets(), times.sum_s)
        yield seconds

    def log(self, route: str, method: str, path: str, status: int, seconds: float) -> None:
        limit = self._limits[route]
        if limit.admits(self._lines_per_second):
            self._log.info(
                "request",
                method=method,
                path=path,
                route=route,
                status=status,
                ms=round(seconds * 1000, 2),
                **limit.take_left_out(),
            )

    def log_failure(self, error: MyQueueError) -> None:
        name = type(error).__name__
        limit = self._limits[name]
        if limit.admits(self._lines_per_second):
            self._log.warning(
                "failed", error=name, message=error.message, outcome=error.outcome, **limit.take_left_out()
            )
