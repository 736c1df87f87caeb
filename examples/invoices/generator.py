"""A generator: sends invoices, valid and invalid ones, to the topic `all-invoices`.

python -m examples.invoices.generator --name gen1 --address http://127.0.0.1:8080 --id 1234 --count 200
"""

import argparse
import json
import sys
import time

from examples.invoices import ALL_TOPIC
from examples.invoices.sample_invoices import make_invoices
from myqueue import MyQueueError, Producer


def generate(address: str, name: str, generator_id: str, count: int, seed: int, run: str) -> None:
    started = time.monotonic()
    with Producer(address, topic=ALL_TOPIC, name=f"{name}-{generator_id}") as producer:
        wrong = 0
        for made in make_invoices(name, generator_id, count, seed, run):
            wrong += made.defect is not None
            producer.send(json.dumps(made.invoice, ensure_ascii=False))
        producer.flush()
    seconds = time.monotonic() - started
    print(f"{name}: {count} invoices sent in {seconds:.1f} s, {count - wrong} valid and {wrong} invalid")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.invoices.generator", description=__doc__.split("\n")[0])
    parser.add_argument("--name", required=True, help="unique among the generators")
    parser.add_argument("--address", required=True, help="of the load balancer, e.g. http://127.0.0.1:8080")
    parser.add_argument("--id", required=True, help="of the generator; part of the invoices' numbers")
    parser.add_argument("--count", type=int, default=200, help="how many invoices (default 200)")
    parser.add_argument("--seed", type=int, default=1, help="the same seed makes the same invoices (default 1)")
    parser.add_argument("--run", default="by-hand", help="written into every invoice (default by-hand)")
    given = parser.parse_args(arguments)
    try:
        generate(given.address, given.name, given.id, given.count, given.seed, given.run)
    except (MyQueueError, ValueError) as error:
        print(f"{given.name}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
