"""`myqueue completion`, and the names of topics and consumers that a shell completes."""

import os
from collections.abc import Callable
from typing import Annotated, Literal

import typer

import myqueue
from myqueue.cli.session import Session, command
from myqueue.cli.settings import BadSettings, Flags, resolve
from myqueue.protocol.errors import MyQueueError
from myqueue.protocol.limits import topic_name_problem
from myqueue.transport import RetryPolicy

COMPLETE_VARIABLE = "_MYQUEUE_COMPLETE"  # set by the scripts when they request completions
HOW = {
    "bash": '# In ~/.bashrc:  eval "$(myqueue completion bash)"',
    "zsh": '# In ~/.zshrc, after compinit:  eval "$(myqueue completion zsh)"',
    "fish": "# Once:  myqueue completion fish > ~/.config/fish/completions/myqueue.fish",
}
COMPLETION_S = 1.0


def register(app: typer.Typer) -> None:
    if COMPLETE_VARIABLE in os.environ:
        from typer._completion_classes import completion_init

        completion_init()  # lets the command answer the scripts
    command(app, "completion")(completion)


def completion(
    session: Session,
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(metavar="bash|zsh|fish", help="Your shell.")],
) -> None:
    """Print a script that teaches your shell to complete commands and options with Tab.

    bash and zsh: eval "$(myqueue completion bash)" in ~/.bashrc or ~/.zshrc. fish: write it to
    ~/.config/fish/completions/myqueue.fish.
    """
    from typer._completion_shared import get_completion_script

    script = get_completion_script(prog_name="myqueue", complete_var=COMPLETE_VARIABLE, shell=shell)
    session.output.text(f"{HOW[shell]}\n{script}")


def checked_topic(name: str | None) -> str | None:
    """A callback of an argument: refuses an invalid topic name without a request."""
    if name is not None and (problem := topic_name_problem(name)):
        raise typer.BadParameter(problem)
    return name


def topic_names(ctx: typer.Context, incomplete: str) -> list[str]:
    return _names(ctx, incomplete, lambda admin: admin.list_topics())


def consumer_names(ctx: typer.Context, incomplete: str) -> list[str]:
    topic = ctx.params.get("topic")
    if not topic:
        return []
    return _names(ctx, incomplete, lambda admin: [found.name for found in admin.consumers(topic) if found.name])


def _names(ctx: typer.Context, incomplete: str, ask: Callable[["myqueue.Admin"], list[str]]) -> list[str]:
    here, before = ctx.params, ctx.find_root().params
    flags = Flags(url=here.get("url") or before.get("url"), profile=here.get("profile") or before.get("profile"))
    try:
        with myqueue.Admin(resolve(flags, os.environ).url, retry=RetryPolicy(deadline_s=COMPLETION_S)) as admin:
            return [name for name in ask(admin) if name.startswith(incomplete)]
    except (MyQueueError, BadSettings):
        return []  # the command itself shows the error
