"""What a broker counts."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class Metrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self.appends = Counter("myqueue_broker_appends_total", "Batches appended", registry=registry)
        self.messages = Counter("myqueue_broker_messages_total", "Messages appended", registry=registry)
        self.bytes = Counter("myqueue_broker_bytes_total", "Bytes of batches received for appending", registry=registry)
        self.duplicates = Counter(
            "myqueue_broker_duplicates_total",
            "Messages that were appended before under the same key",
            registry=registry,
        )
        self.fetches = Counter("myqueue_broker_fetches_total", "Fetches answered with messages", registry=registry)
        self.fetched_bytes = Counter("myqueue_broker_fetched_bytes_total", "Bytes handed out", registry=registry)
        self.commit_seconds = Histogram(
            "myqueue_broker_commit_seconds",
            "Time of a commit with its fsync",
            registry=registry,
            buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5),
        )
        self.commit_writes = Histogram(
            "myqueue_broker_commit_writes",
            "Writes that shared one commit",
            registry=registry,
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
        )

    def gauge(self, name: str, description: str, value: Callable[[], float]) -> None:
        Gauge(name, description, registry=self._registry).set_function(value)
