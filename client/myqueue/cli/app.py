"""The root of the command line: global options, and which command is where."""

import os
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from myqueue.cli import (
    bench,
    cluster,
    completion,
    consume,
    consumers,
    dead_letters,
    doctor,
    failures,
    produce,
    stats,
    topics,
    worker,
)
from myqueue.cli.output import Output
from myqueue.cli.session import NoColor, OutputFormat, ProfileName, Timeout, Url, flags_of, help_alone
from myqueue.cli.settings import BadSettings, Flags, resolve
from myqueue.version import VERSION

EPILOG = (
    "Exit codes: 0 it worked, 1 refused or not so, 2 wrong usage, 3 cannot be reached or is not ready, 4 not found, "
    "130 interrupted, 141 nobody reads the output, 143 ended by SIGTERM."
)


class _Root(TyperGroup):
    """Reports wrong usage, and help that cannot be written, like any other error, also as JSON."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        given = list(sys.argv[1:] if args is None else args)

        def call() -> None:
            raise typer.Exit(main(given, prog_name, complete_var, False, windows_expand_args, **extra) or failures.OK)

        main = super().main
        code = failures.ended(_output(given), call)
        if not standalone_mode:
            return code
        sys.exit(code)


def _output(given: list[str]) -> Output:
    """The output of a command line that may not be parsable, from its words."""
    output, profile = _value_of(given, "-o", "--output"), _value_of(given, "--profile")
    as_json = output == "json"
    if output is None:
        try:
            as_json = resolve(Flags(profile=profile), os.environ).output == "json"
        except BadSettings:
            as_json = False  # the command itself reports them
    return Output(as_json=as_json, color=not os.environ.get("NO_COLOR"))


def _value_of(given: list[str], *options: str) -> str | None:
    for option in options:
        for word, following in pairwise([*given, ""]):
            if word == option:
                return following
            if word.startswith(f"{option}=") or (len(option) == 2 and word.startswith(option)):
                return word.removeprefix(option).removeprefix("=")
    return None


app = typer.Typer(
    name="myqueue",
    cls=_Root,
    add_completion=False,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
    invoke_without_command=True,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"myqueue {VERSION}")
        raise typer.Exit


@app.callback()
def root(
    ctx: typer.Context,
    url: Url = None,
    profile: ProfileName = None,
    output: OutputFormat = None,
    timeout: Timeout = None,
    no_color: NoColor = False,
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """myqueue from a shell: topics, messages, consumers and the cluster itself.

    Which cluster is meant is said by --url, by MYQUEUE_URL, or by a profile: a table such as profiles.work, with url,
    timeout and output, in $XDG_CONFIG_HOME/myqueue/config.toml or ~/.config/myqueue/config.toml. In that file,
    default = "work" names the profile that counts without --profile.
    """
    given = {"url": url, "profile": profile, "output": output, "timeout": timeout, "no_color": no_color}
    ctx.obj = flags_of(given)
    help_alone(ctx)


app.add_typer(topics.app, name="topic")
produce.register(app)
consume.register(app)
app.add_typer(consumers.app, name="consumer")
worker.register(app)
app.add_typer(dead_letters.app, name="dead-letter")
app.add_typer(cluster.app, name="cluster")
app.add_typer(stats.app, name="stats")
bench.register(app)
doctor.register(app)
completion.register(app)
