"""Metrics of a read manager; those of every HTTP process are in service/request_observer.py."""

from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from db.servers import DatabaseServer
from read_manager.long_poll import LongPolls


class DatabaseMetrics(Collector):
    """PostgreSQL's servers as of the last probe, a second ago or less. They are named by their place in the settings:
    their addresses are nobody else's business."""

    def __init__(self, servers: Callable[[], Sequence[DatabaseServer]]) -> None:
        self._servers = servers

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("myqueue_postgres_up", "1 if this PostgreSQL server answers", labels=["server"])
        primary = GaugeMetricFamily("myqueue_postgres_primary", "1 if it is the primary", labels=["server"])
        behind = GaugeMetricFamily(
            "myqueue_postgres_replay_lag_bytes",
            "Write-ahead log of the primary that this standby has not replayed yet",
            labels=["server"],
        )
        servers = {str(place): server for place, server in enumerate(self._servers(), 1)}
        states = {name: server.state for name, server in servers.items() if server.is_well and not server.is_hanging}
        written = [
            state.position
            for name, state in states.items()
            if state is not None and state.is_primary and not servers[name].is_replaced
        ]
        for name, server in servers.items():
            state = states.get(name)
            up.add_metric([name], float(state is not None))
            primary.add_metric([name], float(state is not None and state.is_primary and not server.is_replaced))
            if written and state is not None and not state.is_primary:
                behind.add_metric([name], max(0, max(written) - state.position))
        yield from (up, primary, behind)


def register_metrics(
    registry: CollectorRegistry,
    long_polls: LongPolls,
    servers: Callable[[], Sequence[DatabaseServer]],
    streams: Callable[[], int],
) -> None:
    waiting = Gauge("myqueue_waiting_requests", "Requests that wait for messages", registry=registry)
    waiting.set_function(lambda: long_polls.waiting)
    open_streams = Gauge("myqueue_event_streams", "Event streams that are open", registry=registry)
    open_streams.set_function(streams)
    registry.register(DatabaseMetrics(servers))
