"""Makes the log files of a scenario from its mapping: the same ones for the same seed, no message twice.

python -m examples.scenarios generate 5P3C --out DIR
"""

import argparse
import random
import sys
from pathlib import Path

from examples.scenarios.log_file import producer_file
from examples.scenarios.mapping import BadScenario, Scenario, Topics, load_scenario

LANES = 3
LINES_PER_LANE_AND_TOPIC = 25
BEGIN_S = 23 * 3600 + 59 * 60 + 55  # so that a paced replay passes midnight
LENGTH_S = 10
EVENTS = (
    ("INFO", "request answered"),
    ("INFO", "user signed in"),
    ("INFO", "cache filled"),
    ("WARN", "answer took too long"),
    ("WARN", "queue is filling up"),
    ("ERROR", "connection lost"),
)


def log_text(producer: int, topics: Topics, seed: int) -> str:
    """Lanes and topics in random order, with rising times."""
    chance = random.Random(f"{seed} P{producer}")
    lanes = [f"P{producer}-{lane}" for lane in range(1, LANES + 1)]
    turns = [(lane, topic) for lane in lanes for topic in topics] * LINES_PER_LANE_AND_TOPIC
    chance.shuffle(turns)
    lines = []
    for number, (lane, topic) in enumerate(turns):
        second = (BEGIN_S + number * LENGTH_S // len(turns)) % (24 * 3600)
        level, event = chance.choice(EVENTS)
        clock = f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"
        lines.append(f"{clock}\t{level} {event} (P{producer} #{number + 1})\t{lane}\t{topic}\n")
    return "".join(lines)


def write_logs(scenario: Scenario, folder: Path, seed: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, topics in scenario.producers.items():
        producer_file(folder, number).write_text(log_text(number, topics, seed))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.scenarios generate", description=__doc__.split("\n")[0])
    parser.add_argument("scenario", help="2P2C, 5P3C, or a folder with a mapping.txt")
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: beside the mapping")
    parser.add_argument("--seed", type=int, default=1, help="default 1")
    given = parser.parse_args(arguments)
    try:
        scenario = load_scenario(given.scenario)
        folder = given.out or scenario.folder
        write_logs(scenario, folder, given.seed)
    except (BadScenario, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{len(scenario.producers)} log files in {folder}")
    return 0
