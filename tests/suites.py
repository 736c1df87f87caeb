"""Runs the test suites side by side, the longest first, each in a pytest of its own; says when each starts and ends.

Suites with a stack of their own wait more than they compute, so there are more of them at a time than cores.
"""

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

AT_A_TIME = 3
BALANCER = "tests/integration/test_load_balancer*.py"
SUITES: dict[str, Sequence[str]] = {
    "fault": ["tests/fault"],
    "system": ["tests/system"],
    "spark": ["tests/spark"],
    "integration": ["tests/integration", f"--ignore-glob={BALANCER}"],
    "unit": ["tests/unit"],
    "load balancer": sorted(map(str, Path().glob(BALANCER))),
    "contract": ["tests/contract"],
    "simulation": ["tests/simulation"],
}
_printing = threading.Lock()


def say(text: str) -> None:
    with _printing:
        print(text, flush=True)


def passes(name: str, options: Sequence[str]) -> bool:
    """The whole output follows only when a test failed."""
    say(f"{name}: started")
    started_s = time.monotonic()
    with tempfile.TemporaryFile("w+") as output:
        command = [sys.executable, "-m", "pytest", "-m", "not slow", *SUITES[name], *options]
        done = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False)
        output.seek(0)
        lines = output.read().splitlines() or ["no output"]
    if done.returncode != 0:
        say("\n".join(lines))
    result = "passed" if done.returncode == 0 else "FAILED"
    say(f"{name}: {result} in {time.monotonic() - started_s:.0f} s; {lines[-1].strip('= ')}")
    return done.returncode == 0


def main(options: Sequence[str]) -> int:
    started_s = time.monotonic()
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        results = list(pool.map(lambda name: passes(name, options), SUITES))
    failed = [name for name, is_good in zip(SUITES, results, strict=True) if not is_good]
    say(f"all suites: {'FAILED: ' + ', '.join(failed) if failed else 'passed'} in {time.monotonic() - started_s:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
