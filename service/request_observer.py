"""Metrics and log lines of requests."""

import time

from prometheus_client import CollectorRegistry, Counter, Histogram

from service.logs import Log

LINES_PER_SECOND = 50
UNMATCHED = "none"  # the route of a request that matches none


class RequestObserver:
    """Counts every request and logs at most `lines_per_second`. Used on one event loop."""

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
        # Looking up labels costs more than counting. Unmatched requests have arbitrary methods and are not cached.
        self._counters: dict[tuple[str, str, int], Counter] = {}
        self._timers: dict[str, Histogram] = {}
        self._log = log
        self._lines_per_second = lines_per_second
        self._second = 0
        self._lines = 0
        self._left_out = 0

    def count(self, route: str, method: str, status: int, seconds: float) -> None:
        key = (route, method, status)
        counter = self._counters.get(key)
        if counter is None:
            counter = self._requests.labels(route, method, status)
            if route != UNMATCHED:
                self._counters[key] = counter
        counter.inc()
        timer = self._timers.get(route)
        if timer is None:
            timer = self._timers[route] = self._seconds.labels(route)
        timer.observe(seconds)

    def log(self, route: str, method: str, path: str, status: int, seconds: float) -> None:
        """The next line after a pause says how many were left out."""
        second = int(time.monotonic())
        if second != self._second:
            self._second = second
            self._lines = 0
        if self._lines >= self._lines_per_second:
            self._left_out += 1
            return
        self._lines += 1
        more = {"left_out": self._left_out} if self._left_out else {}
        self._left_out = 0
        self._log.info(
            "request", method=method, path=path, route=route, status=status, ms=round(seconds * 1000, 2), **more
        )
