"""myqueue itself: the whole stack with three brokers, through its port, with the library."""

import contextlib
import itertools
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import requests

from benchmarks.load import exchange, request, run_load
from benchmarks.measurement import SIZES, Addresses, Figure, Measurement, Pace, Running
from benchmarks.workload import (
    CHUNK,
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
from myqueue import Admin, Consumer, Producer, TopicNotFound, __version__
from stack.local import LocalStack

KEY = "myqueue"
BROKERS = 3
HTTP_FILL_PER_S = 8000  # stored before single messages are consumed, for each second of it
TIMEOUT_S = 60.0
KEYS = 1000  # different ones


class Ours:
    key = KEY
    title = "myqueue"
    durability = f"{BROKERS} replicas; acknowledged when fsynced by a majority"

    def missing(self) -> str | None:
        return None

    @contextlib.contextmanager
    def running(self, folder: Path) -> Iterator[Running]:
        with new_stack(folder) as stack:
            names = [process.name for process in stack.status().processes if process.pid is not None]
            yield Running(
                __version__,
                {"url": stack.url, "folder": str(folder)},
                {name: stack.pid(name) for name in names},
            )

    def measurements(self) -> list[Measurement]:
        per_size = [
            measurement
            for size in SIZES
            for measurement in (
                Measurement(KEY, "produce", "send_many", size, send_many, repeated=True),
                Measurement(KEY, "produce", "send_many with keys", size, send_many_with_keys),
                Measurement(KEY, "produce", "send", size, send),
                Measurement(KEY, "consume", "for message in consumer", size, iterate, repeated=True),
                Measurement(KEY, "consume", "fetch_arrow", size, fetch_arrow),
                Measurement(KEY, "single HTTP produce", "POST /producer/produce", size, post_single),
            )
        ]
        return [
            *per_size,
            Measurement(KEY, "single HTTP consume", "GET /consumer/consume", 100, consume_single),
            Measurement(KEY, "latency", "send, then result", 100, low_rate_latency, repeated=True),
            Measurement(KEY, "metadata", "GET /topics", 0, get_topics),
            *(
                Measurement(
                    KEY, "end to end", f"send → for message in consumer, {rate:,}/s", 100,
                    partial(end_to_end, per_second=rate), repeated=rate == E2E_RATES_PER_S[0],
                )
                for rate in E2E_RATES_PER_S
            ),
        ]  # fmt: skip


@contextlib.contextmanager
def new_stack(folder: Path) -> Iterator[LocalStack]:
    stack = LocalStack(folder / "home", brokers=BROKERS)
    try:
        stack.up()
        yield stack
    finally:
        stack.clean()  # also after a partial start


def stored(url: str, topic: str) -> int:
    with Admin(url) as admin:
        try:
            return sum(partition.end_offset for partition in admin.partitions(topic))
        except TopicNotFound:
            return 0


def send_many(addresses: Addresses, pace: Pace, size: int) -> Figure:
    def sender_of(producer: Producer) -> Callable[[list[bytes]], None]:
        return lambda values: void(producer.send_many(values))

    return _produce(addresses["url"], f"bench-{size}", pace, size, sender_of)


def send_many_with_keys(addresses: Addresses, pace: Pace, size: int) -> Figure:
    def sender_of(producer: Producer) -> Callable[[list[bytes]], None]:
        keys = [f"customer-{number * 7919 % KEYS}" for number in range(len(values_of(size)))]
        return lambda values: void(producer.send_many(values, keys=keys))

    return _produce(addresses["url"], f"bench-keys-{size}", pace, size, sender_of)


def send(addresses: Addresses, pace: Pace, size: int) -> Figure:
    def sender_of(producer: Producer) -> Callable[[list[bytes]], None]:
        def send_each(values: list[bytes]) -> None:
            for value in values:
                producer.send(value)

        return send_each

    return _produce(addresses["url"], f"bench-send-{size}", pace, size, sender_of)


def void(_: object) -> None:
    """Drops futures: flush waits for them, and raises their errors."""


def _produce(
    url: str, topic: str, pace: Pace, size: int, sender_of: Callable[[Producer], Callable[[list[bytes]], None]]
) -> Figure:
    values = values_of(size)
    before = stored(url, topic)
    sent = 0
    with Producer(url, topic=topic) as producer:
        send_values = sender_of(producer)

        def send_chunk() -> int:
            nonlocal sent
            send_values(values)
            sent += len(values)
            return len(values)

        figure = produce_for(pace, send_chunk, lambda: producer.flush(TIMEOUT_S))
    found = stored(url, topic) - before
    if found != sent:
        raise RuntimeError(f"sent {sent} messages but {found} are stored")
    return figure


def _filled(url: str, pace: Pace, size: int) -> tuple[str, int]:
    """The topic of send_many, filled up: its name and number of messages."""
    topic = f"bench-{size}"
    missing = pace.fill_messages - stored(url, topic)
    if missing > 0:
        values = values_of(size)
        with Producer(url, topic=topic) as producer:
            for _ in range(0, missing, len(values)):
                producer.send_many(values)
    return topic, stored(url, topic)


def iterate(addresses: Addresses, pace: Pace, size: int) -> Figure:
    url = addresses["url"]
    topic, total = _filled(url, pace, size)

    def read_round(deadline: float) -> int:
        read = read_bytes = 0
        with Consumer(url, topic=topic, start="earliest") as consumer:
            messages = iter(consumer)
            while read < total and time.perf_counter() < deadline:
                count = min(CHUNK, total - read)
                for message in itertools.islice(messages, count):
                    read_bytes += len(message.value)
                read += count
        if read_bytes != read * size:
            raise RuntimeError(f"{read} messages have {read_bytes} bytes")
        return read

    return consume_for(pace, read_round)


def fetch_arrow(addresses: Addresses, pace: Pace, size: int) -> Figure:
    url = addresses["url"]
    topic, total = _filled(url, pace, size)

    def read_round(deadline: float) -> int:
        read = read_bytes = 0
        with Consumer(url, topic=topic, start="earliest") as consumer:
            while read < total and time.perf_counter() < deadline:
                table = consumer.fetch_arrow(max_messages=100_000)
                read += table.num_rows
                # The offsets at the ends of a chunk give the bytes of its values.
                for chunk in table.column("value").chunks:
                    offsets = memoryview(chunk.buffers()[1]).cast("i")
                    read_bytes += offsets[chunk.offset + len(chunk)] - offsets[chunk.offset]
        if read_bytes != read * size:
            raise RuntimeError(f"{read} messages have {read_bytes} bytes")
        return read

    return consume_for(pace, read_round)


def post_single(addresses: Addresses, pace: Pace, size: int) -> Figure:
    url = addresses["url"]
    topic = f"bench-http-{size}"
    answer = requests.post(f"{url}/producer/register", json={"topic": topic}, timeout=TIMEOUT_S)
    answer.raise_for_status()
    _await_leaders(url, topic)
    bodies = [
        {"topic": topic, "producer_id": answer.json()["producer_id"], "message": f"{number:0{size}d}"}
        for number in range(64)
    ]
    address = urlsplit(url)
    assert address.hostname is not None
    posts = [request("POST", address.netloc, "/producer/produce", json.dumps(body).encode()) for body in bodies]
    return run_load(address.hostname, address.port or 80, posts, b'"offset"', pace)


def consume_single(addresses: Addresses, pace: Pace, size: int) -> Figure:
    url = addresses["url"]
    topic = f"bench-http-consume-{size}"
    values = [f"{number:0{size}d}" for number in range(1000)]
    with Producer(url, topic=topic) as producer:
        for _ in range(0, round((pace.warm_up_s + pace.seconds) * HTTP_FILL_PER_S), len(values)):
            producer.send_many(values)
    registration = {"topic": topic, "from": "earliest"}
    answer = requests.post(f"{url}/consumer/register", json=registration, timeout=TIMEOUT_S)
    answer.raise_for_status()
    address = urlsplit(url)
    assert address.hostname is not None
    path = f"/consumer/consume?topic={topic}&consumer_id={answer.json()['consumer_id']}"
    get = request("GET", address.netloc, path)
    return run_load(address.hostname, address.port or 80, [get], b'"offset"', pace)


def _await_leaders(url: str, topic: str) -> None:
    """The partitions of a new topic elect their leaders; the load generator does not retry."""
    deadline = time.monotonic() + TIMEOUT_S
    with Admin(url) as admin:
        while any(partition.leader is None for partition in admin.partitions(topic)):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{topic} has partitions without a leader after {TIMEOUT_S:.0f} s")
            time.sleep(0.1)


def low_rate_latency(addresses: Addresses, pace: Pace, size: int) -> Figure:
    values = itertools.cycle(values_of(size))
    with Producer(addresses["url"], topic=f"bench-latency-{size}") as producer:
        return latency_in_turn(
            pace, Path(addresses["folder"]), lambda: void(producer.send(next(values)).result(TIMEOUT_S))
        )


def get_topics(addresses: Addresses, pace: Pace, _size: int) -> Figure:
    """On a kept connection, at a low rate."""
    address = urlsplit(addresses["url"])
    assert address.hostname is not None
    get = request("GET", address.netloc, "/topics")

    with socket.create_connection((address.hostname, address.port or 80), timeout=TIMEOUT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return latency_in_turn(pace, Path(addresses["folder"]), lambda: exchange(connection, get, b'"topics"'))


def end_to_end(addresses: Addresses, pace: Pace, size: int, *, per_second: int) -> Figure:
    url, topic = addresses["url"], f"bench-e2e-{size}-{per_second}"
    ages: list[float] = []
    sent = 0
    finished = threading.Event()

    def read(consumer: Consumer) -> None:
        for message in consumer:
            ages.append(age_s(message.value))
            if finished.is_set() and len(ages) == sent:
                return

    with Producer(url, topic=topic) as producer, Consumer(url, topic=topic) as consumer:
        reader = threading.Thread(target=read, args=(consumer,), daemon=True)
        reader.start()
        ticks = Ticks(per_second, pace.warm_up_s + pace.seconds)
        while ticks.wait():
            producer.send(stamped(size))
            sent += 1
        producer.flush(TIMEOUT_S)
        sent += 1
        finished.set()
        producer.send(stamped(size))
        producer.flush(TIMEOUT_S)
        reader.join(TIMEOUT_S)
    return end_to_end_figure(ages, sent, pace)
