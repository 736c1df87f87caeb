"""One run of a scenario: starts all its processes, waits until everything sent is read, checks what was read."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from examples.scenarios.checking import Verdict, judge
from examples.scenarios.consumer import READING
from examples.scenarios.log_file import Line, consumer_file, read_consumed
from examples.scenarios.mapping import Scenario
from examples.scenarios.processes import LineCount, Worker, Workers

LOOK_EVERY_S = 0.1

Sent = dict[int, list[Line]]


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
class Outcome:
    verdicts: dict[int, Verdict]
    seconds: float = 0.0  # from the first producer's start to the last consumer's end
    problem: str | None = None  # why the run ended early

    @property
    def is_good(self) -> bool:
        return self.problem is None and all(verdict.is_good for verdict in self.verdicts.values())


class View(Protocol):
    """Who is shown how far the run is."""

    def show(self, phase: str, received: dict[int, int]) -> None: ...


def expected_counts(scenario: Scenario, sent: Sent) -> dict[int, int]:
    """How many messages the mapping promises to each consumer."""
    return {
        number: sum(line.topic in topics for lines in sent.values() for line in lines)
        for number, topics in scenario.consumers.items()
    }


def play(run: Run, url: str, sent: Sent, view: View) -> Outcome:
    """What was read is checked also when the run fails: a table says more than a deadline."""
    run.out.mkdir(parents=True, exist_ok=True)
    for number in run.scenario.consumers:
        consumer_file(run.out, number).unlink(missing_ok=True)  # what is found there later is of this run
    try:
        seconds = _play(run, url, view)
    except RunFailed as error:
        if not all(consumer_file(run.out, number).exists() for number in run.scenario.consumers):
            raise
        return Outcome(check(run, sent), problem=str(error))
    return Outcome(check(run, sent), seconds)


def _play(run: Run, url: str, view: View) -> float:
    """How long it took; RunFailed if a process fails or does not end in time."""
    deadline = time.monotonic() + run.timeout_s
    counts = {number: LineCount(consumer_file(run.out, number)) for number in run.scenario.consumers}

    def watch(phase: str, workers: Iterable[Worker], must_run: Iterable[Worker] = ()) -> None:
        view.show(phase, {number: lines.now() for number, lines in counts.items()})
        for worker in workers:
            if not worker.running and (worker.returncode != 0 or worker in must_run):
                raise RunFailed(f"{worker.name} ended with {worker.returncode}: {worker.words()}")
        if time.monotonic() > deadline:
            raise RunFailed(f"not finished after {run.timeout_s:g} s ({phase}); --timeout-s gives it longer")
        time.sleep(LOOK_EVERY_S)

    with Workers() as workers:
        # The deadline only ends consumers whose parent was killed.
        consumers = [
            workers.start(
                f"C{number}",
                *("consume", "--id", str(number), "--topics", *topics, "--broker", url, "--log-dir", str(run.out)),
                *("--deadline-s", str(run.timeout_s + 60)),
            )
            for number, topics in run.scenario.consumers.items()
        ]
        # They begin with what comes after their registration: all of them have one before the first line is sent.
        while not all(consumer.has_said(READING) for consumer in consumers):
            watch("consumers start", consumers, must_run=consumers)
        began = time.monotonic()
        producers = [
            workers.start(
                f"P{number}",
                *("produce", "--id", str(number), "--topics", *topics, "--broker", url, "--log-dir", str(run.logs)),
                *(("--paced",) if run.paced else ()),
            )
            for number, topics in run.scenario.producers.items()
        ]
        while any(producer.running for producer in producers):
            watch("producers send", [*consumers, *producers], must_run=consumers)
        for consumer in consumers:
            consumer.ask_to_end()  # which they do when they have read everything
        while any(consumer.running for consumer in consumers):
            watch("consumers read on", [*consumers, *producers])
        watch("all is read", [*consumers, *producers])
        return time.monotonic() - began


def check(run: Run, sent: Sent) -> dict[int, Verdict]:
    """What the consumers' files say, whoever has written them."""
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
