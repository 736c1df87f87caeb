"""One run of the pipeline: starts the workers, watches the queue until all is filtered, reads both sides back."""

import json
import secrets
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Protocol

from examples.invoices import ALL_TOPIC, INVALID_TOPIC, VALID_TOPIC
from examples.invoices.audit import Audit, Verdict, audit
from examples.invoices.filter import run_of
from examples.invoices.making import Made, make_invoices
from examples.invoices.workers import Worker, Workers
from myqueue import Admin, Consumer, TopicExists

LOOK_EVERY_S = 0.5


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
    """What the queue itself says about the run."""

    generated: int
    filtered: int
    valid: int
    invalid: int


class View(Protocol):
    """Who is shown how far the run is."""

    def show(self, counts: Counts) -> None: ...

    def read_back(self) -> None:
        """One more invoice was read back."""


@dataclass(frozen=True, slots=True)
class Outcome:
    audit: Audit
    pipeline_s: float
    read_back_s: float
    last_words: list[str]


def run_pipeline(plan: Plan, view: View) -> Outcome:
    with Admin(plan.url) as admin:
        for topic in (ALL_TOPIC, VALID_TOPIC, INVALID_TOPIC):
            with suppress(TopicExists):
                admin.create_topic(topic)
    with ExitStack() as stack:
        # Registered before the first invoice is sent, so they begin where this run begins and miss nothing of it. The
        # first two are only asked how much there is to read: they take no partitions from the filters.
        def consumer(topic: str, name: str) -> Consumer:
            return stack.enter_context(Consumer(plan.url, topic=topic, name=f"{name}-{plan.run}", start="latest"))

        group = consumer(ALL_TOPIC, "filters")
        everything = consumer(ALL_TOPIC, "audit")
        valid, invalid = consumer(VALID_TOPIC, "audit"), consumer(INVALID_TOPIC, "audit")

        def look() -> Counts:
            generated = everything.size()
            return Counts(generated, max(0, generated - group.size()), valid.size(), invalid.size())

        started = time.monotonic()
        last_words = _work(plan, group, look, view)
        finished = time.monotonic()
        result = audit(_made(plan), _read_back(plan, valid, view), _read_back(plan, invalid, view))
        return Outcome(result, finished - started, time.monotonic() - finished, last_words)


def _work(plan: Plan, group: Consumer, look: Callable[[], Counts], view: View) -> list[str]:
    deadline = time.monotonic() + plan.timeout_s
    with Workers() as workers:
        # The idle timeout only ends filters whose parent was killed.
        common = ("--address", plan.url, "--run", plan.run)
        filters = [
            workers.start("filter", f"filter{number}", *common, "--group", group.name, "--idle-timeout", "60")
            for number in range(1, plan.filters + 1)
        ]
        generators = [
            workers.start("generator", name, *common, "--id", identity, "--count", str(share), "--seed", str(plan.seed))
            for (name, identity), share in zip(plan.names(), plan.shares(), strict=True)
        ]
        while any(generator.running for generator in generators) or group.size() > 0:
            view.show(look())
            _check(filters, generators)
            if time.monotonic() > deadline:
                raise PipelineFailed(f"not finished after {plan.timeout_s:.0f} s")
            time.sleep(LOOK_EVERY_S)
        # Every invoice is sent on.
        for worker in filters:
            worker.stop()
        last_words = [worker.last_words() for worker in (*generators, *filters)]
        for worker, words in zip((*generators, *filters), last_words, strict=True):
            # A filter that was still starting has no handler for the signal yet, and no invoice either.
            if worker.process.returncode not in (0, -signal.SIGTERM):
                raise PipelineFailed(f"{worker.name} ended with {worker.process.returncode}: {words}")
        view.show(look())
        return [words for words in last_words if words]


def _check(filters: list[Worker], generators: list[Worker]) -> None:
    ended = [worker for worker in filters if not worker.running]
    ended += [worker for worker in generators if worker.process.poll() not in (None, 0)]
    if ended:
        worker = ended[0]
        raise PipelineFailed(f"{worker.name} ended with {worker.process.returncode}: {worker.last_words()}")


def _read_back(plan: Plan, consumer: Consumer, view: View) -> list[Verdict]:
    """Everything that this run has sent to a topic."""
    verdicts = []
    for message in iter(consumer.get_message, None):
        verdict = json.loads(message.value)
        if run_of(verdict["invoice"]) == plan.run:
            verdicts.append(verdict)
            view.read_back()
    return verdicts


def _made(plan: Plan) -> list[Made]:
    """The invoices of this run, made again from their seed: the queue is not asked what should be in it."""
    return [
        made
        for (name, identity), share in zip(plan.names(), plan.shares(), strict=True)
        for made in make_invoices(name, identity, share, plan.seed, plan.run)
    ]
