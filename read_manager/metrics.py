"""Metrics of a read manager; those of every HTTP process are in service/request_observer.py."""

from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from db.servers import DatabaseServer
from read_manager.long_poll import LongPolls
from read_manager.replay_lag import answers, replay_lag_bytes, written_position


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
        servers = self._servers()
        written = written_position(servers)
        for place, server in enumerate(servers, 1):
            is_up = answers(server)
            up.add_metric([str(place)], float(is_up))
            is_primary = is_up and server.is_primary is True and not server.is_replaced
            primary.add_metric([str(place)], float(is_primary))
            if (lag := replay_lag_bytes(server, written)) is not None:
                behind.add_metric([str(place)], lag)
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
