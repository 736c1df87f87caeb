"""Makes docs/cli.md from the commands' own help: `python -m myqueue.cli.manual > docs/cli.md`."""

import re
from collections.abc import Iterator
from typing import Any

import typer

from myqueue.cli.app import app
from myqueue.cli.session import GLOBAL_OPTIONS

INTRODUCTION = """\
# The command line

`myqueue` does from a shell what the library does from Python: topics, messages, consumers, and a look at the cluster
itself. This page is made from the commands' own help (`myqueue COMMAND --help`).

In the checkout it is there after `make up`, as `.venv/bin/myqueue`. Elsewhere:

```sh
pip install './client[cli]'
```

## A first look

```sh
myqueue topic create visits --partitions 2
printf 'alice:signs in\\nbob:signs in\\nalice:leaves\\n' | myqueue produce visits --key-separator :
myqueue consume visits --exit --format '%p/%o %k %s\\n'
myqueue consume visits --name audit --count 2
myqueue consumer lag visits audit
myqueue topic delete visits --yes
```

And how the cluster is:

```sh
myqueue cluster status                            # one look
myqueue cluster watch                             # one every two seconds, with rates, until Ctrl-C
myqueue bench                                     # how fast it is from here, in about ten seconds
myqueue doctor                                    # what is wrong, and what to do
```

`doctor` is for when something is wrong: it looks at one tier after the other, from the address you gave to a message
that goes all the way, and says of each what is wrong and what to do.

## Which cluster

The first of these that says something counts:

1. `--url http://host:port`, before or behind the command
2. `--profile NAME`: a profile of the file below
3. the variable `MYQUEUE_URL`
4. the variable `MYQUEUE_PROFILE`, or the file's `default`
5. `http://localhost`

Profiles are in `~/.config/myqueue/config.toml` (`$XDG_CONFIG_HOME/myqueue/config.toml`):

```toml
default = "here"

[profiles.here]
url = "http://localhost"

[profiles.production]
url = "https://queue.example.com"
timeout = 30
output = "json"
```

## For scripts

Data goes to stdout, everything else to stderr. With `-o json` every command prints one JSON document, or one object a
line where things come bit by bit (`consume`, `tail`, `cluster watch`); errors are then JSON on stderr, with the
server's `error_code` and `message`. Without a terminal there are no colours and no progress bars. In all of it
`partitions` is a number; what is told of each partition is in `partition_list`.

```sh
myqueue consume orders --from earliest --count 2 --exit --output json
```

| exit code | |
|---|---|
| 0 | it worked |
| 1 | the server refused, or what was asked for is not so: `doctor` found a failure, not all messages were sent |
| 2 | wrong usage: an unknown option, a bad value, a file that cannot be read; nothing was done |
| 3 | the cluster cannot be reached, or is not ready; `cluster status` prints what it sees also then |
| 4 | there is no such topic, partition or consumer |
| 130 | interrupted by Ctrl-C |
| 141 | nobody reads the output any more, as in `myqueue consume orders \\| head` |
| 143 | ended by SIGTERM, as cleanly as by Ctrl-C |

A line that `produce` reads ends with `\\n`. In a file with Windows' ends of lines the `\\r` before it is part of the
message; `tr -d '\\r'` takes it away.

Tab completes commands and options:

```sh
eval "$(myqueue completion bash)"
```

## Commands
"""


def page() -> str:
    root = typer.main.get_command(app)
    commands = list(_commands(root, typer.Context(root, info_name="myqueue")))
    parts = [INTRODUCTION, _table([_entry(context) for context in commands])]
    parts += [_section(context) for context in commands]
    parts.append("## Options of every command\n\nBefore or behind the command.\n")
    parts.append(_table([_cells(option, commands[0]) for option in commands[0].command.params if _is_global(option)]))
    return "\n".join(parts)


def _commands(command: Any, context: typer.Context) -> Iterator[typer.Context]:
    """The leaves, in the order of the help."""
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        below = typer.Context(inner, info_name=name, parent=context)
        if hasattr(inner, "list_commands"):
            yield from _commands(inner, below)
        else:
            yield below


def _entry(context: typer.Context) -> tuple[str, str]:
    path = context.command_path
    return f"[`{path}`](#{path.replace(' ', '-')})", (context.command.help or "").split("\n\n")[0]


def _section(context: typer.Context) -> str:
    own = [parameter for parameter in context.command.params if not _is_global(parameter)]
    arguments = [parameter for parameter in own if parameter.param_type_name == "argument"]
    words = [_name(argument, context) for argument in arguments]
    words = [word if argument.required else f"[{word}]" for word, argument in zip(words, arguments, strict=True)]
    usage = " ".join([context.command_path, *(["[OPTIONS]"] if len(own) > len(arguments) else []), *words])
    lines = [f"### {context.command_path}\n", f"```text\n{usage}\n```\n", f"{context.command.help}\n"]
    if own:
        lines.append(_table([_cells(parameter, context) for parameter in own]))
    if context.command.epilog:
        title, *examples = context.command.epilog.strip().split("\n\n")
        lines.append("\n".join([f"{title}\n", "```text", *examples, "```", ""]))
    return "\n".join(lines)


def _is_global(parameter: Any) -> bool:
    return parameter.name in GLOBAL_OPTIONS


def _name(parameter: Any, context: typer.Context) -> str:
    """The option as it is typed. Unnamed value types are numbers, or a choice."""
    name = str(parameter.get_help_record(context)[0])
    if parameter.param_type_name == "argument":
        return name.split(" <")[0]
    return re.sub(r" <(.+)>", r" \1", re.sub(r" <(int|float)( range)?>", " N", name))


def _cells(parameter: Any, context: typer.Context) -> tuple[str, str]:
    text = str(parameter.get_help_record(context)[1])
    text = re.sub(r"  \[(.*)\]$", lambda found: _remark(found[1]), text)
    return f"`{_name(parameter, context)}`", text


def _remark(found: str) -> str:
    """The part that the help has in brackets: `default: 5; x>=1`."""
    remarks = []
    for remark in found.split("; "):
        bounds = re.match(r"(?:(\d[\d.]*)<=)?x(?:>=(\d[\d.]*))?(?:<=(\d[\d.]*))?$", remark)
        if bounds:
            low, high = bounds[1] or bounds[2], bounds[3]
            remarks.append(f"from {low} to {high}" if low and high else f"at least {low}" if low else f"at most {high}")
        else:
            remarks.append(remark)
    return f" ({', '.join(remarks)})"


def _table(rows: list[tuple[str, str]]) -> str:
    escaped = [[cell.replace("\n", " ").replace("|", "\\|") for cell in row] for row in rows]
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {text} |" for name, text in escaped)]) + "\n"


if __name__ == "__main__":
    print(page(), end="")
