"""Redis Streams: redis-server of the machine, client redis-py, with its own parser or with hiredis."""

import contextlib
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.measurement import SIZES, Addresses, Figure, Measurement, Pace, Running
from benchmarks.server import free_ports, listens, server
from benchmarks.workload import (
    CHUNK,
    E2E_RATES_PER_S,
    Ticks,
    age_s,
    consume_for,
    end_to_end_figure,
    produce_for,
    stamped,
    values_of,
)
from stack.ports import HOST

PIPELINE = 1000  # commands a round trip: more or fewer were slower
READ_COUNT = 1000
MEMORY_BYTES = 6 << 30
TIMEOUT_S = 30.0
FIELD = b"v"


class Redis:
    key = "redis"
    title = "Redis Streams"
    durability = "1 replica, append-only file; fsync every second (appendfsync everysec), after the answer"

    def missing(self) -> str | None:
        needed = []
        if shutil.which("redis-server") is None:
            needed.append("the Debian package redis-server")
        if find_spec("redis") is None:
            needed.append("pip install redis")
        return " and ".join(needed) or None

    @contextlib.contextmanager
    def running(self, folder: Path) -> Iterator[Running]:
        (port,) = free_ports(1)
        folder.mkdir(parents=True, exist_ok=True)
        argv = [
            "redis-server", "--bind", HOST, "--port", str(port), "--dir", str(folder), "--save", "",
            "--appendonly", "yes", "--appendfsync", "everysec",
        ]  # fmt: skip
        with server(argv, folder, lambda: listens(port), memory_bytes=MEMORY_BYTES) as process:
            yield Running(_version(), {"url": f"redis://{HOST}:{port}"}, {"redis-server": process.pid})

    def measurements(self) -> list[Measurement]:
        measurements = [
            measurement
            for size in SIZES
            for measurement in (
                Measurement(self.key, "produce", "XADD, pipelined", size, produce),
                Measurement(self.key, "consume", "XREAD", size, consume),
            )
        ]
        if find_spec("hiredis") is not None:
            measurements.append(Measurement(self.key, "consume", "XREAD, hiredis parser", 100, consume_with_hiredis))
        for rate in E2E_RATES_PER_S:
            run = partial(end_to_end, per_second=rate)
            measurements.append(Measurement(self.key, "end to end", f"XADD → XREAD BLOCK, {rate:,}/s", 100, run))
        return measurements


def _version() -> str:
    words = subprocess.run(["redis-server", "--version"], capture_output=True, text=True, check=True).stdout.split()
    return next((word.removeprefix("v=") for word in words if word.startswith("v=")), "?")


def _client(addresses: Addresses, *, hiredis: bool = False) -> Any:
    """redis-py alone, as `pip install redis` gives it, unless its C parser is asked for."""
    import redis
    from redis import _parsers as parsers

    parser = parsers._HiredisParser if hiredis else parsers._RESP2Parser
    return redis.Redis.from_url(addresses["url"], protocol=2, parser_class=parser, socket_timeout=TIMEOUT_S)


def produce(addresses: Addresses, pace: Pace, size: int) -> Figure:
    stream = f"bench-{size}"
    with _client(addresses) as client:
        client.delete(stream)
        values = values_of(size)
        sent = 0

        def send_chunk() -> int:
            nonlocal sent
            sent += _add(client, stream, values)
            return len(values)

        figure = produce_for(pace, send_chunk, lambda: None)
        if client.xlen(stream) != sent:
            raise RuntimeError(f"sent {sent} messages but {client.xlen(stream)} are stored")
    return figure


def _add(client: Any, stream: str, values: list[bytes]) -> int:
    for begin in range(0, len(values), PIPELINE):
        pipeline = client.pipeline(transaction=False)
        for value in values[begin : begin + PIPELINE]:
            pipeline.xadd(stream, {FIELD: value})
        pipeline.execute()  # raises the first error among the answers
    return len(values)


def consume(addresses: Addresses, pace: Pace, size: int) -> Figure:
    return _consume(addresses, pace, size, hiredis=False)


def consume_with_hiredis(addresses: Addresses, pace: Pace, size: int) -> Figure:
    return _consume(addresses, pace, size, hiredis=True)


def _consume(addresses: Addresses, pace: Pace, size: int, *, hiredis: bool) -> Figure:
    stream = f"bench-{size}"
    with _client(addresses, hiredis=hiredis) as client:
        values = values_of(size)
        while client.xlen(stream) < pace.fill_messages // 10:
            _add(client, stream, values)
        return consume_for(pace, lambda deadline: _read_round(client, stream, size, deadline))


def _read_round(client: Any, stream: str, size: int, deadline: float) -> int:
    read = read_bytes = 0
    last = b"0"
    while time.perf_counter() < deadline or read == 0:
        answer = client.xread({stream: last}, count=READ_COUNT)
        if not answer:
            break
        entries = answer[0][1]
        for _, fields in entries:
            read_bytes += len(fields[FIELD])
        last = entries[-1][0]
        read += len(entries)
    if read_bytes != read * size:
        raise RuntimeError(f"{read} messages have {read_bytes} bytes")
    return read


def end_to_end(addresses: Addresses, pace: Pace, size: int, *, per_second: int) -> Figure:
    stream = f"bench-e2e-{size}-{per_second}"
    ages: list[float] = []
    stop = b"stop"

    def read() -> None:
        last = b"0"
        with _client(addresses) as client:
            while True:
                for _, entries in client.xread({stream: last}, count=CHUNK, block=1000):
                    last = entries[-1][0]
                    values = [fields[FIELD] for _, fields in entries]
                    ages.extend(age_s(value) for value in values if value != stop)
                    if values[-1] == stop:
                        return

    with _client(addresses) as client:
        client.delete(stream)
        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        sent = 0
        ticks = Ticks(per_second, pace.warm_up_s + pace.seconds)
        while ticks.wait():
            client.xadd(stream, {FIELD: stamped(size)})
            sent += 1
        client.xadd(stream, {FIELD: stop})
        reader.join(TIMEOUT_S)
    return end_to_end_figure(ages, sent, pace)
