"""Replays `producer_<id>.txt`: lanes at the same time, the lines of each lane in order.

    examples/run-producer --id 1 --topics T1 T2 T3 --broker HOST:PORT --log-dir DIR

Tab-separated lines of ts, msg, parallel (the lane), topic. Lines of other topics than the given ones are left out. The
whole file is checked first: if one line has another shape, nothing is sent.
"""

import argparse
import signal
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from examples.scenarios.cluster import NoCluster, add_broker_option, found_url, warn_if_not_ready
from examples.scenarios.log_file import IncompatibleLog, Line, producer_file, read_log
from myqueue import Deliveries, Delivery, MyQueueError, Producer
from myqueue.protocol.limits import topic_name_problem

_DAY_S = 24 * 3600


def number(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 9:
        raise argparse.ArgumentTypeError("must be a number from 0")
    return int(text)


def topic_name(text: str) -> str:
    if (problem := topic_name_problem(text)) is not None:
        raise argparse.ArgumentTypeError(problem)
    return text


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


class Replay:
    """One run of a producer. The first message that fails ends it."""

    def __init__(self, name: str, paced: bool) -> None:
        self.acknowledged = 0
        self._name = name
        self._paced = paced
        self._error: MyQueueError | None = None
        self._over = threading.Event()
        self._lock = threading.Lock()

    def run(self, url: str, topics: list[str], lines: list[Line]) -> None:
        """Returns when every line is stored."""
        lanes = lanes_of(lines)
        with ExitStack() as stack:
            producers = {
                topic: stack.enter_context(Producer(url, topic=topic, name=self._name, on_delivery=self._on_delivery))
                for topic in dict.fromkeys(topics)
            }
            with ThreadPoolExecutor(max(1, len(lanes))) as pool:
                began = time.monotonic()
                ended = [pool.submit(self._replay_lane, steps, producers, began) for steps in lanes.values()]
                try:
                    for lane in ended:
                        lane.result()
                except BaseException:
                    self._over.set()  # the other lanes too
                    raise
        if self._error is not None:
            raise self._error

    def _replay_lane(self, steps: list[Step], producers: dict[str, Producer], began: float) -> None:
        for step in steps:
            wait_s = began + step.due_s - time.monotonic() if self._paced else 0.0
            if self._over.wait(wait_s) if wait_s > 0 else self._over.is_set():
                return
            # One key per lane: its lines of a topic are in one partition and stay in order.
            producers[step.line.topic].send(step.line.message, key=step.line.lane)

    def _on_delivery(self, delivery: Delivery | Deliveries) -> None:
        error = delivery.exception()
        with self._lock:
            if error is None:
                self.acknowledged += 1
            elif self._error is None:
                self._error = error
        if error is not None:
            self._over.set()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="run-producer", description=__doc__.split("\n")[0])
    parser.add_argument("--id", type=number, required=True, help="of the producer, and in the name of its log file")
    parser.add_argument(
        "--topics", type=topic_name, nargs="+", required=True, help="lines of other topics are left out"
    )
    add_broker_option(parser)
    parser.add_argument(
        "--log-dir",
        "--log_loc",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="where producer_<id>.txt is (default: .)",
    )
    parser.add_argument(
        "--paced", action="store_true", help="wait between lines as ts says (default: as fast as possible)"
    )
    given = parser.parse_args(arguments)
    me, path = f"P{given.id}", producer_file(given.log_dir, given.id)
    try:
        every = read_log(path)
        url = found_url(given.broker)
    except (IncompatibleLog, NoCluster) as error:
        print(f"{me}: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"{me}: log file: {path}: {error.strerror}; --log-dir says where it is", file=sys.stderr)
        return 2
    lines = [line for line in every if line.topic in given.topics]
    replay = Replay(f"producer-{given.id}", given.paced)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM ends it as cleanly as Ctrl-C
    began = time.monotonic()
    try:
        warn_if_not_ready(me, url)
        replay.run(url, given.topics, lines)
    except (MyQueueError, TimeoutError) as error:
        print(f"{me}: {url}: {error}; {replay.acknowledged} of {len(lines)} lines were stored", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{me}: stopped; {replay.acknowledged} of {len(lines)} lines were stored", file=sys.stderr)
        return 130
    left_out = f", {len(every) - len(lines)} of other topics left out" if len(every) > len(lines) else ""
    lanes = len({line.lane for line in lines})
    print(f"{me}: {len(lines)} lines of {lanes} lanes sent in {time.monotonic() - began:.1f} s{left_out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
