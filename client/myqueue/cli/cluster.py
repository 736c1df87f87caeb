"""`myqueue cluster`"""

import time
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any

import typer

import myqueue
from myqueue.cli import cluster_snapshot
from myqueue.cli.cluster_snapshot import ClusterSnapshot, Rates
from myqueue.cli.failures import UNREACHABLE
from myqueue.cli.output import Output, Styled, rich_table
from myqueue.cli.session import Session, command, group
from myqueue.protocol.errors import MyQueueError
from myqueue.transport import RetryPolicy

Snapshots = Iterator[tuple[ClusterSnapshot | MyQueueError, Rates | None]]

ELECTION_S = 3.0  # a partition may be without a leader for so long, as in a new topic
LOOK_AGAIN_S = 0.5

app = group("See how the cluster is: brokers, managers, PostgreSQL, partitions.")


@command(app)
def status(session: Session) -> None:
    """One look at all of it.

    It ends with 3 if the cluster is not ready, or a partition finds no leader within seconds, and prints what it sees
    also then.
    """
    with session.admin() as admin:
        seen, elected_by_s = _snapshot(admin), time.monotonic() + ELECTION_S
        while seen.ready.ready and seen.leaderless and time.monotonic() < elected_by_s:
            time.sleep(LOOK_AGAIN_S)
            seen = _snapshot(admin)
    output = session.output
    if output.as_json:
        output.document({"url": session.url} | cluster_snapshot.as_json(seen))
    else:
        state = cluster_snapshot.headline(seen)
        output.text(Styled(f"{session.url}: {state.text}", state.style))
        output.table(cluster_snapshot.PROCESS_COLUMNS, cluster_snapshot.process_rows(seen))
        output.text(cluster_snapshot.summary(seen))
        for problem in seen.cluster.degraded:
            output.text(Styled(f"degraded: {problem}", "yellow"))
    if not seen.is_ready:
        raise typer.Exit(UNREACHABLE)


@command(app)
def watch(
    session: Session,
    every: Annotated[
        float,
        typer.Option(min=0.2, max=86400, metavar="SECONDS", help="How often to look."),
    ] = 2.0,
    count: Annotated[
        int | None, typer.Option("-n", "--count", min=1, help="End after so many looks. Default: with Ctrl-C.")
    ] = None,
    topics: Annotated[int, typer.Option(min=0, metavar="N", help="How many topics to show, the busiest first.")] = 10,
) -> None:
    """Look again and again, with rates.

    On a terminal the picture stays in place; elsewhere each look is a line, with -o json an object. A cluster that
    does not answer for a while is shown as such, and watched on.
    """
    with session.admin():  # fails if the cluster cannot be reached at the start
        pass
    policy = RetryPolicy(deadline_s=min(session.settings.timeout_s, max(1.0, every)))
    with myqueue.Admin(session.url, retry=policy) as admin:
        snapshots = _snapshots(admin, every, count)
        if session.output.on_terminal and not session.output.as_json:
            _live(session, snapshots, topics)
        else:
            _lines(session.output, snapshots)


def _snapshot(admin: "myqueue.Admin") -> ClusterSnapshot:
    return cluster_snapshot.take_snapshot(admin, time.monotonic(), time.time_ns() // 1_000_000)


def _snapshots(admin: "myqueue.Admin", every_s: float, count: int | None) -> Snapshots:
    """Each snapshot, or why there is none, with the rates since the last one."""
    before: ClusterSnapshot | None = None
    due_s, number = time.monotonic(), 0
    while count is None or number < count:
        time.sleep(max(0.0, due_s - time.monotonic()))
        due_s, number = max(due_s, time.monotonic()) + every_s, number + 1
        try:
            seen = _snapshot(admin)
        except MyQueueError as error:
            yield error, None
            continue
        yield seen, cluster_snapshot.rates(before, seen)
        before = seen


def _lines(output: Output, snapshots: Snapshots) -> None:
    for seen, per_s in snapshots:
        if isinstance(seen, MyQueueError):
            if output.as_json:
                output.line({"timestamp": time.time_ns() // 1_000_000, "ready": False, **seen.to_body(seen.request_id)})
            else:
                output.text(f"{_clock()} not ready ({seen.message})")
        elif output.as_json:
            output.line(cluster_snapshot.as_json(seen, per_s))
        else:
            output.text(cluster_snapshot.line(seen, per_s, _clock()))


def _live(session: Session, snapshots: Snapshots, topics: int) -> None:
    from rich.live import Live

    console = session.output.console()
    with Live(console=console, auto_refresh=False) as live:
        for seen, per_s in snapshots:
            live.update(_picture(session.url, seen, per_s, topics), refresh=True)


def _picture(url: str, seen: ClusterSnapshot | MyQueueError, per_s: Rates | None, topics: int) -> Any:
    from rich.console import Group
    from rich.text import Text

    title = f"{url}  {_clock()}  "
    if isinstance(seen, MyQueueError):
        return Text.assemble(title, (f"not ready ({seen.message})", "bold red"))
    state = cluster_snapshot.headline(seen)
    incoming = "" if per_s is None else f"; in: {sum(per_s.values()):,.0f}/s"
    processes = rich_table(
        cluster_snapshot.PROCESS_COLUMNS, cluster_snapshot.process_rows(seen), [False, False, True, True, False]
    )
    shown = rich_table(
        cluster_snapshot.TOPIC_COLUMNS,
        cluster_snapshot.topic_rows(seen, per_s, topics),
        [False, True, True, True, True],
    )
    parts: list[Any] = [Text.assemble(title, state), processes, Text(cluster_snapshot.summary(seen) + incoming)]
    if topics and seen.topics:
        parts += [Text(), shown]
    if len(seen.topics) > topics > 0:
        parts.append(Text(f"and {len(seen.topics) - topics} more", "dim"))
    return Group(*parts)


def _clock() -> str:
    return datetime.now().astimezone().strftime("%H:%M:%S")
