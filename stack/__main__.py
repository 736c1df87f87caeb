"""The command line of the one-machine stack; the Makefile's verbs call it."""

import argparse
import json
import os
import platform
import signal
import sys
import time
from types import FrameType

from rich.console import Console
from rich.table import Table

from stack import commands, guard
from stack.config import StackConfig, StackError, load_config
from stack.home import Home
from stack.status import Report, read_status

UNHEALTHY = 3


def check_machine() -> None:
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise StackError(f"myqueue's stack runs on Linux x86-64, not on {sys.platform} {platform.machine()}", 2)


def show(report: Report) -> int:
    if os.environ.get("STATUS_FORMAT") == "json":
        print(json.dumps(report.as_json()))
        return 0 if report.is_healthy else UNHEALTHY
    table = Table(title=f"myqueue at {report.url}" if report.url else "myqueue is down", title_justify="left")
    for heading in ("name", "role"):
        table.add_column(heading)
    for heading in ("pid", "port"):
        table.add_column(heading, justify="right")
    table.add_column("health")
    table.add_column("restarts", justify="right")
    for process in report.processes:
        colour = "green" if process.health == "healthy" else "red"
        pid = "" if process.pid is None else str(process.pid)
        health = f"[{colour}]{process.health}[/{colour}]"
        table.add_row(process.name, process.role, pid, str(process.port), health, str(process.restarts))
    Console().print(table)
    for process in report.processes:
        if process.problem is not None:
            Console().print(f"{process.name}: {process.problem}", markup=False)
    return 0 if report.is_healthy else UNHEALTHY


def show_logs(home: Home, name: str | None, lines: int, follow: bool) -> None:
    layout = home.layout()
    names = [name] if name else ["runner", *(layout.services if layout else [])]
    if name and not home.log_file(name).exists():
        raise StackError(f"there is no log of {name} in {home.log}", exit_code=2)
    for each in names:
        if len(names) > 1:
            print(f"==> {each} <==")
        print(commands.tail(home.log_file(each), lines))
    if follow:
        files = {each: home.log_file(each).open(errors="replace") for each in names if home.log_file(each).exists()}
        for file in files.values():
            file.seek(0, os.SEEK_END)
        while True:
            for each, file in files.items():
                for line in file:
                    print(f"{each}: {line}" if len(files) > 1 else line, end="", flush=True)
            time.sleep(0.2)


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m stack", description="The whole system on one machine.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("up", help="start everything, wait until it answers, print the URL")
    verbs.add_parser("down", help="stop everything, keep the data")
    verbs.add_parser("status", help="the health of every process; STATUS_FORMAT=json for machines")
    verbs.add_parser("url", help="print the URL of the stack")
    verbs.add_parser("access", help="print internal addresses and the secret for jobs outside of the stack, as JSON")
    verbs.add_parser("clean", help="stop everything and remove all data")
    verbs.add_parser("run", help="the runner itself, in the foreground")
    for verb, text in (("stop", "end one service and keep it down"), ("start", "bring a stopped service back")):
        verbs.add_parser(verb, help=text).add_argument("name")
    verbs.add_parser("scale", help="change the number of read managers, or add brokers, while the stack runs")
    promote = verbs.add_parser("promote", help="make a PostgreSQL standby the primary; the old one becomes a standby")
    promote.add_argument("name")
    promote.add_argument("--anyway", action="store_true", help="lose what only the other standby may have")
    logs = verbs.add_parser("logs", help="the last lines of one log or all")
    logs.add_argument("name", nargs="?")
    logs.add_argument("-n", "--lines", type=int, default=40)
    logs.add_argument("-f", "--follow", action="store_true")
    return parser.parse_args(argv)


def act(arguments: argparse.Namespace, config: StackConfig) -> int:
    home = Home(config.home)
    match arguments.verb:
        case "up":
            began = time.monotonic()
            url = commands.up(config)
            what = f"{', '.join(sorted(config.only))} ready" if config.only else f"myqueue answers at {url}"
            print(f"{what} ({time.monotonic() - began:.1f} s)")
        case "down":
            commands.down(home)
        case "url":
            print(commands.url(home))
        case "access":
            print(json.dumps(commands.access(home)))
        case "clean":
            commands.clean(home)
        case "status":
            return show(read_status(home))
        case "stop":
            commands.stop(home, arguments.name)
        case "start":
            commands.start(home, arguments.name)
        case "scale":
            commands.scale(config)
        case "promote":
            commands.promote(home, arguments.name, anyway=arguments.anyway)
        case "logs":
            show_logs(home, arguments.name, arguments.lines, arguments.follow)
        case "run":
            return guard.run(home)
    return 0


def interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main(argv: list[str] | None = None) -> int:
    arguments = parse(argv)
    # SIGTERM ends a command as cleanly as Ctrl-C.
    signal.signal(signal.SIGTERM, interrupt)
    try:
        check_machine()
        return act(arguments, load_config())
    except StackError as error:
        print(f"myqueue: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
