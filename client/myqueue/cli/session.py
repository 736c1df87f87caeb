"""What every command gets: the cluster and the output; how a function becomes a command."""

import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Concatenate, ParamSpec, get_type_hints

import typer

import myqueue
from myqueue.cli import failures
from myqueue.cli.failures import REFUSED, USAGE, CommandFailed
from myqueue.cli.output import Output
from myqueue.cli.settings import DEFAULT_TIMEOUT_S, Flags, Format, Settings, resolve
from myqueue.cluster_url import DEFAULT_URL
from myqueue.connecting import ConnectFailed, connect, host_and_port
from myqueue.http_connection import NotConnected
from myqueue.transport import RetryPolicy

P = ParamSpec("P")

CONNECT_S = 2.0


def _option(*names: str, metavar: str | None = None, text: str) -> Any:
    return typer.Option(*names, metavar=metavar, help=text, rich_help_panel="Global options")


_URL = f"The cluster's address. Default: that of --profile, MYQUEUE_URL, that of the default profile, {DEFAULT_URL}."
_TIMEOUT = f"How long to try what does not work at once. Default: the profile's, or {DEFAULT_TIMEOUT_S:g}."

Url = Annotated[str | None, _option("--url", metavar="URL", text=_URL)]
ProfileName = Annotated[
    str | None,
    _option("--profile", metavar="NAME", text="A profile of config.toml. Default: MYQUEUE_PROFILE, or the file's own."),
]
OutputFormat = Annotated[
    Format | None,
    _option(
        "-o",
        "--output",
        metavar="table|json|csv",
        text="For people or for programs; csv is for stats only. Default: the profile's, or table.",
    ),
]
Timeout = Annotated[float | None, _option("--timeout", metavar="SECONDS", text=_TIMEOUT)]
NoColor = Annotated[bool, _option("--no-color", text="No colours, as with NO_COLOR set.")]

GLOBAL_OPTIONS: dict[str, tuple[Any, Any]] = {  # with their defaults
    "url": (Url, None),
    "profile": (ProfileName, None),
    "output": (OutputFormat, None),
    "timeout": (Timeout, None),
    "no_color": (NoColor, False),
}


@dataclass(frozen=True, slots=True)
class Session:
    settings: Settings
    output: Output

    @property
    def url(self) -> str:
        return self.settings.url

    @property
    def retry(self) -> RetryPolicy:
        return RetryPolicy(deadline_s=self.settings.timeout_s)

    def admin(self) -> "myqueue.Admin":
        """Checks that the cluster can be reached; use it with `with`."""
        self.reach()
        return myqueue.Admin(self.url, retry=self.retry)

    def reach(self) -> None:
        """Fails at once for a wrong address or a cluster that is down, instead of retrying."""
        try:
            connect(*host_and_port(self.url), min(CONNECT_S, self.settings.timeout_s)).close()
        except ConnectFailed as error:
            message = f"cannot connect to {self.url} (from {self.settings.url_from}): {error}"
            raise NotConnected(message, error.reason) from error


def command(
    app: typer.Typer, name: str | None = None, *, epilog: str | None = None, takes_csv: bool = False
) -> Callable[[Callable[Concatenate[Session, P], None]], Callable[Concatenate[Session, P], None]]:
    """Registers a function as a command. It gets a session first; its other parameters are typer's.

    Adds the global options, so that they may follow the command, too. An exception becomes a message and an exit code.
    """

    def register(function: Callable[Concatenate[Session, P], None]) -> Callable[Concatenate[Session, P], None]:
        def call(**given: Any) -> None:
            context = given.pop("ctx")
            flags = flags_of({option: given.pop(option) for option in GLOBAL_OPTIONS}).over(context.obj)
            raise typer.Exit(start(flags, lambda session: function(session, **given), takes_csv=takes_csv))  # type: ignore[call-arg]

        hints = get_type_hints(function, include_extras=True)
        own = list(inspect.signature(function).parameters.values())[1:]
        parameters = [
            _parameter("ctx", typer.Context),
            *(_parameter(parameter.name, hints[parameter.name], parameter.default) for parameter in own),
            *(_parameter(option, kind, default) for option, (kind, default) in GLOBAL_OPTIONS.items()),
        ]
        call.__name__ = function.__name__
        call.__doc__ = function.__doc__
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        app.command(name, epilog=epilog)(call)
        return function

    return register


def group(text: str) -> typer.Typer:
    """An app for a group of commands. Without a command it prints its help."""
    app = typer.Typer(help=text, invoke_without_command=True)

    @app.callback()
    def _(
        ctx: typer.Context,
        url: Url = None,
        profile: ProfileName = None,
        output: OutputFormat = None,
        timeout: Timeout = None,
        no_color: NoColor = False,
    ) -> None:
        given = {"url": url, "profile": profile, "output": output, "timeout": timeout, "no_color": no_color}
        ctx.obj = flags_of(given).over(ctx.obj)
        help_alone(ctx)

    return app


def help_alone(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(failures.USAGE)


def flags_of(given: dict[str, Any]) -> Flags:
    """A flag that was not given counts as None."""
    return Flags(**(given | {"no_color": given["no_color"] or None}))


def start(flags: Flags, body: Callable[[Session], None], *, takes_csv: bool = False) -> int:
    """The exit code of a command."""
    output = Output(as_json=flags.output == "json", color=not flags.no_color)

    def call() -> None:
        settings = resolve(flags, os.environ)
        output.as_json, output.color = settings.output == "json", settings.color
        output.as_csv = settings.output == "csv"
        if output.as_csv and not takes_csv:
            raise CommandFailed("-o csv: only 'myqueue stats' can do that; take table or json", USAGE)
        body(Session(settings, output))

    return failures.run(output, call)


def _parameter(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def confirm_deletion(session: Session, question: str) -> None:
    if not sys.stdin.isatty():
        raise CommandFailed("--yes: needed where nobody can be asked, because deleting cannot be undone", USAGE)
    if not typer.confirm(question, err=True):
        session.output.note("nothing was deleted")
        raise typer.Exit(REFUSED)
