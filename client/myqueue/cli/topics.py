"""`myqueue topic`"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from fnmatch import fnmatchcase
from typing import Annotated, Any

import typer

import myqueue
from myqueue.cli.completion import checked_topic, topic_names
from myqueue.cli.failures import USAGE, CommandFailed, parsed
from myqueue.cli.output import Styled, bytes_text, duration_text, plural
from myqueue.cli.quantities import duration_ms, size_bytes
from myqueue.cli.session import Session, command, confirm_deletion, group
from myqueue.protocol.errors import MyQueueError, TopicNotFound
from myqueue.protocol.limits import DEFAULT_PARTITIONS, MAX_PARTITIONS_PER_TOPIC

app = group("Create, list, describe, alter and delete topics.")

ASKED_AT_ONCE = 8
NEVER = "never"

Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="The topic.", autocompletion=topic_names, callback=checked_topic),
]


@command(app, "list")
def list_topics(
    session: Session,
    pattern: Annotated[str, typer.Argument(metavar="PATTERN", help="Only names like this, such as 'shop-*'.")] = "*",
    long: Annotated[bool, typer.Option("-l", "--long", help="With partitions, copies, messages and bytes.")] = False,
    internal: Annotated[
        bool, typer.Option("--internal", help="With the topics in which Spark's streams stage what they write.")
    ] = False,
) -> None:
    """Names of all topics."""
    output = session.output
    with session.admin() as admin:
        found = [name for name in admin.list_topics(internal=internal) if fnmatchcase(name, pattern)]
        rows: list[dict[str, Any]] = _totals(admin, found) if long else [{"name": name} for name in found]
    if output.as_json:
        output.document(rows)
    elif not rows:
        output.note("no topics" if pattern == "*" else f"no topics like {pattern!r}")
    elif not long:
        output.table(["name"], [[row["name"]] for row in rows])
    else:
        columns = ["name", "partitions", "copies", "messages", "size"]
        output.table(columns, [[*list(row.values())[:4], bytes_text(row["size_bytes"])] for row in rows])


@command(app)
def create(
    session: Session,
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="Letters, digits, '.', '_' and '-'.", callback=checked_topic),
    ],
    partitions: Annotated[
        int,
        typer.Option(
            "-p", "--partitions", metavar="N", min=1, max=MAX_PARTITIONS_PER_TOPIC, help="How many to split it into."
        ),
    ] = DEFAULT_PARTITIONS,
    replication: Annotated[
        int | None,
        typer.Option(
            "-r",
            "--replication",
            metavar="N",
            min=1,
            max=15,
            help="Copies of each. Default: 3, or one for each broker.",
        ),
    ] = None,
    retention: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Delete what is older, such as 7d. Default: never.")
    ] = None,
    retention_bytes: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Delete the oldest of a partition above this, such as 10GiB. Default: never."
        ),
    ] = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="A topic that is there with the same settings is fine.")
    ] = False,
) -> None:
    """Create a topic."""
    kept_ms = parsed("--retention", duration_ms, retention)
    kept_bytes = parsed("--retention-bytes", size_bytes, retention_bytes)
    with session.admin() as admin:
        if if_not_exists:
            topic = admin.ensure_topic(name, partitions, replication, kept_ms, kept_bytes)
        else:
            admin.create_topic(name, partitions, replication, kept_ms, kept_bytes)
            try:
                topic = admin.describe_topic(name)
            except MyQueueError as error:
                # The topic exists, even if it cannot be described right now.
                asked = {"replication": replication, "retention_ms": kept_ms, "retention_bytes": kept_bytes}
                _print_made(session, {"name": name, "topic_id": None, "partitions": partitions} | asked, error)
                return
    if session.output.as_json:
        session.output.document(asdict(topic))
    else:
        session.output.text(f"topic {name}: {_settings_text(topic)}")


def _print_made(session: Session, known: dict[str, Any], error: MyQueueError) -> None:
    if session.output.as_json:
        session.output.document(known)
    else:
        session.output.text(f"topic {known['name']}: created, {plural(known['partitions'], 'partition')}")
    session.output.note(f"the rest cannot be told now: {error.message} ({error.error_code})")


@command(app)
def alter(
    session: Session,
    name: Name,
    retention: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Delete what is older, such as 7d; 'never' to keep it.")
    ] = None,
    retention_bytes: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Delete the oldest of a partition above this, such as 10GiB; or 'never'."),
    ] = None,
) -> None:
    """Change how long a topic keeps its messages. Brokers delete by it at once: there is no way back."""
    if retention is None and retention_bytes is None:
        raise CommandFailed("give --retention, --retention-bytes or both", USAGE)
    changes: dict[str, int | None] = {}
    if retention is not None:
        changes["retention_ms"] = parsed("--retention", lambda text: _limit(duration_ms, text), retention)
    if retention_bytes is not None:
        changes["retention_bytes"] = parsed("--retention-bytes", lambda text: _limit(size_bytes, text), retention_bytes)
    with session.admin() as admin:
        topic = admin.alter_topic(name, **changes)
    if session.output.as_json:
        session.output.document(asdict(topic))
    else:
        session.output.text(f"topic {name}: {_settings_text(topic)}")


def _limit(parse: Callable[[str], int], text: str) -> int | None:
    return None if text == NEVER else parse(text)


@command(app)
def describe(session: Session, name: Name) -> None:
    """Settings of a topic, and its partitions with leader, copies and offsets."""
    with session.admin() as admin:
        topic = admin.describe_topic(name)
        partitions = admin.partitions(name)
    output = session.output
    if output.as_json:
        output.document(asdict(topic) | {"partition_list": [_partition(partition) for partition in partitions]})
        return
    messages, size = sum(p.size for p in partitions), sum(p.size_bytes for p in partitions)
    output.text(f"topic {name}: {_settings_text(topic)}")
    output.text(f"{plural(messages, 'message')}, {bytes_text(size)}; id {topic.topic_id}")
    output.text("")
    columns = ["partition", "leader", "replicas", "term", "first", "end", "messages", "size"]
    output.table(
        columns,
        [
            [
                p.partition,
                Styled("none", "bold red") if p.leader is None else p.leader,
                _replicas_text(p),
                p.term,
                p.beginning_offset,
                p.end_offset,
                p.size,
                bytes_text(p.size_bytes),
            ]
            for p in partitions
        ],
    )


@command(app)
def delete(
    session: Session,
    name: Name,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")] = False,
) -> None:
    """Delete a topic with its messages, producers and consumers. There is no way back."""
    with session.admin() as admin:
        if not yes:
            messages, consumers = sum(p.size for p in admin.partitions(name)), len(admin.consumers(name))
            what = f"{plural(messages, 'message')} and {plural(consumers, 'consumer')}"
            confirm_deletion(session, f"Delete topic {name} with {what}?")
        admin.delete_topic(name)
    if session.output.as_json:
        session.output.document({"deleted": name})
    else:
        session.output.text(f"topic {name} is deleted")


def _totals(admin: "myqueue.Admin", topics: list[str]) -> list[dict[str, Any]]:
    """Topics that are deleted meanwhile are left out."""
    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        return [row for row in pool.map(lambda name: _total(admin, name), topics) if row is not None]


def _total(admin: "myqueue.Admin", name: str) -> dict[str, Any] | None:
    try:
        partitions = admin.partitions(name)
    except TopicNotFound:
        return None
    return {
        "name": name,
        "partitions": len(partitions),
        "replication": max((len(p.replicas) for p in partitions), default=0),
        "messages": sum(p.size for p in partitions),
        "size_bytes": sum(p.size_bytes for p in partitions),
    }


def _partition(partition: "myqueue.PartitionInfo") -> dict[str, Any]:
    found = asdict(partition)
    found["damaged"] = [{"broker_id": broker_id, "reason": reason} for broker_id, reason in partition.damaged]
    return found | {"messages": found.pop("size")}


def _replicas_text(partition: "myqueue.PartitionInfo") -> Styled:
    damaged = {broker_id for broker_id, _ in partition.damaged}
    text = ",".join(
        f"{broker_id} (damaged)" if broker_id in damaged else str(broker_id) for broker_id in partition.replicas
    )
    return Styled(text, "yellow" if damaged else "")


def _settings_text(topic: "myqueue.TopicInfo") -> str:
    kept = []
    if topic.retention_ms is not None:
        kept.append(f"for {duration_text(topic.retention_ms / 1000)}")
    if topic.retention_bytes is not None:
        kept.append(f"up to {bytes_text(topic.retention_bytes)} a partition")
    partitions, copies = plural(topic.partitions, "partition"), plural(topic.replication, "copy", "copies")
    return f"{partitions}, {copies} of each, messages kept {' and '.join(kept) or 'for ever'}"
