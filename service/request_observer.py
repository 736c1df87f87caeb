"""Metrics and log lines of requests."""

import time
from collections import defaultdict
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram

from myqueue.protocol.errors import MyQueueError
from service.logs import Log

LINES_PER_SECOND = 50
UNMATCHED = "none"  # the route of a request that matches none
# Clients choose the method of an unmatched request; unknown ones share a label, so that the series stay bounded.
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"})
_OTHER_METHOD = "other"


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


class RequestObserver:
    """Counts every request. Logs at most `lines_per_second` of each route and of each error: frequent requests do not
    hide rare ones. Used on one event loop."""

    def __init__(self, registry: CollectorRegistry, log: Log, lines_per_second: int = LINES_PER_SECOND) -> None:
        self._requests = Counter(
            "myqueue_http_requests_total", "Requests answered", ["route", "method", "status"], registry=registry
        )
        self._seconds = Histogram(
            "myqueue_http_request_seconds",
            "Time to answer",
            ["route"],
            registry=registry,
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
        )
        # Looking up labels costs more than counting.
        self._counters: dict[tuple[str, str, int], Counter] = {}
        self._timers: dict[str, Histogram] = {}
        self._log = log
        self._lines_per_second = lines_per_second
        self._limits: defaultdict[str, _LineLimit] = defaultdict(_LineLimit)

    def count(self, route: str, method: str, status: int, seconds: float) -> None:
        if route == UNMATCHED and method not in _METHODS:
            method = _OTHER_METHOD
        key = (route, method, status)
        counter = self._counters.get(key)
        if counter is None:
            counter = self._counters[key] = self._requests.labels(route, method, status)
        counter.inc()
        timer = self._timers.get(route)
        if timer is None:
            timer = self._timers[route] = self._seconds.labels(route)
        timer.observe(seconds)

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
