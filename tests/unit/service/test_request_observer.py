"""Metrics of requests."""

import structlog
from prometheus_client import CollectorRegistry

from service.request_observer import RequestObserver


def test_times_are_counted_in_buckets_by_route() -> None:
    registry = CollectorRegistry()
    observer = RequestObserver(registry, structlog.get_logger())
    for seconds in (0.001, 0.003, 0.003, 40.0):
        observer.count("fetch", "GET", 200, seconds)
    observer.count("append", "POST", 503, 0.5)

    def sample(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"myqueue_http_{name}", labels)

    bounds = ("0.001", "0.0025", "0.005", "30.0", "+Inf")
    assert [sample("request_seconds_bucket", route="fetch", le=bound) for bound in bounds] == [1, 1, 3, 3, 4]
    assert sample("request_seconds_count", route="fetch") == 4
    assert sample("request_seconds_sum", route="fetch") == 40.007
    assert sample("request_seconds_count", route="append") == 1
    assert sample("requests_total", route="fetch", method="GET", status="200") == 4
    assert sample("requests_total", route="append", method="POST", status="503") == 1
