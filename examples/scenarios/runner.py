"""Runs scenarios: starts all their processes, waits, checks every consumer's file against what was sent.

    examples/2P2C --broker HOST:PORT
    examples/5P3C --storage memory

The exit code is 0 only if every consumer has read everything once and in order.
"""

import argparse
import os
import signal
import sys
from pathlib import Path

from rich.console import Console

from examples.progress import new_console
from examples.scenarios.cluster import STORAGES, ClusterChoice, NoCluster, add_broker_option, choose_cluster, cluster
from examples.scenarios.consumer import seconds
from examples.scenarios.log_file import IncompatibleLog
from examples.scenarios.mapping import BadScenario, load_scenario
from examples.scenarios.play import Run, RunFailed, ScenarioOutcome, Sent, check, expected_counts, play
from examples.scenarios.report import ScenarioProgress, print_start, print_verdicts
from myqueue import MyQueueError


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scenario", description=__doc__.split("\n")[0])
    parser.add_argument("scenario", nargs="+", help="2P2C, 5P3C, or a folder with a mapping.txt and its log files")
    add_broker_option(parser)
    parser.add_argument(
        "--storage",
        choices=STORAGES,
        help="start a stack for this run alone, with messages there, and remove it afterwards (or MYQUEUE_STORAGE)",
    )
    parser.add_argument("--log-dir", type=Path, metavar="DIR", help="producer_<id>.txt (default: beside the mapping)")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="for consumer_<id>.txt, in a folder for each of several (default: beside the mapping)",
    )
    parser.add_argument("--paced", action="store_true", help="wait between lines as their ts says")
    parser.add_argument("--timeout-s", type=seconds, default=120.0, metavar="S", help="give up after S (default 120)")
    parser.add_argument("--check", action="store_true", help="start nothing, check the consumers' files that are there")
    given = parser.parse_args(arguments)
    if len(given.scenario) > 1 and given.log_dir is not None:
        parser.error("--log-dir goes with one scenario")
    return given


def _runs(given: argparse.Namespace) -> list[tuple[Run, Sent]]:
    """With the lines that they send: a bad log file is found before anything starts."""
    runs = []
    for name in given.scenario:
        scenario = load_scenario(name)
        logs = given.log_dir or scenario.folder
        out = given.out or scenario.folder
        if given.out is not None and len(given.scenario) > 1:
            out = given.out / scenario.name
        # Made absolute: the processes run in another current folder.
        runs.append((Run(scenario, logs.resolve(), out.resolve(), given.paced, given.timeout_s), scenario.sent(logs)))
    return runs


def _play_all(console: Console, runs: list[tuple[Run, Sent]], choice: ClusterChoice) -> bool:
    if choice.storage is not None:
        console.print(f"starting a stack for this run, storage {choice.storage} …")
    good = True
    with cluster(choice) as url:
        for run, sent in runs:
            print_start(console, run.scenario, url)
            progress = ScenarioProgress(console, expected_counts(run.scenario, sent))
            with progress.bars:
                outcome = play(run, url, sent, progress.show)
            good = _print_outcome(console, run, outcome) and good
    return good


def _check_all(console: Console, runs: list[tuple[Run, Sent]]) -> bool:
    good = True
    for run, sent in runs:
        good = _print_outcome(console, run, ScenarioOutcome(check(run, sent))) and good
    return good


def _print_outcome(console: Console, run: Run, outcome: ScenarioOutcome) -> bool:
    name = run.scenario.name
    print_verdicts(console, run.scenario, outcome.verdicts)
    took = f" ({outcome.seconds:.1f} s)" if outcome.seconds else ""
    if outcome.is_good:
        console.print(f"  [bold green]✓ {name}:[/] complete, nothing twice, every lane in order{took}")
    else:
        what = "the consumers have not read what was sent" if outcome.problem is None else "the run failed"
        console.print(f"  [bold red]✗ {name}:[/] {what}{took}")
    if outcome.problem is not None:
        console.print(f"  {outcome.problem}", style="red", markup=False, soft_wrap=True)
    console.print(f"  consumers' files: {run.out}", style="dim", soft_wrap=True)
    return outcome.is_good


def main(arguments: list[str] | None = None) -> int:
    given = _parse(arguments)
    console = new_console()
    errors = Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        runs = _runs(given)
        if given.check:
            return 0 if _check_all(console, runs) else 1
        choice = choose_cluster(given.broker, given.storage)
        if choice.url is not None and os.environ.get("MYQUEUE_STORAGE"):
            console.print("MYQUEUE_STORAGE is left aside: the cluster is named, and has its storage already")
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds the blocks that end processes and stack
        return 0 if _play_all(console, runs, choice) else 1
    except (BadScenario, IncompatibleLog, NoCluster) as error:
        errors.print(str(error), style="red", markup=False)
        return 2
    except OSError as error:
        errors.print(f"{error.filename}: {error.strerror}", style="red", markup=False)
        return 2
    except (RunFailed, MyQueueError) as error:
        errors.print(str(error), style="red", markup=False)
        return 1
    except KeyboardInterrupt:
        errors.print("stopped")
        return 130


if __name__ == "__main__":
    sys.exit(main())
