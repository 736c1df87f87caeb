"""The cost of many stored messages: throughput, memory of the brokers, bytes on disk. On a new stack."""

import contextlib
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import psutil

from benchmarks.figures import rate_between
from benchmarks.measurement import Addresses, Figure, Measurement, Pace, Running
from benchmarks.ours import BROKERS, TIMEOUT_S, Ours, new_stack, stored
from benchmarks.workload import values_of
from myqueue import Producer, __version__
from stack.commands import down
from stack.home import Home

KEY = "myqueue-stored"
OCCUPIED_KEY = "myqueue-occupied"
OCCUPIED = "bytes on disk / (message bytes × replicas)"
# A list fills up an open batch or begins one, with at least 1,000 of its messages.
OCCUPIED_BATCH_BYTES, OCCUPIED_LIST = 3 << 20, 2000


class OursStored(Ours):
    key = KEY

    @contextlib.contextmanager
    def running(self, folder: Path) -> Iterator[Running]:
        with new_stack(folder) as stack:
            pids = [str(stack.pid(f"broker-{number}")) for number in range(1, BROKERS + 1)]
            addresses = {"url": stack.url, "home": str(stack.home.root), "broker_pids": " ".join(pids)}
            yield Running(__version__, addresses)

    def measurements(self) -> list[Measurement]:
        return [Measurement(KEY, "storage", "send_many, many messages stored", 100, many_stored)]


def many_stored(addresses: Addresses, pace: Pace, size: int) -> Figure:
    """The share of the throughput of an empty stack that is left once the messages are stored."""
    url, topic = addresses["url"], "bench-stored"
    brokers = [psutil.Process(int(pid)) for pid in addresses["broker_pids"].split()]
    # Leave out the start, and stop before the stack has filled up.
    empty_from = pace.warm_up_s / 3
    empty_until = empty_from + max(1.0, pace.seconds / 6)
    samples, filled_at = _fill(url, topic, size, pace, empty_until)
    with_none = rate_between(samples, empty_from, empty_until)
    with_many = rate_between(samples, filled_at, filled_at + pace.seconds)
    resident = [process.memory_info().rss for process in brokers]
    messages = stored(url, topic)
    if messages != samples[-1][1]:
        raise RuntimeError(f"{samples[-1][1]} messages were acknowledged but {messages} are stored")
    on_disk = _bytes_when_stopped(addresses)
    return Figure(
        with_many / with_none,
        "share",
        samples[-1][0],
        messages,
        {
            "messages_stored_before": pace.stored_messages,
            "rate_with_none": with_none,
            "rate_with_many": with_many,
            "broker_rss_bytes": float(max(resident)),
            "bytes_on_disk": float(on_disk),
            "disk_ratio": on_disk / (messages * size * BROKERS),
        },
    )


class OursOccupied(OursStored):
    """A stack of its own: it is stopped before its files are counted."""

    key = OCCUPIED_KEY

    def measurements(self) -> list[Measurement]:
        return [Measurement(OCCUPIED_KEY, "storage", OCCUPIED, 1024, occupied)]


def occupied(addresses: Addresses, pace: Pace, size: int) -> Figure:
    """Everything in the brokers' folders counts. The journal does not grow with the messages, so it takes many of them
    for the ratio to be that of the messages."""
    topic = "bench-occupied"
    values = values_of(size)[:OCCUPIED_LIST]
    wanted = pace.stored_messages // 5
    began = time.perf_counter()
    with Producer(addresses["url"], topic=topic, batch_bytes=OCCUPIED_BATCH_BYTES) as producer:
        for _ in range(0, wanted, len(values)):
            producer.send_many(values)
        producer.flush(TIMEOUT_S)
    seconds = time.perf_counter() - began
    messages = stored(addresses["url"], topic)
    on_disk = _bytes_when_stopped(addresses)
    ratio = on_disk / (messages * size * BROKERS)
    return Figure(ratio, "ratio", seconds, messages, {"bytes_on_disk": float(on_disk)})


def _bytes_when_stopped(addresses: Addresses) -> int:
    home = Home(Path(addresses["home"]))
    down(home)
    return sum(_bytes_on_disk(home.data / f"broker-{number}") for number in range(1, BROKERS + 1))


def _fill(url: str, topic: str, size: int, pace: Pace, empty_until: float) -> tuple[list[tuple[float, int]], float]:
    """Sends until the messages are stored and on for as long as one measurement takes: (seconds, acknowledged) over
    time, and when there were enough."""
    values = values_of(size)
    samples: list[tuple[float, int]] = []
    filled_at: float | None = None
    with Producer(url, topic=topic) as producer:
        producer.send_many(values).result(TIMEOUT_S)  # routing, connections
        acknowledged = len(values)
        in_flight = deque([producer.send_many(values)])
        began = time.perf_counter()
        while filled_at is None or samples[-1][0] < filled_at + pace.seconds:
            in_flight.append(producer.send_many(values))
            while in_flight and in_flight[0].done():
                in_flight.popleft().result(0)
                acknowledged += len(values)
            samples.append((time.perf_counter() - began, acknowledged))
            if filled_at is None and acknowledged >= pace.stored_messages and samples[-1][0] >= empty_until:
                filled_at = samples[-1][0]
        for future in in_flight:
            future.result(TIMEOUT_S)
            acknowledged += len(values)
        samples.append((time.perf_counter() - began, acknowledged))
    return samples, filled_at


def _bytes_on_disk(folder: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in folder.rglob("*") if file.is_file())
