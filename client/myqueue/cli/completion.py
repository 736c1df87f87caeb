"""`myqueue completion`: what a shell needs to complete commands and options with Tab."""

from typing import Annotated, Literal

import typer
from typer._completion_classes import completion_init
from typer._completion_shared import get_completion_script

from myqueue.cli.session import Session, command

HOW = {
    "bash": '# In ~/.bashrc:  eval "$(myqueue completion bash)"',
    "zsh": '# In ~/.zshrc, after compinit:  eval "$(myqueue completion zsh)"',
    "fish": "# Once:  myqueue completion fish > ~/.config/fish/completions/myqueue.fish",
}


def register(app: typer.Typer) -> None:
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
    script = get_completion_script(prog_name="myqueue", complete_var="_MYQUEUE_COMPLETE", shell=shell)
    session.output.text(f"{HOW[shell]}\n{script}")
