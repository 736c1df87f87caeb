"""`myqueue bench`: how fast this cluster is from here, on a temporary topic."""

import os
import statistics
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Annotated, Literal

import typer

import myqueue
from myqueue.cli.output import Output, bytes_text
from myqueue.cli.session import Session, command
from myqueue.protocol.errors import MyQueueError, TopicNotFound
from myqueue.protocol.limits import DEFAULT_PARTITIONS, MAX_MESSAGE_BYTES

PIECE_BYTES = 1 << 20  # of one send_many
BUFFER_BYTES = 4 << 20  # that may be in flight when the time is over
SINGLES = 200
SINGLES_S = 1.0
Advance = Callable[[float], None]  # to which share of the step

COLUMNS = ("what", "messages", "seconds", "messages/s", "bytes/s")


@dataclass(frozen=True, slots=True)
class Throughput:
    messages: int
    seconds: float
    per_s: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Latency:
    """Of messages that are sent one at a time, from `send` to the acknowledgement."""

    messages: int
    p50_ms: float
    p99_ms: float


def throughput(messages: int, size: int, seconds: float) -> Throughput:
    return Throughput(messages, round(seconds, 3), round(messages / seconds), round(messages * size / seconds))


def latency(seconds: list[float]) -> Latency:
    if len(seconds) < 2:
        only = round(1000 * sum(seconds), 2)
        return Latency(len(seconds), only, only)
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return Latency(len(seconds), round(cuts[49] * 1000, 2), round(cuts[98] * 1000, 2))


def register(app: typer.Typer) -> None:
    command(app, "bench")(bench)


def bench(
    session: Session,
    seconds: Annotated[
        float,
        typer.Option(
            min=0.1, max=3600, metavar="N", help="Send, then read, for this long; batches in flight at the end count."
        ),
    ] = 5.0,
    messages: Annotated[int, typer.Option(min=1, metavar="N", help="At most so many.")] = 1_000_000,
    size: Annotated[int, typer.Option(min=1, max=MAX_MESSAGE_BYTES, metavar="BYTES", help="Of one message.")] = 100,
    partitions: Annotated[int, typer.Option(min=1, metavar="N", help="Of the topic.")] = DEFAULT_PARTITIONS,
    compression: Annotated[Literal["none", "lz4", "zstd"], typer.Option(help="How batches are compressed.")] = "none",
) -> None:
    """Measure how fast messages go in and out, from this machine.

    One producer and one consumer in this process, on a topic of its own that is deleted afterwards, also after Ctrl-C.
    Messages are random bytes, and count as produced when a majority of their replicas has them.
    """
    topic = f"_bench.{uuid.uuid4().hex[:12]}"
    with session.admin() as admin:
        try:
            admin.create_topic(topic, partitions)
            with _progress(session.output) as step:
                produced = _produce(session, topic, seconds, messages, size, compression, step("produce"))
                consumed = _consume(session, topic, seconds, produced.messages, size, step("consume"))
                single = _one_at_a_time(session, topic, size, step("one at a time"))
        finally:
            _delete(session.output, admin, topic)
    _report(session, size, produced, consumed, single)


def _produce(
    session: Session,
    topic: str,
    seconds: float,
    most: int,
    size: int,
    compression: Literal["none", "lz4", "zstd"],
    advance: Advance,
) -> Throughput:
    values = [os.urandom(size) for _ in range(max(1, min(most, PIECE_BYTES // size)))]
    sent = 0
    with myqueue.Producer(
        session.url, topic=topic, compression=compression, buffer_bytes=BUFFER_BYTES, retry=session.retry
    ) as producer:
        started = time.monotonic()
        while (passed := time.monotonic() - started) < seconds and sent < most:
            advance(max(passed / seconds, sent / most))
            piece = values[: most - sent]
            producer.send_many(piece)
            sent += len(piece)
        producer.flush()
        passed = time.monotonic() - started
    return throughput(sent, size, passed)


def _consume(session: Session, topic: str, seconds: float, most: int, size: int, advance: Advance) -> Throughput:
    read = 0
    with myqueue.Consumer(
        session.url, topic=topic, name="bench", start="earliest", commit="manual", retry=session.retry
    ) as consumer:
        started = time.monotonic()
        while (passed := time.monotonic() - started) < seconds and read < most:
            advance(max(passed / seconds, read / most))
            read += consumer.fetch_arrow(timeout=max(0.1, seconds - passed)).num_rows
        passed = time.monotonic() - started
    return throughput(read, size, passed)


def _one_at_a_time(session: Session, topic: str, size: int, advance: Advance) -> Latency:
    value = os.urandom(size)
    took: list[float] = []
    with myqueue.Producer(session.url, topic=topic, retry=session.retry) as producer:
        producer.send(value).result(timeout=session.settings.timeout_s)  # opens the connection
        started = time.monotonic()
        while len(took) < SINGLES and (passed := time.monotonic() - started) < SINGLES_S:
            advance(max(passed / SINGLES_S, len(took) / SINGLES))
            before = time.perf_counter()
            producer.send(value).result(timeout=session.settings.timeout_s)
            took.append(time.perf_counter() - before)
    return latency(took)


def _delete(output: Output, admin: "myqueue.Admin", topic: str) -> None:
    try:
        admin.delete_topic(topic)
    except TopicNotFound:
        return  # it was never created
    except MyQueueError as error:
        output.note(f"the topic could not be deleted ({error.message}); later: myqueue topic delete {topic}")


def _report(session: Session, size: int, produced: Throughput, consumed: Throughput, single: Latency) -> None:
    output = session.output
    if output.as_json:
        output.document(
            {
                "url": session.url,
                "message_bytes": size,
                "produce": asdict(produced),
                "consume": asdict(consumed),
                "one_at_a_time": asdict(single),
            }
        )
        return
    rows = [
        [what, f"{way.messages:,}", f"{way.seconds:.1f}", f"{way.per_s:,.0f}", bytes_text(round(way.bytes_per_s))]
        for what, way in (("produce", produced), ("consume", consumed))
    ]
    output.table(COLUMNS, rows)
    output.text(
        f"one at a time: {single.p50_ms:.1f} ms until stored by a majority (p99 {single.p99_ms:.1f} ms, "
        f"{single.messages} messages)"
    )


@contextmanager
def _progress(output: Output) -> Iterator[Callable[[str], Advance]]:
    """A bar for each step, on a terminal."""
    if not output.watched:
        yield lambda _: lambda _: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<14}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=output.console(stderr=True), transient=True) as bars:

        def step(name: str) -> Advance:
            task = bars.add_task(name, total=1.0)
            return lambda share: bars.update(task, completed=share)

        yield step
