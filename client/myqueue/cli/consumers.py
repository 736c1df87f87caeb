"""`myqueue consumer`"""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Annotated

import typer

import myqueue
from myqueue.cli.completion import checked_topic, consumer_names, topic_names
from myqueue.cli.consume import offset_in
from myqueue.cli.failures import USAGE, CommandFailed, exit_code, parsed
from myqueue.cli.output import bytes_text, duration_text, plural
from myqueue.cli.quantities import Place, place
from myqueue.cli.session import Session, command, confirm_deletion, group
from myqueue.protocol.errors import ConsumerNotFound, MyQueueError, PartitionNotFound, PastEnd
from myqueue.protocol.limits import MAX_PAGE

app = group("List consumers, see how far they are behind, move and delete them.")

SHOWN_CONSUMERS = 20
ASKED_AT_ONCE = 8

Topic = Annotated[
    str,
    typer.Argument(
        metavar="TOPIC",
        help="The topic it reads.",
        autocompletion=topic_names,
        callback=checked_topic,
    ),
]
Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="Its name, or its number in 'consumer list'.", autocompletion=consumer_names),
]


@command(app, "list")
def list_consumers(
    session: Session,
    topic: Annotated[
        str | None,
        typer.Argument(
            metavar="TOPIC",
            help="Only of this one.",
            autocompletion=topic_names,
            callback=checked_topic,
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Only of this name, in whichever topic.")
    ] = None,
) -> None:
    """All consumers, or those of a topic or of a name."""
    with session.admin() as admin:
        found = admin.consumers(topic, name=name)
    output = session.output
    if output.as_json:
        output.document([asdict(consumer) for consumer in found])
    elif not found:
        named = "" if name is None else f" named {name!r}"
        output.note(f"no consumers{named}" if topic is None else f"no consumers of {topic}{named}")
    else:
        rows = [[c.consumer_id, c.topic, c.name, "all" if c.partition is None else str(c.partition)] for c in found]
        output.table(["number", "topic", "name", "partitions"], rows)


@command(app)
def lag(
    session: Session,
    topic: Annotated[
        str | None,
        typer.Argument(
            metavar="TOPIC",
            help="The topic. Default: consumers of all topics that have a name, the worst first.",
            autocompletion=topic_names,
            callback=checked_topic,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="Show its partitions. Default: all consumers of the topic.",
            autocompletion=consumer_names,
        ),
    ] = None,
    limit: Annotated[
        int,
        typer.Option("-n", "--limit", metavar="N", min=1, max=MAX_PAGE, help="How many to show, over all topics."),
    ] = SHOWN_CONSUMERS,
) -> None:
    """How far consumers are behind: messages, bytes, and the age of the oldest one that was not read."""
    with session.admin() as admin:
        if topic is None:
            _print_worst(session, admin, limit)
            return
        if name is None:
            _print_lags(session, admin, topic)
            return
        consumer = find(admin, topic, name)
        behind = admin.lag(consumer.consumer_id)
    output = session.output
    if output.as_json:
        partitions = [{"partition": number} | asdict(partition) for number, partition in behind.partitions.items()]
        totals = {"messages": behind.messages, "bytes": behind.bytes, "seconds": behind.seconds}
        output.document(asdict(consumer) | totals | {"partition_list": partitions})
        return
    readers = _readers(behind)
    columns = ["partition", "cursor", "end", "lag", "size", "oldest", "read by"]
    output.table(
        columns,
        [
            [n, p.cursor, p.end_offset, p.messages, bytes_text(p.bytes), _age(p.messages, p.seconds), readers[n]]
            for n, p in sorted(behind.partitions.items())
        ],
    )


EXAMPLES = """Examples:

myqueue consumer seek orders billing --to -1h --dry-run

myqueue consumer seek orders billing --to 17 --partition 2"""


@command(app, epilog=EXAMPLES)
def seek(
    session: Session,
    topic: Topic,
    name: Name,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="PLACE",
            help="earliest, latest, an offset, -N (the last N of each partition), -10m (that long ago), a date and "
            "time, or @seconds since 1970.",
        ),
    ],
    partition: Annotated[
        int | None, typer.Option("-p", "--partition", metavar="N", min=0, help="Only this one.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")] = False,
) -> None:
    """Set where a consumer reads on, also back. It counts for all processes that read under its name."""
    where = parsed("--to", lambda text: place(text, int(time.time() * 1000)), to)
    with session.admin() as admin:
        consumer = find(admin, topic, name)
        before = {number: p.cursor for number, p in admin.lag(consumer.consumer_id).partitions.items()}
        chosen = _chosen(consumer, before, partition, where)
        after = _targets(admin, topic, where, chosen)
        if not dry_run:
            after = _moved(admin, consumer.consumer_id, where, partition, after)
    _print_moves(session, consumer, before, after, dry_run)


@command(app)
def delete(
    session: Session,
    topic: Topic,
    name: Name,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")] = False,
) -> None:
    """Delete a consumer with its cursors. Processes that read under its name fail. There is no way back."""
    with session.admin() as admin:
        consumer = find(admin, topic, name)
        if not yes:
            unread = plural(admin.lag(consumer.consumer_id).messages, "message")
            confirm_deletion(session, f"Delete consumer {name} of {topic}, which has not read {unread}?")
        admin.delete_consumer(consumer.consumer_id)
    if session.output.as_json:
        session.output.document({"deleted": consumer.consumer_id})
    else:
        session.output.text(f"consumer {name} of {topic} is deleted")


@command(app)
def explain(session: Session, topic: Topic, name: Name) -> None:
    """Why a consumer gets no messages, and what to do about it."""
    with session.admin() as admin:
        consumer = find(admin, topic, name)
        explained = admin.explain(consumer.consumer_id)
    output = session.output
    if output.as_json:
        partitions = [{"partition": number} | asdict(one) for number, one in sorted(explained.partitions.items())]
        summary = {"reason": explained.reason, "text": explained.text, "action": explained.action}
        output.document(asdict(consumer) | summary | {"partition_list": partitions})
        return
    output.table(
        ["partition", "reason", "what is known"],
        [[number, one.reason, one.text] for number, one in sorted(explained.partitions.items())],
    )
    output.note(f"{explained.reason}: {explained.text}")
    output.note(f"what to do: {explained.action}")


def find(admin: "myqueue.Admin", topic: str, name: str) -> "myqueue.ConsumerInfo":
    for consumer in admin.consumers(topic, name=name):
        return consumer
    for consumer in admin.consumers(topic) if name.isdecimal() else ():
        if consumer.consumer_id == int(name):
            return consumer
    raise ConsumerNotFound(f"{topic} has no consumer {name!r}")


def _chosen(
    consumer: "myqueue.ConsumerInfo", cursors: dict[int, int], partition: int | None, where: Place
) -> list[int]:
    if partition is not None and partition not in cursors:
        raise PartitionNotFound(f"{consumer.name or consumer.consumer_id} reads no partition {partition}")
    chosen = sorted(cursors) if partition is None else [partition]
    if where.kind == "offset" and len(chosen) > 1:
        raise CommandFailed("--to: an offset belongs to a partition; give --partition, too", USAGE)
    return chosen


def _targets(admin: "myqueue.Admin", topic: str, where: Place, chosen: list[int]) -> dict[int, int]:
    if where.kind == "time":
        return {number: admin.offset_at(topic, number, where.value) for number in chosen}
    bounds = admin.offsets(topic)
    if where.kind == "offset" and where.value > bounds[chosen[0]].end_offset:
        raise PastEnd(f"partition {chosen[0]} ends at {bounds[chosen[0]].end_offset}", outcome="not_written")
    return {number: offset_in(where, bounds[number]) for number in chosen}


def _moved(
    admin: "myqueue.Admin", consumer_id: int, where: Place, partition: int | None, targets: dict[int, int]
) -> dict[int, int]:
    """In one request if the cluster can resolve the position itself."""
    if where.kind in ("earliest", "latest"):
        return admin.seek(consumer_id, to="earliest" if where.kind == "earliest" else "latest", partition=partition)
    if where.kind == "time":
        return admin.seek(consumer_id, to={"timestamp": where.value}, partition=partition)
    moved: dict[int, int] = {}
    for number, offset in targets.items():
        try:
            moved |= admin.seek(consumer_id, to=offset, partition=number)
        except MyQueueError as error:
            if not moved:
                raise
            raise _half_done(error, moved, number) from error
    return moved


def _half_done(error: MyQueueError, moved: dict[int, int], failed: int) -> CommandFailed:
    done = f"partition{'s' if len(moved) > 1 else ''} {', '.join(map(str, moved))}"
    perhaps = f" (but {failed} perhaps)" if error.outcome == "unknown" else ""
    return CommandFailed(
        f"{error.message} ({error.error_code}); {done} moved already, the others not{perhaps}",
        exit_code(error),
        hint="the same command again moves all of them",
        details={"error_code": error.error_code, "moved": [{"partition": n, "to": at} for n, at in moved.items()]},
    )


def _print_moves(
    session: Session, consumer: "myqueue.ConsumerInfo", before: dict[int, int], after: dict[int, int], dry_run: bool
) -> None:
    output = session.output
    moves = [
        {"partition": number, "from": before[number], "to": offset, "change": offset - before[number]}
        for number, offset in sorted(after.items())
    ]
    if output.as_json:
        output.document(asdict(consumer) | {"dry_run": dry_run, "partition_list": moves})
        return
    output.table(
        ["partition", "from", "to", "change"],
        [[m["partition"], m["from"], m["to"], f"{m['change']:+d}" if m["change"] else "0"] for m in moves],
    )
    if dry_run:
        output.note("nothing was changed (--dry-run)")


def _print_worst(session: Session, admin: "myqueue.Admin", limit: int) -> None:
    """Who is behind is known without a request for each; how old and how large that is, only its leaders know."""
    worst = admin.worst_lag(limit)

    def ask(found: "myqueue.NamedLag") -> "myqueue.Lag | None":
        try:
            return admin.lag(found.consumer_id)
        except ConsumerNotFound:
            return None  # deleted meanwhile

    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        exact = [
            (found, lag) for found, lag in zip(worst.consumers, pool.map(ask, worst.consumers), strict=True) if lag
        ]
    exact.sort(key=lambda pair: -pair[1].messages)
    output = session.output
    if output.as_json:
        rows = [
            asdict(found) | {"messages": lag.messages, "bytes": lag.bytes, "seconds": lag.seconds}
            for found, lag in exact
        ]
        output.document({"consumers": rows, "others": worst.others, "not_measured": worst.not_measured})
        return
    if exact:
        columns = ["number", "topic", "name", "lag", "size", "oldest", "members"]
        output.table(
            columns,
            [
                [
                    c.consumer_id,
                    c.topic,
                    c.name,
                    b.messages,
                    bytes_text(b.bytes),
                    _age(b.messages, b.seconds),
                    c.members,
                ]
                for c, b in exact
            ],
        )
    else:
        output.note("no consumers that have a name")
    if worst.others:
        output.note(f"and {plural(worst.others, 'other')} that are less behind; -n shows more")
    if worst.not_measured:
        output.note(f"{plural(worst.not_measured, 'more consumer')} not measured: the cluster has too many")


def _print_lags(session: Session, admin: "myqueue.Admin", topic: str) -> None:
    found = [(consumer, admin.lag(consumer.consumer_id)) for consumer in admin.consumers(topic)]
    output = session.output
    if output.as_json:
        output.document(
            [asdict(c) | {"messages": b.messages, "bytes": b.bytes, "seconds": b.seconds} for c, b in found]
        )
    elif not found:
        output.note(f"no consumers of {topic}")
    else:
        rows = [[c.consumer_id, c.name, b.messages, bytes_text(b.bytes), _age(b.messages, b.seconds)] for c, b in found]
        output.table(["number", "name", "lag", "size", "oldest"], rows)


def _readers(behind: "myqueue.Lag") -> dict[int, str | None]:
    """Who reads each partition, as people know it: the client id and the host; the member where that is not unique."""
    named = {number: _client(partition) for number, partition in behind.partitions.items()}
    members: dict[str | None, set[str | None]] = {}
    for number, partition in behind.partitions.items():
        members.setdefault(named[number], set()).add(partition.member)
    return {
        number: name if len(members[name]) == 1 else f"{name} ({(behind.partitions[number].member or '')[:8]})"
        for number, name in named.items()
    }


def _client(partition: "myqueue.PartitionLag") -> str | None:
    if partition.client_id is None:
        return partition.member
    return partition.client_id if partition.host is None else f"{partition.client_id}@{partition.host}"


def _age(messages: int, seconds: float) -> str | None:
    return duration_text(seconds) if messages else None
