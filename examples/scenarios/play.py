"""One run of a scenario: start its processes, wait until everything sent is read, check the consumers' files."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from examples.processes import Worker, Workers
from examples.scenarios.checking import ConsumerCheck, judge
from examples.scenarios.consumer import READING
from examples.scenarios.log_file import Line, consumer_file, read_consumed
from examples.scenarios.mapping import Scenario

PROGRESS_INTERVAL_S = 0.1
STOP_TIMEOUT_S = 5.0
MODULE = "examples.scenarios"

Sent = dict[int, list[Line]]
ShowProgress = Callable[[str, dict[int, int]], None]  # the phase, and lines by consumer


class RunFailed(Exception):
    pass


@dataclass(frozen=True, slots=True)
class Run:
    scenario: Scenario
    logs: Path  # producer_<id>.txt
    out: Path  # consumer_<id>.txt
    paced: bool
    timeout_s: float


@dataclass(frozen=True, slots=True)
class ScenarioOutcome:
    verdicts: dict[int, ConsumerCheck]
    seconds: float = 0.0  # from the first producer's start to the last consumer's end
    problem: str | None = None  # why the run ended early

    @property
    def is_good(self) -> bool:
        return self.problem is None and all(verdict.is_good for verdict in self.verdicts.values())


class LineCount:
    """Of a file that grows, or is not there yet; each byte is read once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._lines = 0

    def now(self) -> int:
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                data = file.read()
        except FileNotFoundError:
            return 0
        self._read += len(data)
        self._lines += data.count(b"\n")
        return self._lines


def expected_counts(scenario: Scenario, sent: Sent) -> dict[int, int]:
    """Messages that each consumer must read, by the mapping."""
    return {
        number: sum(line.topic in topics for lines in sent.values() for line in lines)
        for number, topics in scenario.consumers.items()
    }


def play(run: Run, url: str, sent: Sent, show: ShowProgress) -> ScenarioOutcome:
    """The files are checked also when the run fails: the table explains the failure."""
    run.out.mkdir(parents=True, exist_ok=True)
    for number in run.scenario.consumers:
        consumer_file(run.out, number).unlink(missing_ok=True)  # of an earlier run
    try:
        seconds = _run_workers(run, url, show)
    except RunFailed as error:
        if not all(consumer_file(run.out, number).exists() for number in run.scenario.consumers):
            raise
        return ScenarioOutcome(check(run, sent), problem=str(error))
    return ScenarioOutcome(check(run, sent), seconds)


def _run_workers(run: Run, url: str, show: ShowProgress) -> float:
    """Seconds it took; RunFailed if a process fails or does not end in time."""
    deadline = time.monotonic() + run.timeout_s
    counts = {number: LineCount(consumer_file(run.out, number)) for number in run.scenario.consumers}

    def watch(phase: str, workers: Iterable[Worker], must_run: Iterable[Worker] = ()) -> None:
        show(phase, {number: lines.now() for number, lines in counts.items()})
        for worker in workers:
            if not worker.running and (worker.returncode != 0 or worker in must_run):
                raise RunFailed(f"{worker.name} ended with {worker.returncode}: {worker.output()}")
        if time.monotonic() > deadline:
            raise RunFailed(f"not finished after {run.timeout_s:g} s ({phase}); --timeout-s gives it longer")
        time.sleep(PROGRESS_INTERVAL_S)

    with Workers(STOP_TIMEOUT_S) as workers:
        # The deadline only ends consumers whose parent was killed.
        consumers = [
            workers.start(
                f"C{number}",
                MODULE,
                *("consume", "--id", str(number), "--topics", *topics, "--broker", url, "--log-dir", str(run.out)),
                *("--deadline-s", str(run.timeout_s + 60)),
            )
            for number, topics in run.scenario.consumers.items()
        ]
        # Consumers begin at their registration: all of them are registered before the first line is sent.
        while not all(consumer.has_printed(READING) for consumer in consumers):
            watch("consumers start", consumers, must_run=consumers)
        began = time.monotonic()
        producers = [
            workers.start(
                f"P{number}",
                MODULE,
                *("produce", "--id", str(number), "--topics", *topics, "--broker", url, "--log-dir", str(run.logs)),
                *(("--paced",) if run.paced else ()),
            )
            for number, topics in run.scenario.producers.items()
        ]
        while any(producer.running for producer in producers):
            watch("producers send", [*consumers, *producers], must_run=consumers)
        for consumer in consumers:
            consumer.terminate()  # they end when they have read everything
        while any(consumer.running for consumer in consumers):
            watch("consumers read on", [*consumers, *producers])
        watch("all is read", [*consumers, *producers])
        return time.monotonic() - began


def check(run: Run, sent: Sent) -> dict[int, ConsumerCheck]:
    """Judge the consumers' files, of this run or of an earlier one."""
    verdicts = {}
    for number, topics in run.scenario.consumers.items():
        path = consumer_file(run.out, number)
        try:
            received = read_consumed(path)
        except OSError as error:
            raise RunFailed(f"{path}: {error.strerror}") from None
        except ValueError as error:
            raise RunFailed(str(error)) from None
        verdicts[number] = judge(sent, topics, received)
    return verdicts
