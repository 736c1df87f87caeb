"""Runs the test suites side by side, the longest first, each in a pytest of its own; says when each starts and ends.

Suites with a stack of their own wait more than they compute, so there are more of them at a time than cores. With
`--slow`: the slow tests, which kill, pause and starve processes and have deadlines, two suites at a time. Other words
are options of pytest, but for `--at-a-time=N`.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from tests.port_reservations import FOLDER

BALANCER = "tests/integration/test_load_balancer*.py"
OFTEN: dict[str, Sequence[str]] = {
    "system": ["tests/system"],
    "browser": ["tests/browser"],
    "integration": ["tests/integration", f"--ignore-glob={BALANCER}"],
    "fault": ["tests/fault"],
    "spark": ["tests/spark"],
    "unit": ["-n", "4", "--dist", "worksteal", "tests/unit"],  # the last long one; half of it waits
    "load balancer": ["-n", "3", "--dist", "loadfile", *sorted(map(str, Path().glob(BALANCER)))],  # mostly waits
    "contract": ["tests/contract"],
    "simulation": ["tests/simulation"],
}
SLOW: dict[str, Sequence[str]] = {
    "fault": ["tests/fault"],
    "integration": ["tests/integration"],
    "others": ["tests", "--ignore=tests/fault", "--ignore=tests/integration", "--ignore=tests/compose"],
}


class Selection(NamedTuple):
    marks: str
    suites: dict[str, Sequence[str]]
    at_a_time: int


SELECTIONS = {False: Selection("not slow and not exhaustive", OFTEN, 3), True: Selection("slow", SLOW, 2)}


class Runs:
    def __init__(self, selection: Selection, options: Sequence[str], ports: str) -> None:
        self._selection = selection
        self._options = options
        self._ports = ports
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stopping = False

    def passes(self, name: str) -> bool:
        """Prints the whole output when a test failed, else the tests that were skipped, with the reasons."""
        if self._stopping:
            return False
        say(f"{name}: started")
        started_s = time.monotonic()
        marks, suites, _ = self._selection
        command = [sys.executable, "-m", "pytest", "-m", marks, *suites[name], *self._options]
        environment = {**os.environ, FOLDER: self._ports}
        with tempfile.TemporaryFile("w+", errors="replace") as output:
            with subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment) as process:
                self._running.add(process)
            self._running.discard(process)
            output.seek(0)
            text = output.read().strip()
        is_good = process.returncode == 0
        shown = text.splitlines() if not is_good else [line for line in text.splitlines() if line.startswith("SKIPPED")]
        if shown:
            say("\n".join(shown))
        last = text.rpartition("\n")[2].strip("= ")
        say(f"{name}: {'passed' if is_good else 'FAILED'} after {time.monotonic() - started_s:.0f} s: {last}")
        return is_good

    def stop(self) -> None:
        """As Ctrl-C does: each suite takes its stacks down."""
        self._stopping = True
        for process in list(self._running):
            process.send_signal(signal.SIGINT)


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main(words: Sequence[str]) -> int:
    started_s = time.monotonic()
    parser = argparse.ArgumentParser(prog="python -m tests.suites", description=__doc__, allow_abbrev=False)
    parser.add_argument("--slow", action="store_true")
    parser.add_argument("--at-a-time", type=int)
    given, options = parser.parse_known_args(words)
    selection = SELECTIONS[given.slow]
    with tempfile.TemporaryDirectory() as ports, ThreadPoolExecutor(given.at_a_time or selection.at_a_time) as pool:
        runs = Runs(selection, options, ports)
        try:
            results = list(pool.map(runs.passes, selection.suites))
        except KeyboardInterrupt:
            runs.stop()
            return 130
    failed = [name for name, is_good in zip(selection.suites, results, strict=True) if not is_good]
    result = f"FAILED: {', '.join(failed)};" if failed else "passed"
    say(f"all suites: {result} after {time.monotonic() - started_s:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, interrupt)
    sys.exit(main(sys.argv[1:]))
