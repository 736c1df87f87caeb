"""Names of topics and consumers: which can be one, and for completion those that the cluster tells within a second."""

import os
from collections.abc import Callable

import typer

import myqueue
from myqueue.cli.settings import BadSettings, Flags, resolve
from myqueue.protocol.errors import MyQueueError
from myqueue.protocol.limits import topic_name_problem
from myqueue.transport import RetryPolicy

ASK_S = 1.0


def checked_topic(name: str | None) -> str | None:
    """As a callback of an argument: what cannot be a topic's name needs no server to be refused."""
    if name is not None and (problem := topic_name_problem(name)):
        raise typer.BadParameter(problem)
    return name


def topics(ctx: typer.Context, incomplete: str) -> list[str]:
    return _asked(ctx, incomplete, lambda admin: admin.list_topics())


def consumers(ctx: typer.Context, incomplete: str) -> list[str]:
    topic = ctx.params.get("topic")
    if not topic:
        return []
    return _asked(ctx, incomplete, lambda admin: [found.name for found in admin.consumers(topic) if found.name])


def _asked(ctx: typer.Context, incomplete: str, ask: Callable[["myqueue.Admin"], list[str]]) -> list[str]:
    here, before = ctx.params, ctx.find_root().params
    flags = Flags(url=here.get("url") or before.get("url"), profile=here.get("profile") or before.get("profile"))
    try:
        with myqueue.Admin(resolve(flags, os.environ).url, retry=RetryPolicy(deadline_s=ASK_S)) as admin:
            return [name for name in ask(admin) if name.startswith(incomplete)]
    except (MyQueueError, BadSettings):
        return []  # whoever types a command sees its error when it runs
