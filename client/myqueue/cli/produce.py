"""`myqueue produce`: lines of a file or of stdin to a topic."""

import math
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, BinaryIO, Literal

import typer

import myqueue
from myqueue.cli.completion import checked_topic, topic_names
from myqueue.cli.failures import REFUSED, USAGE, CommandFailed, parsed
from myqueue.cli.formats import BadLine, Shape, message_of, messages_in, unescaped
from myqueue.cli.output import bytes_text, plural
from myqueue.cli.quantities import rate_per_s
from myqueue.cli.session import Session, command
from myqueue.protocol.errors import MyQueueError, PartitionNotFound, TopicNotFound
from myqueue.protocol.limits import DEFAULT_PARTITIONS, MAX_HEADER_KEY_CHARS, MAX_HEADERS, MAX_KEY_BYTES

BUFFER_BYTES = 8 << 20  # read ahead of the acknowledgements
PROGRESS_AFTER_S = 1.0
REPORT_EVERY_S = 0.1
CATCH_UP_S = 0.1
LOOK_S = 0.2  # between two checks for failed deliveries, while there is no input
LAST_ANSWER_S = 10.0  # for attempts in flight when the time is up


EXAMPLES = r"""Examples:

myqueue produce orders -m 'one coffee' --key table-17

myqueue produce orders prices.tsv --key-separator '\t'

tail -F access.log | myqueue produce clicks --rate 1000/s"""


def register(app: typer.Typer) -> None:
    command(app, "produce", epilog=EXAMPLES)(produce)


def produce(
    session: Session,
    topic: Annotated[
        str,
        typer.Argument(
            metavar="TOPIC",
            help="Where to send them.",
            autocompletion=topic_names,
            callback=checked_topic,
        ),
    ],
    file: Annotated[str, typer.Argument(metavar="FILE", help="What to send; '-' is stdin.")] = "-",
    message: Annotated[
        list[str] | None, typer.Option("-m", "--message", metavar="TEXT", help="Send this instead. May be repeated.")
    ] = None,
    key: Annotated[str | None, typer.Option("-k", "--key", metavar="TEXT", help="The key of all messages.")] = None,
    key_separator: Annotated[
        str | None,
        typer.Option("-K", "--key-separator", metavar="TEXT", help=r"What divides key and value, such as ':' or '\t'."),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option("-p", "--partition", metavar="N", min=0, help="Where to. Default: by key, or in turns."),
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option("-H", "--header", metavar="NAME=VALUE", help="Of all messages. May be repeated.")
    ] = None,
    rate: Annotated[
        str | None, typer.Option(metavar="N/s", help="At most so many a second. Default: no limit.")
    ] = None,
    compression: Annotated[Literal["none", "lz4", "zstd"], typer.Option(help="How batches are compressed.")] = "none",
    null_delimited: Annotated[
        bool, typer.Option("-0", "--null-delimited", help="Messages end with a NUL byte instead of a line end.")
    ] = False,
    create: Annotated[bool, typer.Option("--create", help="Create the topic if it is missing.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Do not say how many were sent.")] = False,
) -> None:
    """Send messages: one for each line of a file or of stdin.

    A file is looked through first: if one of its lines cannot be sent, nothing is. Lines end with a line feed; a
    carriage return before it is part of the message.
    """
    if key is not None and key_separator is not None:
        raise CommandFailed("--key: not together with --key-separator", USAGE)
    if message and file != "-":
        raise CommandFailed("--message: not together with a file", USAGE)
    separator = parsed("--key-separator", unescaped, key_separator)
    if separator == b"":
        raise CommandFailed("--key-separator: must not be empty", USAGE)
    shape = Shape(b"\0" if null_delimited else b"\n", separator, None if key is None else os.fsencode(key))
    if shape.key is not None and len(shape.key) > MAX_KEY_BYTES:
        raise CommandFailed(f"--key: has {len(shape.key)} bytes, the limit is {MAX_KEY_BYTES}", USAGE)
    headers = _headers(header or [])
    pace = _Pace(parsed("--rate", rate_per_s, rate))
    missing = _is_missing(session, topic, partition, create)
    with _input(session, file, message, shape) as source:
        if missing:
            _create(session, topic, partition)
        sending = _Sending(session, topic, partition, headers, compression)
        sending.send(source, pace)
    _report(session, sending, quiet)


def _headers(texts: list[str]) -> list[tuple[str, bytes]]:
    if len(texts) > MAX_HEADERS:
        raise CommandFailed(f"--header: a message may have at most {MAX_HEADERS}", USAGE)
    return [_header(text) for text in texts]


def _header(text: str) -> tuple[str, bytes]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise CommandFailed(f"--header: {text!r} must be NAME=VALUE", USAGE)
    if len(name) > MAX_HEADER_KEY_CHARS:
        raise CommandFailed(f"--header: a name may have at most {MAX_HEADER_KEY_CHARS} characters", USAGE)
    name.encode()  # fails unless it is UTF-8
    return name, os.fsencode(value)


def _is_missing(session: Session, topic: str, partition: int | None, create: bool) -> bool:
    """Whether --create has to create the topic, after all other checks. A producer would create one for any typo."""
    with session.admin() as admin:
        try:
            _check_partition(topic, admin.describe_topic(topic).partitions, partition)
        except TopicNotFound as missing:
            if not create:
                missing.add_note(f"--create makes {topic!r} if it is missing")
                raise
            _check_partition(topic, DEFAULT_PARTITIONS, partition)
            return True
    return False


def _create(session: Session, topic: str, partition: int | None) -> None:
    with session.admin() as admin:
        _check_partition(topic, admin.ensure_topic(topic).partitions, partition)


def _check_partition(topic: str, partitions: int, partition: int | None) -> None:
    if partition is not None and partition >= partitions:
        raise PartitionNotFound(f"partition {partition} not found; {topic} has {partitions}", outcome="not_written")


class _Source:
    """The messages to send, and how much of the input is read."""

    def __init__(
        self,
        shape: Shape,
        stream: BinaryIO | None = None,
        size: int | None = None,
        given: Sequence[tuple[bytes | None, bytes]] = (),
    ) -> None:
        self.size = size  # bytes, where that is known
        self.read = 0
        self._shape = shape
        self._stream = stream
        self._given = given

    def messages(self, stop: threading.Event) -> Iterator[tuple[bytes | None, bytes]]:
        """Keys and values, until the end or until it is stopped."""
        yield from self._given
        if self._stream is not None:
            yield from messages_in(self._chunks(self._stream, stop), self._shape)

    def _chunks(self, stream: BinaryIO, stop: threading.Event) -> Iterator[bytes]:
        while _comes(stream, stop) and (chunk := stream.read1(1 << 16)):  # type: ignore[attr-defined]
            self.read += len(chunk)
            yield chunk


def _comes(stream: BinaryIO, stop: threading.Event) -> bool:
    """Waits for input or its end, unless it is stopped."""
    try:
        number = stream.fileno()
    except OSError:  # stdin is no file: select does not work
        return not stop.is_set()
    while not stop.is_set():
        if select.select([number], [], [], LOOK_S)[0]:
            return True
    return False


@contextmanager
def _input(session: Session, file: str, given: list[str] | None, shape: Shape) -> Iterator[_Source]:
    if given:
        yield _Source(shape, given=_given(given, shape))
    elif file == "-":
        if sys.stdin.isatty() and session.output.watched:
            session.output.note("one message a line; Ctrl-D ends")
        yield _Source(shape, sys.stdin.buffer)
    else:
        path = Path(file)
        size = path.stat().st_size if path.is_file() else None
        with path.open("rb") as stream:
            if size is not None:  # a pipe can be read only once
                _look_through(stream, file, shape)
                stream.seek(0)
            yield _Source(shape, stream, size)


def _given(texts: list[str], shape: Shape) -> list[tuple[bytes | None, bytes]]:
    try:
        return [message_of(os.fsencode(text), f"text {number}", shape) for number, text in enumerate(texts, 1)]
    except BadLine as error:
        raise CommandFailed(f"--message: {error}; nothing was sent", USAGE) from None


def _look_through(stream: BinaryIO, file: str, shape: Shape) -> None:
    try:
        for _ in _Source(shape, stream).messages(threading.Event()):
            pass
    except BadLine as error:
        raise CommandFailed(f"{file}: {error}; nothing was sent", USAGE) from None


class _Pace:
    def __init__(self, per_s: float | None) -> None:
        self._gap_s = 0.0 if per_s is None else 1 / per_s
        self._next_at = -math.inf

    def wait(self, stop: threading.Event) -> None:
        """Waits until the next message is due. Catches up on a short delay, not on a long one."""
        if not self._gap_s:
            return
        now = time.monotonic()
        if self._next_at > now:
            stop.wait(self._next_at - now)
        self._next_at = max(now - CATCH_UP_S, self._next_at) + self._gap_s


class _Sending:
    def __init__(
        self,
        session: Session,
        topic: str,
        partition: int | None,
        headers: list[tuple[str, bytes]],
        compression: Literal["none", "lz4", "zstd"],
    ) -> None:
        self._session = session
        self._partition = partition
        self._headers = headers or None
        self._lock = threading.Lock()
        self.topic = topic
        self.sent = 0
        self.acknowledged = 0
        self.bytes = 0
        self.seconds = 0.0
        self.error: MyQueueError | None = None
        self._failed = threading.Event()
        self._producer = myqueue.Producer(
            session.url,
            topic,
            compression=compression,
            buffer_bytes=BUFFER_BYTES,
            delivery_timeout_s=session.settings.timeout_s,
            on_delivery=self._decided,
            retry=session.retry,
        )

    def send(self, source: _Source, pace: _Pace) -> None:
        """Raises the error that stopped it, with a note of how much was acknowledged."""
        import pyarrow as pa

        pa.array([b""])  # the first array loads pandas, if it is installed: do it before the clock starts
        started = time.monotonic()
        stopped: BaseException | None = None
        try:
            with _progress(self._session, source, self) as report:
                for key, value in source.messages(self._failed):
                    pace.wait(self._failed)
                    if self._failed.is_set():
                        break
                    self._producer.send(value, key, self._partition, headers=self._headers)
                    self.sent += 1
                    self.bytes += len(value) + len(key or b"")
                    report()
        except BaseException as error:  # noqa: BLE001 - raised again when it is known what was stored
            stopped = error
        self._finish()
        self.seconds = time.monotonic() - started
        cause = self.error or stopped
        if cause is not None:
            raise self._explained(cause)

    def _finish(self) -> None:
        try:
            self._producer.close(self._session.settings.timeout_s + LAST_ANSWER_S)
        except TimeoutError:
            return  # messages in flight count as not acknowledged

    def _decided(self, delivery: "myqueue.Delivery | myqueue.Deliveries") -> None:
        error = delivery.exception()
        with self._lock:
            if error is None:
                self.acknowledged += 1
            else:
                self.error = self.error or error
                self._failed.set()

    def _explained(self, error: BaseException) -> BaseException:
        how_far = f"{self.acknowledged:,} of {self.sent:,} messages sent to {self.topic} were acknowledged"
        counts = {"sent": self.sent, "acknowledged": self.acknowledged}
        if isinstance(error, MyQueueError):
            error.add_note(how_far)
            error.details = error.details | counts
            return error
        if not isinstance(error, Exception):  # Ctrl-C, SIGTERM
            self._session.output.note(how_far)
            return error
        if isinstance(error, BadLine | OSError):  # also a buffer that stayed full
            why = error.strerror or error if isinstance(error, OSError) else error
            code = USAGE if isinstance(error, BadLine) and not self.acknowledged else REFUSED
            return CommandFailed(f"{why}; {how_far}", code, details=counts)
        error.add_note(how_far)
        return error


@contextmanager
def _progress(session: Session, source: _Source, sending: _Sending) -> Iterator[Callable[[], None]]:
    """Shown on stderr if it is a terminal and stdin is not; from the first second on."""
    if not session.output.watched or (sys.stdin.isatty() and source.size is None):
        yield lambda: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = [TextColumn("{task.description}"), TimeElapsedColumn()]
    if source.size is not None:
        columns[1:] = [BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TimeRemainingColumn()]
    bar = Progress(*columns, console=session.output.console(stderr=True), transient=True)
    task = bar.add_task("", total=source.size)
    show_at = time.monotonic() + PROGRESS_AFTER_S

    def report() -> None:
        nonlocal show_at
        now = time.monotonic()
        if now >= show_at:
            bar.start()
            bar.update(task, completed=source.read, description=f"{plural(sending.acknowledged, 'message')} stored")
            show_at = now + REPORT_EVERY_S

    try:
        yield report
    finally:
        bar.stop()


def _report(session: Session, sending: _Sending, quiet: bool) -> None:
    rate = sending.acknowledged / max(sending.seconds, 1e-6)
    if session.output.as_json:
        session.output.document(
            {
                "topic": sending.topic,
                "sent": sending.sent,
                "acknowledged": sending.acknowledged,
                "bytes": sending.bytes,
                "seconds": round(sending.seconds, 3),
                "per_second": round(rate, 1),
            }
        )
    elif not quiet:
        count = plural(sending.acknowledged, "message")
        size = bytes_text(sending.bytes)
        speed = f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}"
        session.output.note(f"{count} to {sending.topic} ({size}) in {sending.seconds:.1f} s, {speed}/s")
