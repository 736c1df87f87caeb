"""One run of the pipeline: start the workers, wait until all invoices are filtered, read both sides back."""

import json
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from examples.invoices import ALL_TOPIC, INVALID_TOPIC, VALID_TOPIC
from examples.invoices.audit import Audit, Verdict, audit
from examples.invoices.figures import Figures
from examples.invoices.filter import run_of
from examples.invoices.outage import LocalBrokers, Outage
from examples.invoices.sample_invoices import Made, make_invoices
from examples.processes import Worker, Workers
from myqueue import Admin, Consumer, TopicExists

PROGRESS_INTERVAL_S = 0.1
STOP_TIMEOUT_S = 40.0  # longer than a filter tries to send its last invoice
KILL_AT = 0.35  # of the invoices
SHOWN_READ_BACK = 500  # invoices between two looks at the progress

TOPICS = (ALL_TOPIC, VALID_TOPIC, INVALID_TOPIC)
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
    rate: float  # invoices a second, of all generators together; 0: as fast as they can
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

    def filter_names(self) -> list[str]:
        return [f"filter{number}" for number in range(1, self.filters + 1)]


def new_run_id() -> str:
    return time.strftime("%Y%m%d-%H%M%S-", time.gmtime()) + secrets.token_hex(2)


@dataclass(frozen=True, slots=True)
class PipelineOutcome:
    audit: Audit
    figures: Figures
    pipeline_s: float
    read_back_s: float
    worker_output: list[str]


def run_pipeline(
    plan: Plan, figures: Figures, brokers: LocalBrokers | None, show_progress: Callable[[], None]
) -> PipelineOutcome:
    """`brokers`: one of them is killed in the middle."""
    with Admin(plan.url) as admin:
        for topic in TOPICS:
            with suppress(TopicExists):
                admin.create_topic(topic)
    with ExitStack() as stack:
        # Registered before the first invoice is sent, so that they begin where this run begins. Only the size of the
        # first is read: it takes no partitions from the filters.
        def consumer(topic: str, name: str) -> Consumer:
            return stack.enter_context(Consumer(plan.url, topic=topic, name=f"{name}-{plan.run}", start="latest"))

        group = consumer(ALL_TOPIC, "filters")
        valid, invalid = consumer(VALID_TOPIC, "audit"), consumer(INVALID_TOPIC, "audit")
        outage = None if brokers is None else Outage(plan.url, TOPICS, brokers, figures)
        started = time.monotonic()
        try:
            worker_output = _run_workers(plan, group, figures, outage, show_progress)
        finally:
            if outage is not None:
                outage.stop()
        finished = time.monotonic()
        verdicts = (_read_back(plan, side, figures, show_progress) for side in (valid, invalid))
        result = audit(_sent_invoices(plan), *verdicts)
        return PipelineOutcome(result, figures, finished - started, time.monotonic() - finished, worker_output)


def _run_workers(
    plan: Plan, group: Consumer, figures: Figures, outage: Outage | None, show_progress: Callable[[], None]
) -> list[str]:
    deadline = time.monotonic() + plan.timeout_s
    with Workers(STOP_TIMEOUT_S) as workers:
        # The idle timeout only ends filters whose parent was killed.
        common = ("--address", plan.url, "--run", plan.run, "--report")
        filters = [
            workers.start(
                *(name, FILTER, "--name", name, *common, "--group", group.name, "--idle-timeout", "60"),
                on_report=figures.report,
            )
            for name in plan.filter_names()
        ]
        generators = [
            workers.start(
                *(name, GENERATOR, "--name", name, *common, "--id", identity, "--count", str(share)),
                *("--rate", str(plan.rate / plan.generators), "--seed", str(plan.seed)),
                on_report=figures.report,
            )
            for (name, identity), share in zip(plan.names(), plan.shares(), strict=True)
        ]

        def watch() -> None:
            figures.sample()
            show_progress()
            _check(filters, generators)
            if time.monotonic() > deadline:
                raise PipelineFailed(f"not finished after {plan.timeout_s:.0f} s")
            time.sleep(PROGRESS_INTERVAL_S)

        def filtered() -> bool:
            """By the filters' own count first, which costs nothing; some invoices may count twice there."""
            return figures.filtered >= plan.invoices and group.size() == 0

        while any(generator.running for generator in generators) or not filtered():
            if outage is not None and not outage.begun and figures.filtered >= KILL_AT * plan.invoices:
                outage.begin()
            watch()
        while outage is not None and outage.begun and not outage.over:
            watch()  # the broker comes back
        # Every invoice is sent on.
        figures.end()
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


def _read_back(
    plan: Plan, consumer: Consumer, figures: Figures, show_progress: Callable[[], None]
) -> Iterator[Verdict]:
    """All verdicts of this run in a topic."""
    for message in iter(consumer.get_message, None):
        verdict = json.loads(message.value)
        if run_of(verdict["invoice"]) == plan.run:
            figures.read_back += 1
            if figures.read_back % SHOWN_READ_BACK == 0:
                show_progress()
            yield verdict
    show_progress()


def _sent_invoices(plan: Plan) -> Iterator[Made]:
    """Made again from their seed, so that the proof does not depend on the queue."""
    for (name, identity), share in zip(plan.names(), plan.shares(), strict=True):
        yield from make_invoices(name, identity, share, plan.seed, plan.run)
