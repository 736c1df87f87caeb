"""confluent-kafka on librdkafka's mock cluster: brokers that are memory of the client's own process. A ceiling."""

import contextlib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.machine import package_version
from benchmarks.measurement import SIZES, Addresses, Figure, Measurement, Pace, Running
from benchmarks.workload import produce_for, values_of

TOPIC = "bench"
QUEUE_MESSAGES = 1_000_000
FLUSH_S = 60.0


class KafkaMock:
    key = "kafka-mock"
    title = "confluent-kafka on its mock"
    durability = "none: the brokers are memory of the client's own process, no disk, no network"

    def missing(self) -> str | None:
        return None if find_spec("confluent_kafka") else "pip install confluent-kafka"

    @contextlib.contextmanager
    def running(self, folder: Path) -> Iterator[Running]:  # noqa: ARG002 it keeps nothing
        yield Running(package_version("confluent-kafka") or "?", {})

    def measurements(self) -> list[Measurement]:
        return [
            *(Measurement(self.key, "produce", "produce()", size, produce) for size in SIZES),
            Measurement(self.key, "produce", "produce(), no reports", 100, produce_blindly),
            Measurement(self.key, "produce", "produce_batch()", 100, produce_batch),
        ]


def _producer() -> Any:
    from confluent_kafka import Producer

    return Producer(
        {
            "bootstrap.servers": "mock",
            "test.mock.num.brokers": 3,
            "enable.idempotence": True,  # as ours is
            "linger.ms": 5,
            "batch.size": 1 << 20,
            "queue.buffering.max.messages": QUEUE_MESSAGES,
            "queue.buffering.max.kbytes": 1 << 20,
            "log_level": 3,
        }
    )


class _Reports:
    """Counts deliveries: a send without reports does not know what is stored."""

    def __init__(self) -> None:
        self.stored = 0
        self.failed = 0

    def __call__(self, error: Any, _message: Any) -> None:
        if error is None:
            self.stored += 1
        else:
            self.failed += 1


def _flush(producer: Any) -> None:
    left = producer.flush(FLUSH_S)
    if left:
        raise RuntimeError(f"{left} messages are on their way after {FLUSH_S:.0f} s")


def produce(_addresses: Addresses, pace: Pace, size: int) -> Figure:
    return _produce(pace, size, _Reports())


def produce_blindly(_addresses: Addresses, pace: Pace, size: int) -> Figure:
    return _produce(pace, size, None)


def _produce(pace: Pace, size: int, reports: _Reports | None) -> Figure:
    producer = _producer()
    values = values_of(size)
    sent = 0

    def send_chunk() -> int:
        nonlocal sent
        for value in values:
            while True:
                try:
                    producer.produce(TOPIC, value, on_delivery=reports)
                    break
                except BufferError:
                    producer.poll(0.01)
        producer.poll(0)
        sent += len(values)
        return len(values)

    figure = produce_for(pace, send_chunk, lambda: _flush(producer))
    if reports is not None and reports.stored != sent:
        raise RuntimeError(f"sent {sent} messages, {reports.stored} were stored, {reports.failed} failed")
    return figure


def produce_batch(_addresses: Addresses, pace: Pace, size: int) -> Figure:
    producer = _producer()
    values = values_of(size)
    reports = _Reports()
    sent = 0

    def send_chunk() -> int:
        nonlocal sent
        messages: list[dict[str, Any]] = [{"value": value} for value in values]
        while messages:
            producer.produce_batch(TOPIC, messages, on_delivery=reports)
            # Messages that the full queue refused come back with an error.
            messages = [{"value": message["value"]} for message in messages if "_error" in message]
            producer.poll(0.01 if messages else 0)
        sent += len(values)
        return len(values)

    figure = produce_for(pace, send_chunk, lambda: _flush(producer))
    if reports.stored != sent:
        raise RuntimeError(f"sent {sent} messages, {reports.stored} were stored, {reports.failed} failed")
    return figure
