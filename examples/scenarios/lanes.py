"""How a log is replayed: its lanes go at the same time, each in order; paced, each line waits for its time. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from examples.scenarios.log_file import Line

_DAY_S = 24 * 3600


@dataclass(frozen=True, slots=True)
class Step:
    due_s: int  # after the first line of the log
    line: Line


def lanes_of(lines: Sequence[Line]) -> dict[str, list[Step]]:
    lanes: dict[str, list[Step]] = {}
    for due_s, line in zip(due_times([line.second for line in lines]), lines, strict=True):
        lanes.setdefault(line.lane, []).append(Step(due_s, line))
    return lanes


def due_times(seconds: Iterable[int]) -> list[int]:
    """When each line is due, counted from the first.

    A log says the time of day, not the day: from one line to the next goes the shorter way around the clock, so that
    23:59:59 to 00:00:01 are two seconds, and a line that was logged a moment late does not wait for tomorrow.
    """
    seconds = list(seconds)
    due = [0] if seconds else []
    for before, after in pairwise(seconds):
        due.append(due[-1] + (after - before + _DAY_S // 2) % _DAY_S - _DAY_S // 2)
    return due
