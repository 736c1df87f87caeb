"""python -m tests.simulation --seconds 60: as many seeds as fit, and how many that were."""

import argparse
import sys
import time

from tests.simulation.bugs import BUGS
from tests.simulation.run import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="how long to go on")
    parser.add_argument("--seed", type=int, help="this seed only, twice, to see that it replays")
    parser.add_argument("--first", type=int, default=1, help="first seed of a series")
    parser.add_argument("--steps", type=int, default=6000, help="steps before healing")
    parser.add_argument("--bug", choices=sorted(BUGS), help="plant a bug; success is to find it")
    parser.add_argument("--effects-only", action="store_true", help="do not look at disks behind messages")
    options = parser.parse_args()
    contract = not options.effects_only
    if options.seed is not None:
        first, second = (run(options.seed, options.steps, options.bug, contract=contract) for _ in range(2))
        print(first)
        print("replays" if first == second else f"DOES NOT REPLAY: {second}")
        return 0 if first == second and not first.violations else 1
    started = time.monotonic()
    seed = options.first
    totals: dict[str, int] = {}
    while time.monotonic() - started < options.seconds:
        result = run(seed, options.steps, options.bug, contract=contract)
        for name, value in result.stats.items():
            totals[name] = totals.get(name, 0) + value
        if result.violations:
            print(f"seed {seed}: {result.violations[0]}")
            print(f"found after {seed - options.first + 1} seeds, {time.monotonic() - started:.1f} s")
            return 0 if options.bug else 1
        seed += 1
    elapsed = time.monotonic() - started
    print(f"{seed - options.first} seeds in {elapsed:.0f} s, no violation; {totals}")
    return 1 if options.bug else 0


if __name__ == "__main__":
    sys.exit(main())
