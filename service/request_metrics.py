"""What is counted of every request, whoever answers it."""

from prometheus_client import CollectorRegistry, Counter, Histogram


class RequestMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
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
        # Looking up labels costs more than counting. Methods come from outside, so only known ones are kept here.
        self._counters: dict[tuple[str, str, int], Counter] = {}
        self._timers: dict[str, Histogram] = {}

    def observe(self, route: str, method: str, status: int, seconds: float) -> None:
        key = (route, method, status)
        counter = self._counters.get(key)
        if counter is None:
            counter = self._requests.labels(route, method, status)
            if route != "none":
                self._counters[key] = counter
        counter.inc()
        timer = self._timers.get(route)
        if timer is None:
            timer = self._timers[route] = self._seconds.labels(route)
        timer.observe(seconds)
