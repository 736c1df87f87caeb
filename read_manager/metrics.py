"""Metrics of a read manager; those of every HTTP process are in service/request_metrics.py."""

from prometheus_client import CollectorRegistry, Gauge

from read_manager.long_poll import LongPolls


def register_metrics(registry: CollectorRegistry, long_polls: LongPolls) -> None:
    waiting = Gauge("myqueue_waiting_requests", "Requests that wait for messages", registry=registry)
    waiting.set_function(lambda: long_polls.waiting)
