"""`myqueue completion`: what a shell needs to complete commands and options with Tab."""

import os
from typing import Annotated, Literal

import typer

from myqueue.cli.session import Session, command

ASKED = "_MYQUEUE_COMPLETE"  # set by the scripts when they ask what may follow
HOW = {
    "bash": '# In ~/.bashrc:  eval "$(myqueue completion bash)"',
    "zsh": '# In ~/.zshrc, after compinit:  eval "$(myqueue completion zsh)"',
    "fish": "# Once:  myqueue completion fish > ~/.config/fish/completions/myqueue.fish",
}


def register(app: typer.Typer) -> None:
    if ASKED in os.environ:
        from typer._completion_classes import completion_init

        completion_init()  # so that the command understands what the scripts ask
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

    script = get_completion_script(prog_name="myqueue", complete_var=ASKED, shell=shell)
    session.output.text(f"{HOW[shell]}\n{script}")
