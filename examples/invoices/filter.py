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
from contextlib import ExitStack, suppress
from types import FrameType
from typing import Any

from examples.invoices import ALL_TOPIC, INVALID_TOPIC, VALID_TOPIC
from examples.invoices.validity import problem
from myqueue import Admin, Consumer, Message, MyQueueError, Producer, StaleLease, TopicExists

POLL_S = 0.5  # a signal is noticed after at most this long
LINGER_S = 0.005  # wait for more messages of a batch
BATCH = 50  # invoices that are sent on together


class StopRequest:
    """Only a flag: a signal handler must not wait for a lock that the interrupted code may hold."""

    def __init__(self) -> None:
        self.requested = False

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        self.requested = True


def judge(message: Message) -> tuple[str, dict[str, Any]]:
    """The target topic and the verdict; deterministic, so that every filter sends the same."""
    try:
        invoice: Any = json.loads(message.value)
    except ValueError:
        invoice = None
    reason = problem(invoice)
    verdict = {"invoice": invoice, "source": {"partition": message.partition, "offset": message.offset}}
    if reason is None:
        return VALID_TOPIC, verdict
    return INVALID_TOPIC, verdict | {"reason": reason}


def run_of(invoice: object) -> str | None:
    run = invoice.get("run") if isinstance(invoice, dict) else None
    return run if isinstance(run, str) else None


def take(consumer: Consumer) -> list[Message]:
    """At most BATCH messages; none if none came within POLL_S."""
    taken: list[Message] = []
    while len(taken) < BATCH and (message := consumer.poll(timeout=LINGER_S if taken else POLL_S)) is not None:
        taken.append(message)
    return taken


def run_filter(address: str, group: str, run: str | None, idle_timeout_s: float | None, stop: StopRequest) -> int:
    """Filters until `stop`, or until no invoice came for `idle_timeout_s`. Returns the number of invoices."""
    with Admin(address) as admin, suppress(TopicExists):
        admin.create_topic(ALL_TOPIC)
    with ExitStack() as stack:
        # One producer name for all filters: an invoice that two of them send is stored once.
        sides = {
            topic: stack.enter_context(Producer(address, topic=topic, name=group, max_in_flight=16))
            for topic in (VALID_TOPIC, INVALID_TOPIC)
        }
        consumer = stack.enter_context(
            Consumer(address, topic=ALL_TOPIC, name=group, start="earliest", commit="manual")
        )
        filtered = 0
        last = time.monotonic()
        while not stop.requested:
            messages = take(consumer)
            if messages:
                last = time.monotonic()
            elif idle_timeout_s is not None and time.monotonic() - last >= idle_timeout_s:
                break
            filtered += send_on(messages, sides, run)
            # Committed means sent on. If the partition was leased to another filter meanwhile, that one sends them
            # again, which is idempotent.
            with suppress(StaleLease):
                consumer.commit(messages)
    return filtered


def send_on(messages: list[Message], sides: dict[str, Producer], run: str | None) -> int:
    """Send each to its side and wait until all are stored. Returns how many."""
    deliveries = []
    for message in messages:
        topic, verdict = judge(message)
        if run is not None and run_of(verdict["invoice"]) != run:
            continue  # another run has its own filters
        # The idempotency key is the position in the source: sending it again changes nothing.
        key = f"{ALL_TOPIC}-{message.partition}-{message.offset}"
        deliveries.append(sides[topic].send(json.dumps(verdict, ensure_ascii=False), idempotency_key=key))
    for delivery in deliveries:
        delivery.result()
    return len(deliveries)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.invoices.filter", description=__doc__.split("\n")[0])
    parser.add_argument("--name", required=True, help="unique among the filters")
    parser.add_argument("--address", required=True, help="of the load balancer, e.g. http://127.0.0.1:8080")
    parser.add_argument("--group", default="invoice-filters", help="filters of one group share the work")
    parser.add_argument("--run", help="filter only the invoices of this run (default: all)")
    parser.add_argument("--idle-timeout", type=float, metavar="S", help="end after S seconds without an invoice")
    given = parser.parse_args(arguments)
    stop = StopRequest()
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    try:
        filtered = run_filter(given.address, given.group, given.run, given.idle_timeout, stop)
    except (MyQueueError, ValueError) as error:
        print(f"{given.name}: {error}", file=sys.stderr)
        return 1
    print(f"{given.name}: {filtered} invoices filtered")
    return 0


if __name__ == "__main__":
    sys.exit(main())
