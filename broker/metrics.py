"""Every metric of a broker. Gauges read their value from the part that `app.py` binds them to."""

from collections.abc import Callable
from dataclasses import fields

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from broker.driver import DriverCounts
from broker.peers.peer_link import PeerCounters

_PEER_COUNTERS = {
    "sent_frames": "Frames sent to other brokers",
    "sent_bytes": "Bytes of frames sent to other brokers",
    "received_frames": "Frames received from other brokers",
    "received_bytes": "Bytes of frames received from other brokers",
    "dropped_frames": "Frames to other brokers dropped",
    "unsendable_frames": "Frames too large to send, or with an entry without its batch",
    "connections_made": "Connections to other brokers opened",
    "connections_lost": "Connections to other brokers lost",
    "silent_connections": "Connections between brokers closed because nothing came any more",
    "refused_connections": "Connections between brokers that failed the handshake",
    "bad_messages": "Connections of other brokers closed because of a bad message",
}


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
        self.fetched_messages = Counter(
            "myqueue_broker_fetched_messages_total", "Messages handed out, in whole batches", registry=registry
        )
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

    def bind_storage(self, waiting_writes: Callable[[], int], free_bytes: Callable[[], int | None]) -> None:
        self._gauge("myqueue_broker_waiting_writes", "Writes that wait for the disk", waiting_writes)
        self._gauge("myqueue_broker_disk_free_bytes", "Free space of the data folder", lambda: free_bytes() or 0)

    def bind_driver(self, counts: DriverCounts) -> None:
        self._gauge("myqueue_broker_raft_rounds", "Rounds of the Raft core", lambda: counts.rounds)
        self._gauge("myqueue_broker_loop_stalls", "Times the loop was more than 100 ms late", lambda: counts.stalls)
        self._gauge(
            "myqueue_broker_raft_refused_appends",
            "Appends of leaders refused because this disk is behind or almost full",
            lambda: counts.refused_appends,
        )

    def bind_peers(self, counters: PeerCounters) -> None:
        for field in fields(PeerCounters):
            name = field.name
            self._gauge(f"myqueue_broker_raft_{name}", _PEER_COUNTERS[name], lambda n=name: getattr(counters, n))  # type: ignore[misc]

    def bind_partitions(self, partitions: Callable[[], int], waiting_fetches: Callable[[], int]) -> None:
        self._gauge("myqueue_broker_partitions", "Partitions held", partitions)
        self._gauge("myqueue_broker_waiting_fetches", "Requests that wait for messages", waiting_fetches)

    def _gauge(self, name: str, description: str, value: Callable[[], float]) -> None:
        Gauge(name, description, registry=self._registry).set_function(value)
