"""One run of the pipeline: start the workers, wait until all invoices are filtered, read both sides back."""

import json
import secrets
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from examples.invoices import ALL_TOPIC, INVALID_TOPIC, VALID_TOPIC
from examples.invoices.audit import Audit, Verdict, audit
from examples.invoices.filter import run_of
from examples.invoices.sample_invoices import Made, make_invoices
from examples.processes import Worker, Workers
from myqueue import Admin, Consumer, TopicExists

PROGRESS_INTERVAL_S = 0.5
STOP_TIMEOUT_S = 40.0  # longer than a filter tries to send its last invoice


FILTER = "examples.invoices.filter"
GENERATOR = "examples.invoices.generator"


class PipelineFailed(Exception):
    pass


@dataclass(frozen=True, slots=True)
class Plan:
    url: str
    generators: int
    filters: int
    invoices: int
    seed: int
    timeout_s: float
    run: str

    def shares(self) -> list[int]:
        """How many invoices each generator makes."""
        share, rest = divmod(self.invoices, self.generators)
        return [share + (number < rest) for number in range(self.generators)]

    def names(self) -> list[tuple[str, str]]:
        """Name and id of each generator."""
        return [(f"gen{number}", str(1000 + number)) for number in range(1, self.generators + 1)]


def new_run_id() -> str:
    return time.strftime("%Y%m%d-%H%M%S-", time.gmtime()) + secrets.token_hex(2)


@dataclass(frozen=True, slots=True)
class Counts:
    """Progress of the run by the sizes of the queue's consumers."""

    generated: int
    filtered: int
    valid: int
    invalid: int


@dataclass(frozen=True, slots=True)
class PipelineOutcome:
    audit: Audit
    pipeline_s: float
    read_back_s: float
    worker_output: list[str]


def run_pipeline(
    plan: Plan, show_counts: Callable[[Counts], None], on_read_back: Callable[[], None]
) -> PipelineOutcome:
    with Admin(plan.url) as admin:
        for topic in (ALL_TOPIC, VALID_TOPIC, INVALID_TOPIC):
            with suppress(TopicExists):
                admin.create_topic(topic)
    with ExitStack() as stack:
        # Registered before the first invoice is sent, so that they begin where this run begins. Only the size of the
        # first two is read: they take no partitions from the filters.
        def consumer(topic: str, name: str) -> Consumer:
            return stack.enter_context(Consumer(plan.url, topic=topic, name=f"{name}-{plan.run}", start="latest"))

        group = consumer(ALL_TOPIC, "filters")
        everything = consumer(ALL_TOPIC, "audit")
        valid, invalid = consumer(VALID_TOPIC, "audit"), consumer(INVALID_TOPIC, "audit")

        def read_counts() -> Counts:
            generated = everything.size()
            return Counts(generated, max(0, generated - group.size()), valid.size(), invalid.size())

        started = time.monotonic()
        worker_output = _run_workers(plan, group, lambda: show_counts(read_counts()))
        finished = time.monotonic()
        valid_verdicts = _read_back(plan, valid, on_read_back)
        invalid_verdicts = _read_back(plan, invalid, on_read_back)
        result = audit(_sent_invoices(plan), valid_verdicts, invalid_verdicts)
        return PipelineOutcome(result, finished - started, time.monotonic() - finished, worker_output)


def _run_workers(plan: Plan, group: Consumer, show_progress: Callable[[], None]) -> list[str]:
    deadline = time.monotonic() + plan.timeout_s
    with Workers(STOP_TIMEOUT_S) as workers:
        # The idle timeout only ends filters whose parent was killed.
        common = ("--address", plan.url, "--run", plan.run)
        filters = [
            workers.start(name, FILTER, "--name", name, *common, "--group", group.name, "--idle-timeout", "60")
            for name in (f"filter{number}" for number in range(1, plan.filters + 1))
        ]
        generators = [
            workers.start(
                *(name, GENERATOR, "--name", name, *common),
                *("--id", identity, "--count", str(share), "--seed", str(plan.seed)),
            )
            for (name, identity), share in zip(plan.names(), plan.shares(), strict=True)
        ]
        while any(generator.running for generator in generators) or group.size() > 0:
            show_progress()
            _check(filters, generators)
            if time.monotonic() > deadline:
                raise PipelineFailed(f"not finished after {plan.timeout_s:.0f} s")
            time.sleep(PROGRESS_INTERVAL_S)
        # Every invoice is sent on.
        for worker in filters:
            worker.terminate()
        everyone = (*generators, *filters)
        for worker in everyone:
            if not worker.wait(STOP_TIMEOUT_S):
                raise PipelineFailed(f"{worker.name} did not end in {STOP_TIMEOUT_S:.0f} s")
            # A filter that was still starting has no handler for the signal yet, and no invoice either.
            if worker.returncode not in (0, -signal.SIGTERM):
                raise PipelineFailed(f"{worker.name} ended with {worker.returncode}: {worker.output()}")
        show_progress()
        return [worker.output() for worker in everyone if worker.output()]


def _check(filters: list[Worker], generators: list[Worker]) -> None:
    ended = [worker for worker in filters if not worker.running]
    ended += [worker for worker in generators if worker.returncode not in (None, 0)]
    if ended:
        worker = ended[0]
        worker.wait(STOP_TIMEOUT_S)  # for the rest of its output
        raise PipelineFailed(f"{worker.name} ended with {worker.returncode}: {worker.output()}")


def _read_back(plan: Plan, consumer: Consumer, on_read_back: Callable[[], None]) -> list[Verdict]:
    """All verdicts of this run in a topic."""
    verdicts = []
    for message in iter(consumer.get_message, None):
        verdict = json.loads(message.value)
        if run_of(verdict["invoice"]) == plan.run:
            verdicts.append(verdict)
            on_read_back()
    return verdicts


def _sent_invoices(plan: Plan) -> list[Made]:
    """Made again from their seed, so that the proof does not depend on the queue."""
    return [
        made
        for (name, identity), share in zip(plan.names(), plan.shares(), strict=True)
        for made in make_invoices(name, identity, share, plan.seed, plan.run)
    ]
