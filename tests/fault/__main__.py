"""python -m tests.fault --rounds 10: faults of write managers and of the PostgreSQL primary, in the order of a seed.

Each round has clients at work and is judged by the history checker; the histories of a failed run stay.
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.cluster import running_cluster
from tests.fault.fault_rounds import strike_primary, strike_write_manager, survive

# A standby is promoted at most once an hour without a person: one erasure.
FAULTS = [
    *(("write manager", fault) for fault in ("kill", "kill", "pause", "pause", "term")),
    *(("primary", fault) for fault in ("kill", "kill", "pause", "pause", "erase")),
]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fault", description=__doc__)
    parser.add_argument("--rounds", type=int, default=len(FAULTS), help="how many faults")
    parser.add_argument("--seed", type=int, default=1, help="of their order")
    options = parser.parse_args()
    order = random.Random(options.seed)
    again = [each for each in FAULTS if each[1] != "erase"]
    faults = order.sample(FAULTS, min(options.rounds, len(FAULTS)))
    faults += order.choices(again, k=options.rounds - len(faults))
    folder = Path(tempfile.mkdtemp(prefix="myqueue-faults-"))
    print(f"seed {options.seed}; histories and logs in {folder}", flush=True)
    started_s = time.monotonic()
    with running_cluster(folder, database_hang_s=None) as cluster:
        for number, (victim, fault) in enumerate(faults, 1):
            print(f"round {number}: {fault} the {victim}", flush=True)
            strike = strike_write_manager(fault) if victim == "write manager" else strike_primary(fault)
            survive(cluster, folder / f"history-{number}.jsonl", fault, strike)
            cluster.heal()
            cluster.delete_topics()
            cluster.await_placement()
    print(f"{len(faults)} rounds in {time.monotonic() - started_s:.0f} s, no violation")
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
