"""`python -m benchmarks`: this system and its peers on this machine, side by side."""

import argparse
import json
import signal
import sys
from dataclasses import replace
from pathlib import Path
from types import FrameType

from rich.console import Console

from benchmarks.measurement import FULL, QUICK, Pace
from benchmarks.plot import svg
from benchmarks.report import Report, report_from_json
from benchmarks.session import NotEnoughRoom, run
from benchmarks.table import publish, show
from stack.config import CHECKOUT


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few seconds for each measurement, a few minutes in all")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="TEXT",
        help="only measurements with this in group.system.method.size, such as nats, latency.kafka"
        " or myqueue.send_many.100; repeatable",
    )
    parser.add_argument("--seconds", type=float, help=f"of one measurement instead of {FULL.seconds:g}")
    parser.add_argument("--rounds", type=int, help=f"of the measurements in turn with Kafka's instead of {FULL.rounds}")
    parser.add_argument(
        "--output", type=Path, default=CHECKOUT / ".bench", help="folder for results.json and benchmark.svg"
    )
    parser.add_argument("--folder", type=Path, help="where all systems keep their data for the time of the run")
    parser.add_argument("--publish", action="store_true", help="bring the figures into docs/")
    parser.add_argument("--results", type=Path, help="show (and publish) this results.json instead of measuring")
    return parser.parse_args(argv)


def pace_of(arguments: argparse.Namespace) -> Pace:
    pace = QUICK if arguments.quick else FULL
    return replace(pace, seconds=arguments.seconds or pace.seconds, rounds=arguments.rounds or pace.rounds)


def interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def save(report: Report, folder: Path) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    results, picture = folder / "results.json", folder / "benchmark.svg"
    results.write_text(json.dumps(report.as_json(), indent=1) + "\n")
    picture.write_text(svg(report))
    return [results, picture]


def main(argv: list[str] | None = None) -> int:
    arguments = parse(argv)
    console = Console()
    if not console.is_terminal:
        console = Console(width=160)  # a log file has no width
    signal.signal(signal.SIGTERM, interrupt)
    written: list[Path] = []
    try:
        if arguments.results is not None:
            report = report_from_json(json.loads(arguments.results.read_text()))
        else:
            report = run(pace_of(arguments), arguments.only, arguments.folder, console)
            written += save(report, arguments.output)
    except KeyboardInterrupt:
        return 130
    except NotEnoughRoom as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2
    show(report, console)
    if arguments.publish:
        written += publish(report)
    for path in written:
        console.print(f"wrote {path}", highlight=False, soft_wrap=True)
    for result in report.failed:
        console.print(f"[red]failed[/red] {result.key}: {result.error}", highlight=False, soft_wrap=True)
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
