"""Everything a broker counts is exported."""

from dataclasses import fields

from prometheus_client import CollectorRegistry, generate_latest

from broker.driver import DriverCounts
from broker.metrics import Metrics
from broker.peers.peer_link import PeerCounters


def test_every_counter_of_driver_and_peers_is_exported() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    counts, counters = DriverCounts(), PeerCounters()
    metrics.bind_driver(counts)
    metrics.bind_peers(counters)
    counts.rounds, counts.stalls, counts.refused_appends = 1, 2, 3
    for number, field in enumerate(fields(PeerCounters), 10):
        setattr(counters, field.name, number)
    text = generate_latest(registry).decode()
    for number, field in enumerate(fields(PeerCounters), 10):
        assert f"\nmyqueue_broker_raft_{field.name} {number}.0\n" in text
    for name, value in (("raft_rounds", 1), ("loop_stalls", 2), ("raft_refused_appends", 3)):
        assert f"\nmyqueue_broker_{name} {value}.0\n" in text


def test_gauges_of_storage_and_partitions_follow_their_source() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    metrics.bind_storage(lambda: 4, lambda: None)
    metrics.bind_partitions(lambda: 5, lambda: 6)
    values = {sample.name: sample.value for metric in registry.collect() for sample in metric.samples}
    assert values["myqueue_broker_waiting_writes"] == 4
    assert values["myqueue_broker_disk_free_bytes"] == 0, "no disk to watch"
    assert (values["myqueue_broker_partitions"], values["myqueue_broker_waiting_fetches"]) == (5, 6)
