"""Metrics of several processes in one text."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from read_manager.federation import Exposition, merge


def exposition(role: str, process: str, lag: float | None = None) -> Exposition:
    registry = CollectorRegistry()
    Counter("myqueue_requests", "Requests", ["route"], registry=registry).labels('a "{b} c').inc(3)
    Gauge("myqueue_waiting", "Waiting", registry=registry).set(2)
    Histogram("myqueue_seconds", "Seconds", registry=registry, buckets=(1, 2)).observe(1.5)
    if lag is not None:
        Gauge("kafka_consumergroup_lag", "Lag", ["topic"], registry=registry).labels("orders").set(lag)
    return Exposition(role, process, generate_latest(registry).decode())


def samples(text: bytes) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """By name and labels; each of them once."""
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    names = []
    for family in text_string_to_metric_families(text.decode()):
        names.append(family.name)
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in found
            found[key] = sample.value
    assert len(names) == len(set(names)), "a family stands in one place"
    return found


def of(role: str, process: str, **more: str) -> frozenset[tuple[str, str]]:
    return frozenset({"role": role, "process": process, **more}.items())


def test_each_sample_has_its_process() -> None:
    found = samples(merge([exposition("broker", "broker-1"), exposition("read_manager", 'odd "\\ name')]))
    for role, process in (("broker", "broker-1"), ("read_manager", 'odd "\\ name')):
        assert found["myqueue_waiting", of(role, process)] == 2
        assert found["myqueue_requests_total", of(role, process, route='a "{b} c')] == 3
        assert found["myqueue_seconds_bucket", of(role, process, le="2.0")] == 1
        assert found["myqueue_up", of(role, process)] == 1


def test_metrics_of_the_cluster_come_from_the_first_that_has_them() -> None:
    active, replaced = exposition("write_manager", "w-2", lag=7), exposition("write_manager", "w-1", lag=1)
    found = samples(merge([exposition("write_manager", "w-3"), active, replaced]))
    lags = {labels: value for (name, labels), value in found.items() if name == "kafka_consumergroup_lag"}
    assert lags == {frozenset({("topic", "orders")}): 7}


def test_a_process_that_is_away_is_shown() -> None:
    found = samples(merge([Exposition("broker", "broker-1", None), exposition("broker", "broker-2")]))
    assert (found["myqueue_up", of("broker", "broker-1")], found["myqueue_up", of("broker", "broker-2")]) == (0, 1)
    assert ("myqueue_waiting", of("broker", "broker-1")) not in found


def test_a_name_cannot_add_a_line() -> None:
    """Consumers choose their names: those of Unicode's line separators are letters to Prometheus."""
    name = "billing\u2028kafka_brokers 0\u2029\x0b"
    registry = CollectorRegistry()
    Gauge("kafka_consumergroup_lag", "Lag", ["consumergroup"], registry=registry).labels(name).set(5)
    found = samples(merge([Exposition("write_manager", "w-1", generate_latest(registry).decode())]))
    assert found["kafka_consumergroup_lag", frozenset({("consumergroup", name)})] == 5
    assert ("kafka_brokers", frozenset()) not in found
