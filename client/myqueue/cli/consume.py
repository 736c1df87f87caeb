"""`myqueue consume` and `myqueue tail`: messages of a topic to stdout.

With a name it is a consumer of the cluster, whose cursor follows what was printed; without one it reads by offsets
and registers nothing.
"""

import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import Annotated

import typer

import myqueue
from myqueue.cli import formats
from myqueue.cli.completion import checked_topic, topic_names
from myqueue.cli.failures import REFUSED, USAGE, CommandFailed, parsed
from myqueue.cli.output import Styled
from myqueue.cli.quantities import Place, place
from myqueue.cli.session import Session, command
from myqueue.message import Message
from myqueue.protocol.errors import PartitionNotFound

LOOK_S = 0.2  # between two checks whether the end is reached
FLUSH_S = 0.1  # the longest that output stays buffered

Line = Callable[[Message], bytes]

Topic = Annotated[
    str,
    typer.Argument(metavar="TOPIC", help="What to read.", autocompletion=topic_names, callback=checked_topic),
]
From = Annotated[
    str | None,
    typer.Option(
        "-f",
        "--from",
        metavar="PLACE",
        help="earliest, latest, an offset, -N (the last N of each partition), -10m (that long ago), a date and time "
        "such as 2026-03-01T12:00, or @seconds since 1970. Default: earliest; of tail: latest.",
    ),
]
Name = Annotated[
    str | None,
    typer.Option(
        "--name",
        "--group",
        metavar="NAME",
        help="Read as this consumer: go on where it was, and remember how far it got. A new one starts at --from.",
    ),
]
Partition = Annotated[
    int | None, typer.Option("-p", "--partition", metavar="N", min=0, help="Only this one. Default: all.")
]
Count = Annotated[
    int | None, typer.Option("-n", "--count", metavar="N", min=1, help="Stop after so many. Default: never.")
]
End = Annotated[bool, typer.Option("-e", "--exit", help="Stop where the topic ended at the start.")]
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help="How to print a message: "
        + "; ".join(f"%{letter} {what}" for letter, what in formats.LETTERS.items())
        + r". Default: '%s\n'. With -o json it is one object a line.",
    ),
]


EXAMPLES = r"""Examples:

myqueue consume orders -e

myqueue consume orders --from -10m --format '%p/%o %k: %s\n'

myqueue consume orders --name billing -n 100 -o json"""


def register(app: typer.Typer) -> None:
    command(app, "consume", epilog=EXAMPLES)(consume)
    command(app, "tail")(tail)


def consume(
    session: Session,
    topic: Topic,
    start: From = None,
    name: Name = None,
    partition: Partition = None,
    count: Count = None,
    to_end: End = False,
    pattern: Format = None,
) -> None:
    """Print the messages of a topic, and wait for more.

    Without --name nothing is left behind in the cluster.
    """
    read(session, topic, start, "earliest", name, partition, count, to_end=to_end, pattern=pattern)


def tail(
    session: Session,
    topic: Topic,
    start: From = None,
    name: Name = None,
    partition: Partition = None,
    count: Count = None,
    to_end: End = False,
    pattern: Format = None,
) -> None:
    """Print what comes into a topic from now on: consume --from latest."""
    read(session, topic, start, "latest", name, partition, count, to_end=to_end, pattern=pattern)


def read(
    session: Session,
    topic: str,
    start: str | None,
    otherwise: str,
    name: str | None,
    partition: int | None,
    count: int | None,
    *,
    to_end: bool,
    pattern: str | None,
) -> None:
    if name == "":
        raise CommandFailed("--name: must not be empty; without --name nothing is left behind", USAGE)
    line = _line(session, pattern)
    where = parsed("--from", lambda text: place(text, int(time.time() * 1000)), start or otherwise)
    waiting = _Waiting(session)
    if name is None:
        with closing(_anonymous(session, topic, where, partition, to_end, waiting)) as messages:
            _print_buffered(messages, line, count)
        return
    begin = start_of(where, partition)
    if start is not None:
        _warn_of_ignored(session, topic, name)
    _print_named(session, topic, name, begin, partition, line, count, to_end, waiting)


def _warn_of_ignored(session: Session, topic: str, name: str) -> None:
    with session.admin() as admin:
        if any(consumer.name == name for consumer in admin.consumers(topic)):
            hint = f"'myqueue consumer seek {topic} {name} --to ...' moves it"
            session.output.note(
                Styled(f"warning: --from is for new names; {name!r} goes on where it was ({hint})", "yellow")
            )


def _line(session: Session, pattern: str | None) -> Line:
    if session.output.as_json:
        if pattern is not None:
            chosen_by = session.settings.output_from
            if chosen_by == "-o":
                raise CommandFailed("--format: not together with -o json", USAGE)
            message = f"--format: not together with the JSON that {chosen_by} asks for"
            raise CommandFailed(message, USAGE, hint="-o table chooses text")
        return formats.visible_json_line if session.output.on_terminal else formats.json_line
    show = formats.visible if session.output.on_terminal else formats.exactly
    try:
        return formats.formatter(formats.DEFAULT_FORMAT if pattern is None else pattern, show)
    except formats.BadFormat as error:
        raise CommandFailed(f"--format: {error}", USAGE) from None


class _Waiting:
    """Notes on the terminal, once, why nothing happens."""

    def __init__(self, session: Session) -> None:
        self._output = session.output
        self._told = not session.output.watched

    def __call__(self) -> None:
        if not self._told:
            self._told = True
            self._output.note(Styled("waiting for messages; Ctrl-C ends", "dim"))


# Without a name


def _anonymous(
    session: Session, topic: str, where: Place, partition: int | None, to_end: bool, waiting: Callable[[], None]
) -> Generator[Message | None, None, None]:
    """Messages; None while there is none."""
    with session.admin() as admin:
        bounds = admin.offsets(topic)
        if partition is not None:
            if partition not in bounds:
                raise PartitionNotFound(f"partition {partition} not found; {topic} has {len(bounds)}")
            bounds = {partition: bounds[partition]}
        offsets = _offsets(admin, topic, where, bounds)
    ends = {number: bound.end_offset for number, bound in bounds.items()}
    if to_end and all(offset >= ends[number] for number, offset in offsets.items()):
        return
    with myqueue.Reader(session.url, topic, offsets, retry=session.retry) as reader:
        yield from _until(reader, ends) if to_end else _for_ever(reader, waiting)


def _offsets(admin: "myqueue.Admin", topic: str, where: Place, bounds: "dict[int, myqueue.Bounds]") -> dict[int, int]:
    if where.kind == "time":
        return {number: admin.offset_at(topic, number, where.value) for number in bounds}
    if where.kind == "offset" and all(where.value > bound.end_offset for bound in bounds.values()):
        ends = ", ".join(f"{number} at {bound.end_offset}" for number, bound in bounds.items())
        raise CommandFailed(f"--from: offset {where.value} lies past the end; partitions end: {ends}", REFUSED)
    return {number: offset_in(where, bound) for number, bound in bounds.items()}


def offset_in(where: Place, bound: "myqueue.Bounds") -> int:
    """The offset of a position that is not a time, within the partition's bounds."""
    wanted = {
        "earliest": bound.beginning_offset,
        "latest": bound.end_offset,
        "offset": where.value,
        "last": bound.end_offset - where.value,
    }[where.kind]
    return min(bound.end_offset, max(bound.beginning_offset, wanted))


def _for_ever(reader: "myqueue.Reader", waiting: Callable[[], None]) -> Iterator[Message | None]:
    while True:
        message = reader.poll(0)
        if message is None:
            yield None
            message = reader.poll(LOOK_S)
            if message is None:
                waiting()
                message = reader.poll()
        yield message


def _until(reader: "myqueue.Reader", ends: dict[int, int]) -> Iterator[Message | None]:
    """Reads up to the ends of the partitions at the start."""
    open_ = {number for number, offset in reader.position().items() if offset < ends[number]}
    while open_:
        message = reader.poll(LOOK_S)
        if message is None:
            yield None
            # Retention may have deleted the last ones.
            open_ = {number for number, offset in reader.position().items() if offset < ends[number]}
        elif message.offset < ends[message.partition]:
            yield message
            if message.offset + 1 >= ends[message.partition]:
                open_.discard(message.partition)


def _print_buffered(messages: Iterator[Message | None], line: Line, count: int | None) -> None:
    stdout = sys.stdout.buffer
    printed = 0
    flush_at = 0.0
    for message in messages:
        if message is not None:
            stdout.write(line(message))
            printed += 1
            if printed == count:
                break
        now = time.monotonic()
        if message is None or now >= flush_at:
            stdout.flush()
            flush_at = now + FLUSH_S
    stdout.flush()


# With a name


def start_of(where: Place, partition: int | None) -> "myqueue.Start":
    if where.kind == "last":
        raise CommandFailed("--from: -N is for reading without --name", USAGE)
    if where.kind == "time":
        return {"timestamp": where.value}
    if where.kind == "offset":
        if partition is None:
            raise CommandFailed("--from: an offset belongs to a partition; with --name, give --partition, too", USAGE)
        return {"offset": where.value}
    return "earliest" if where.kind == "earliest" else "latest"


def _print_named(
    session: Session,
    topic: str,
    name: str,
    start: "myqueue.Start",
    partition: int | None,
    line: Line,
    count: int | None,
    to_end: bool,
    waiting: Callable[[], None],
) -> None:
    """Flushes before the next poll, which marks the message before as handled."""
    with session.admin() as admin:
        ends = {number: bound.end_offset for number, bound in admin.offsets(topic).items()} if to_end else {}
    stdout = sys.stdout.buffer
    printed = 0
    with myqueue.Consumer(session.url, topic, name, partition, start, retry=session.retry) as consumer:
        while printed != count:
            message = consumer.poll(0 if to_end else LOOK_S)
            if message is None and to_end:
                return
            if message is None:
                waiting()
                message = consumer.poll()
                assert message is not None, "nobody else closes the consumer"
            stdout.write(line(message))
            stdout.flush()
            printed += 1
            if to_end and message.offset + 1 >= ends.get(message.partition, 0) and _is_past(consumer, ends):
                return


def _is_past(consumer: "myqueue.Consumer", ends: dict[int, int]) -> bool:
    """Whether its partitions are read up to there, or further."""
    return all(offset >= ends.get(number, 0) for number, offset in consumer.position().items())
