"""A generator: sends invoices, valid and invalid ones, to the topic `all-invoices`.

python -m examples.invoices.generator --name gen1 --address http://127.0.0.1:8080 --id 1234 --count 200
"""

import argparse
import json
import sys
import time
from collections import deque
from itertools import islice

from examples.invoices import ALL_TOPIC
from examples.invoices.sample_invoices import make_invoices
from examples.processes import ProgressReport
from myqueue import Deliveries, MyQueueError, Producer

TICK_S = 0.02  # invoices of a tick are sent together
UNPACED = 200  # invoices that are sent together where no rate is given


class Sent:
    """Invoices on their way, and how many have arrived."""

    def __init__(self) -> None:
        self.stored = 0
        self._in_flight: deque[tuple[Deliveries, int]] = deque()

    def add(self, deliveries: Deliveries, count: int) -> None:
        self._in_flight.append((deliveries, count))
        while self._in_flight and self._in_flight[0][0].done():
            self.settle()

    def settle(self) -> None:
        """Wait for the oldest of them; raises its error."""
        deliveries, count = self._in_flight.popleft()
        deliveries.result()
        self.stored += count

    def settle_all(self, report: ProgressReport) -> None:
        while self._in_flight:
            self.settle()
            report.show(sent=self.stored)


def generate(
    address: str, name: str, generator_id: str, count: int, seed: int, run: str, rate: float, report: ProgressReport
) -> None:
    started = time.monotonic()
    with Producer(address, topic=ALL_TOPIC, name=f"{name}-{generator_id}") as producer:
        wrong = made_count = 0
        sent = Sent()
        invoices = make_invoices(name, generator_id, count, seed, run)
        paced_since = time.monotonic()
        while made_count < count:
            due = int((time.monotonic() - paced_since + TICK_S) * rate) if rate else made_count + UNPACED
            made = list(islice(invoices, max(0, due - made_count)))
            made_count += len(made)
            wrong += sum(one.defect is not None for one in made)
            if made:
                values = [json.dumps(one.invoice, ensure_ascii=False) for one in made]
                sent.add(producer.send_many(values), len(values))
            report.show(sent=sent.stored)
            if rate and made_count < count:
                time.sleep(TICK_S)
        sent.settle_all(report)
        report.show(now=True, sent=sent.stored)
    seconds = time.monotonic() - started
    print(f"{name}: {count} invoices sent in {seconds:.1f} s, {count - wrong} valid and {wrong} invalid")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.invoices.generator", description=__doc__.split("\n")[0])
    parser.add_argument("--name", required=True, help="unique among the generators")
    parser.add_argument("--address", required=True, help="of the load balancer, e.g. http://127.0.0.1:8080")
    parser.add_argument("--id", required=True, help="of the generator; part of the invoices' numbers")
    parser.add_argument("--count", type=int, default=200, help="how many invoices (default 200)")
    parser.add_argument("--rate", type=float, default=0.0, help="invoices a second (default: as fast as it can)")
    parser.add_argument("--seed", type=int, default=1, help="the same seed makes the same invoices (default 1)")
    parser.add_argument("--run", default="by-hand", help="written into every invoice (default by-hand)")
    parser.add_argument("--report", action="store_true", help="print the progress as lines of JSON")
    given = parser.parse_args(arguments)
    report = ProgressReport(enabled=given.report)
    try:
        generate(given.address, given.name, given.id, given.count, given.seed, given.run, given.rate, report)
    except (MyQueueError, ValueError) as error:
        print(f"{given.name}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
