"""Every metric of the write manager, besides those of its HTTP requests."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge


class WriteManagerMetrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.claims_expired = Counter(
            "myqueue_claims_expired",
            "Claims that were not reported as delivered in time: their messages are read again and may come twice",
            registry=self.registry,
        )
        self._claims_in_flight = Gauge(
            "myqueue_claims_in_flight", "Claimed messages that are not delivered yet", registry=self.registry
        )
        self._damaged_replicas = Gauge(
            "myqueue_damaged_replicas",
            "Replicas that their brokers reported as damaged and that are not rebuilt yet",
            registry=self.registry,
        )

        self._active = Gauge(
            "myqueue_write_manager_active", "1 if this write manager is the active one", registry=self.registry
        )

    def watch_active(self, is_active: Callable[[], bool]) -> None:
        self._active.set_function(is_active)

    def watch_claims_in_flight(self, count: Callable[[], int]) -> None:
        self._claims_in_flight.set_function(count)

    def watch_damaged_replicas(self, count: Callable[[], int]) -> None:
        self._damaged_replicas.set_function(count)
