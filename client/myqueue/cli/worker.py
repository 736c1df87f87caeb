"""`myqueue worker`: a function of the user's own over the messages of a topic, until it is stopped by a signal."""

import importlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from types import FrameType, ModuleType
from typing import Annotated, Any

import typer

import myqueue.worker
from myqueue.cli.completion import checked_topic, topic_names
from myqueue.cli.consume import start_of
from myqueue.cli.failures import REFUSED, USAGE, CommandFailed, parsed
from myqueue.cli.output import Styled, duration_text, plural
from myqueue.cli.quantities import duration_ms, place
from myqueue.cli.session import Session, command
from myqueue.worker.task_schedule import Order

PROGRESS_S = 10.0
LOOK_S = 0.2

EXAMPLES = """Examples:

myqueue worker billing:charge --topic orders --name billing

myqueue worker billing:charge --topic orders --name billing --concurrency 32 --max-retries 10"""


def register(app: typer.Typer) -> None:
    command(app, "worker", epilog=EXAMPLES)(worker)


def worker(
    session: Session,
    function: Annotated[
        str, typer.Argument(metavar="MODULE:FUNCTION", help="What to call with each message; an async function, too.")
    ],
    topic: Annotated[
        str,
        typer.Option(
            "-t", "--topic", metavar="TOPIC", help="What to read.", autocompletion=topic_names, callback=checked_topic
        ),
    ],
    name: Annotated[
        str,
        typer.Option("--name", "--group", metavar="NAME", help="Processes of one name share the topic's partitions."),
    ],
    start: Annotated[
        str,
        typer.Option("-f", "--from", metavar="PLACE", help="Where a new name begins: earliest, latest or a time."),
    ] = "earliest",
    concurrency: Annotated[
        int, typer.Option("-c", "--concurrency", metavar="N", min=1, max=10_000, help="Messages handled at a time.")
    ] = 8,
    order: Annotated[
        Order,
        typer.Option("--order", metavar="key|partition|none", help="Which messages are handled one after the other."),
    ] = "key",
    max_retries: Annotated[
        int, typer.Option("--max-retries", metavar="N", min=0, help="Then a message goes to the dead-letter topic.")
    ] = 5,
    dead_letter_topic: Annotated[
        str | None,
        typer.Option("--dead-letter-topic", metavar="TOPIC", help="Default: TOPIC.dead.", callback=checked_topic),
    ] = None,
    stop_timeout: Annotated[
        str, typer.Option("--stop-timeout", metavar="DURATION", help="How long running handlers may take to end.")
    ] = "30s",
) -> None:
    """Call a function with each message of a topic; commit it when the function has returned.

    An exception means that the message is tried again, later, and after --max-retries goes to the dead-letter topic.
    Messages of one key are handled in their order. SIGTERM and Ctrl-C end it in order: what runs is finished and
    committed; a second one ends it at once. The module is looked for in the current folder first.
    """
    if name == "":
        raise CommandFailed("--name: must not be empty", USAGE)
    stop_timeout_s = parsed("--stop-timeout", duration_ms, stop_timeout) / 1000
    where = parsed("--from", lambda text: place(text, int(time.time() * 1000)), start)
    begin = start_of(where, None)
    handle = loaded(function)
    try:
        made = myqueue.worker.Worker(
            handle,
            session.url,
            topic=topic,
            name=name,
            start=begin,
            concurrency=concurrency,
            order=order,
            max_retries=max_retries,
            dead_letter_topic=dead_letter_topic,
            stop_timeout_s=stop_timeout_s,
            retry=session.retry,
        )
    except ValueError as error:
        raise CommandFailed(str(error), USAGE) from None
    session.reach()
    session.output.note(f"{function} handles {topic} as {name}; dead letters go to {made.dead_letter_topic}")
    with _stopped_by_signals(made) as received, _Progress(session, made):
        made.run()
    unfinished = made.counts.running
    if unfinished:
        message = f"{plural(unfinished, 'handler')} did not end in time; their messages are delivered again"
        raise CommandFailed(message, REFUSED, hint="--stop-timeout gives them longer")
    if received:
        raise typer.Exit(128 + received[0])


def loaded(function: str) -> Any:
    """The function that `module:function` names; a dotted one is a part of another object."""
    module_name, colon, path = function.partition(":")
    if not colon or not module_name or not path:
        raise CommandFailed(f"{function!r}: write it as MODULE:FUNCTION, such as billing:charge", USAGE)
    found: Any = _module(module_name)
    for part in path.split("."):
        if not hasattr(found, part):
            offered = _functions(found)
            hint = f"it has {', '.join(offered)}" if offered else None
            raise CommandFailed(f"{module_name} has no function {path!r}", USAGE, hint=hint)
        found = getattr(found, part)
    if not callable(found):
        raise CommandFailed(f"{function}: is no function, but {type(found).__name__}", USAGE)
    return found


def _module(name: str) -> ModuleType:
    here = os.getcwd()  # noqa: PTH109 - sys.path holds strings
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _import_failed(name, error) from error
        message = f"there is no module {name!r}, neither in {here} nor installed"
        raise CommandFailed(message, USAGE, hint="go to the folder that has it, or set PYTHONPATH") from None
    except Exception as error:
        raise _import_failed(name, error) from error


def _import_failed(name: str, error: Exception) -> CommandFailed:
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return CommandFailed(f"the module {name!r} cannot be imported: {type(error).__name__}: {error}{where}", USAGE)


def _functions(holder: Any) -> list[str]:
    """Those that the module defines itself, for the hint."""
    return (
        sorted(
            name
            for name, value in vars(holder).items()
            if callable(value) and not name.startswith("_") and getattr(value, "__module__", None) == holder.__name__
        )[:10]
        if isinstance(holder, ModuleType)
        else []
    )


@contextmanager
def _stopped_by_signals(made: "myqueue.worker.Worker") -> Iterator[list[int]]:
    """The signals that came."""
    received: list[int] = []

    def stop(number: int, _: FrameType | None) -> None:
        # Nothing is printed here: the signal may have interrupted a print.
        made.stop(0.0 if received else None)
        received.append(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Progress:
    """Counts every ten seconds while they change, and at the end: a line on stderr, or an object with -o json."""

    def __init__(self, session: Session, made: "myqueue.worker.Worker") -> None:
        self._output = session.output
        self._worker = made
        self._over = threading.Event()
        self._has_noted = False
        self._thread = threading.Thread(target=self._run, name="myqueue-progress", daemon=True)
        self._printed = myqueue.worker.WorkerCounts()
        self._started = self._printed_at = time.monotonic()

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._note_stopping()
        self._print(self._worker.counts, last=True)

    def _note_stopping(self) -> None:
        """Once, also if it stops faster than it is looked at."""
        if self._worker.is_stopping and not self._has_noted:
            self._has_noted = True
            running = plural(self._worker.counts.running, "handler")
            self._output.note(Styled(f"stopping; {running} still to end", "dim"))

    def _run(self) -> None:
        while not self._over.wait(LOOK_S):
            counts = self._worker.counts
            self._note_stopping()
            if time.monotonic() >= self._printed_at + PROGRESS_S and counts != self._printed:
                self._print(counts)

    def _print(self, counts: "myqueue.worker.WorkerCounts", *, last: bool = False) -> None:
        now = time.monotonic()
        if self._output.as_json:
            self._output.line(asdict(counts) | {"seconds": round(now - self._started, 3), "stopped": last})
        else:
            since = self._started if last else self._printed_at
            rate = (counts.handled - (0 if last else self._printed.handled)) / max(now - since, 0.001)
            took = f" in {duration_text(now - self._started)}" if last else ""
            self._output.note(
                f"{counts.handled:,} handled{took} ({rate:,.0f}/s), {counts.retried:,} retried, {counts.dead:,} dead, "
                f"{counts.in_hand:,} in hand"
            )
        self._printed, self._printed_at = counts, now
