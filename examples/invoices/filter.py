"""A filter: reads `all-invoices` and sends each invoice to `valid-invoices` or, with the reason, to `invalid-invoices`.

    python -m examples.invoices.filter --name filter1 --address http://127.0.0.1:8080 --idle-timeout 5

All filters share one consumer, so that each has some of the topic's partitions. SIGTERM and Ctrl-C end a filter when
its invoices in flight are sent on.
"""

import argparse
import json
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from types import FrameType
from typing import Any

from examples.invoices import ALL_TOPIC, INVALID_TOPIC, VALID_TOPIC
from examples.invoices.validity import problem
from examples.processes import ProgressReport
from myqueue import Admin, Consumer, MyQueueError, Producer, TopicExists

POLL_S = 0.5  # a signal is noticed after at most this long
BATCH = 500  # invoices that are sent on together, at most


class StopRequest:
    """Only a flag: a signal handler must not wait for a lock that the interrupted code may hold."""

    def __init__(self) -> None:
        self.requested = False

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        self.requested = True


def judge(value: bytes, partition: int, offset: int) -> tuple[str, dict[str, Any]]:
    """The target topic and the verdict; deterministic, so that every filter sends the same."""
    try:
        invoice: Any = json.loads(value)
    except ValueError:
        invoice = None
    reason = problem(invoice)
    verdict = {"invoice": invoice, "source": {"partition": partition, "offset": offset}}
    if reason is None:
        return VALID_TOPIC, verdict
    return INVALID_TOPIC, verdict | {"reason": reason}


def run_of(invoice: object) -> str | None:
    run = invoice.get("run") if isinstance(invoice, dict) else None
    return run if isinstance(run, str) else None


def run_filter(
    address: str, group: str, run: str | None, idle_timeout_s: float | None, stop: StopRequest, report: ProgressReport
) -> int:
    """Filters until `stop`, or until no invoice came for `idle_timeout_s`. Returns the number of invoices."""
    with Admin(address) as admin, suppress(TopicExists):
        admin.create_topic(ALL_TOPIC)
    with ExitStack() as stack:
        sides = {topic: stack.enter_context(Producer(address, topic=topic)) for topic in (VALID_TOPIC, INVALID_TOPIC)}
        consumer = stack.enter_context(Consumer(address, topic=ALL_TOPIC, name=group, start="earliest"))
        filtered = 0
        last = time.monotonic()
        while not stop.requested:
            # What the call before returned counts as handled now: all of it is stored on its side. The consumer commits
            # it every second, and before it hands a partition over to another filter.
            table = consumer.fetch_arrow(max_messages=BATCH, timeout=POLL_S)
            if table.num_rows:
                last = time.monotonic()
                columns = (table.column(name).to_pylist() for name in ("value", "partition", "offset"))
                filtered += send_on(zip(*columns, strict=True), sides, run)
            elif idle_timeout_s is not None and time.monotonic() - last >= idle_timeout_s:
                break
            report.show(filtered=filtered, partitions=sorted(consumer.position()))
        report.show(now=True, filtered=filtered)
    return filtered


def send_on(messages: Iterable[tuple[bytes, int, int]], sides: dict[str, Producer], run: str | None) -> int:
    """Send each to its side and wait until all are stored. Returns how many."""
    verdicts: dict[str, list[str]] = {topic: [] for topic in sides}
    for value, partition, offset in messages:
        topic, verdict = judge(value, partition, offset)
        if run is None or run_of(verdict["invoice"]) == run:  # else another run has its own filters
            verdicts[topic].append(json.dumps(verdict, ensure_ascii=False))
    sent = [sides[topic].send_many(values) for topic, values in verdicts.items() if values]
    for deliveries in sent:
        deliveries.result()
    return sum(map(len, verdicts.values()))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.invoices.filter", description=__doc__.split("\n")[0])
    parser.add_argument("--name", required=True, help="unique among the filters")
    parser.add_argument("--address", required=True, help="of the load balancer, e.g. http://127.0.0.1:8080")
    parser.add_argument("--group", default="invoice-filters", help="filters of one group share the work")
    parser.add_argument("--run", help="filter only the invoices of this run (default: all)")
    parser.add_argument("--idle-timeout", type=float, metavar="S", help="end after S seconds without an invoice")
    parser.add_argument("--report", action="store_true", help="print the progress as lines of JSON")
    given = parser.parse_args(arguments)
    stop = StopRequest()
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    report = ProgressReport(enabled=given.report)
    try:
        filtered = run_filter(given.address, given.group, given.run, given.idle_timeout, stop, report)
    except (MyQueueError, ValueError) as error:
        print(f"{given.name}: {error}", file=sys.stderr)
        return 1
    print(f"{given.name}: {filtered} invoices filtered")
    return 0


if __name__ == "__main__":
    sys.exit(main())
