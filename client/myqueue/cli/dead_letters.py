"""`myqueue dead-letter`"""

from typing import Annotated, Any

import typer

import myqueue.worker
from myqueue.cli.completion import checked_topic, topic_names
from myqueue.cli.output import duration_text, plural
from myqueue.cli.session import Session, command, group

app = group("Send messages that a worker gave up back to their topic.")

REASON_CHARS = 60

EXAMPLES = """Examples:

myqueue dead-letter replay orders.dead --dry-run

myqueue dead-letter replay orders.dead --error ConnectionError --limit 100"""


@command(app, epilog=EXAMPLES)
def replay(
    session: Session,
    topic: Annotated[
        str,
        typer.Argument(
            metavar="TOPIC",
            help="The topic of dead letters, such as orders.dead.",
            autocompletion=topic_names,
            callback=checked_topic,
        ),
    ],
    limit: Annotated[int | None, typer.Option("-n", "--limit", metavar="N", min=1, help="At most so many.")] = None,
    error: Annotated[
        str | None,
        typer.Option("--error", metavar="TYPE", help="Only of this exception, with or without its module."),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="TOPIC", help="Default: where each came from.", callback=checked_topic),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show which letters are meant.")] = False,
) -> None:
    """Send dead letters back to the topic they came from, each once, with key, value and headers.

    The next replay goes on where this one ended, also if it was interrupted. With --error there is a position for that
    type of its own.
    """
    output = session.output
    shown: list[myqueue.worker.DeadLetter] = []

    def show(letter: "myqueue.worker.DeadLetter") -> None:
        if output.as_json:
            output.line(_as_json(letter))
        elif dry_run:
            shown.append(letter)

    session.reach()
    counts = myqueue.worker.replay(
        session.url,
        dead_letter_topic=topic,
        limit=limit,
        error=error,
        to=to,
        dry_run=dry_run,
        on_letter=show,
        retry=session.retry,
    )
    if shown:
        output.table(["letter", "from", "error", "reason", "attempts", "replays", "after"], map(_row, shown))
    done = "would be replayed (--dry-run)" if dry_run else "replayed"
    output.note(f"{plural(counts.replayed, 'dead letter')} of {topic} {done}")
    if counts.skipped:
        output.note(f"{plural(counts.skipped, 'dead letter')} of other errors left out")
    if counts.foreign:
        output.note(f"{plural(counts.foreign, 'message')} left out that no worker gave up")


def _row(letter: "myqueue.worker.DeadLetter") -> list[str | int]:
    """`after`: between sending the message and giving it up."""
    reason = letter.reason if len(letter.reason) <= REASON_CHARS else letter.reason[: REASON_CHARS - 1] + "…"
    return [
        f"{letter.message.partition}/{letter.message.offset}",
        f"{letter.topic} {letter.partition}/{letter.offset}",
        letter.error,
        reason,
        letter.attempts,
        letter.replays,
        duration_text(max(0, letter.died_at - letter.timestamp) / 1000),
    ]


def _as_json(letter: "myqueue.worker.DeadLetter") -> dict[str, Any]:
    return {
        "partition": letter.message.partition,
        "offset": letter.message.offset,
        "error": letter.error,
        "reason": letter.reason,
        "from": {"topic": letter.topic, "partition": letter.partition, "offset": letter.offset},
        "timestamp": letter.timestamp,
        "attempts": letter.attempts,
        "replays": letter.replays,
        "died_at": letter.died_at,
        "worker": letter.worker,
    }
