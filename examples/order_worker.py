"""A worker that charges orders: it retries a shop that is away, gives up broken orders, and gets them replayed.

    python -m examples.order_worker --url http://127.0.0.1:8080

From a shell the same function runs with `myqueue worker examples.order_worker:charge --topic orders --name billing`.
"""

import argparse
import json
import secrets
import sys
import threading
from collections import defaultdict
from itertools import chain

from myqueue import Admin, Message, MyQueueError, Producer
from myqueue.worker import DeadLetter, Reject, Worker, replay

ORDERS, CUSTOMERS = 300, 20
charged: defaultdict[str, list[int]] = defaultdict(list)  # the numbers of each customer's orders, as they were charged
accepts_old_orders = threading.Event()
was_away: set[int] = set()


def charge(message: Message) -> None:
    """Called by eight threads, but never for two orders of a customer at a time: the key is the customer."""
    try:
        order = json.loads(message.value)
    except ValueError as error:
        raise Reject("the order is not JSON") from error  # no retry can help
    if order["number"] % 50 == 7 and order["number"] not in was_away:
        was_away.add(order["number"])
        raise ConnectionError("the bank is away")  # works when it is tried again
    if "old" in order and not accepts_old_orders.is_set():
        raise ValueError("orders of the old form are not understood")  # fails each time, until the program is better
    charged[order["customer"]].append(order["number"])


def send_orders(url: str, topic: str) -> None:
    with Producer(url, topic) as producer:
        for number in range(ORDERS):
            customer = f"customer-{number % CUSTOMERS}"
            order = {"customer": customer, "number": number} | ({"old": True} if number % 100 == 99 else {})
            producer.send(json.dumps(order), key=customer)
        producer.send("{half an ord", key="customer-0")


def work_until(url: str, topic: str, handled: int, dead: int) -> None:
    """Runs a worker until it has handled and given up so many."""
    worker = Worker(charge, url, topic=topic, name="billing", max_retries=2, first_backoff_s=0.05)
    is_enough = threading.Event()

    def watch() -> None:
        while not is_enough.wait(0.05):
            counts = worker.counts
            if (counts.handled, counts.dead) == (handled, dead):
                worker.stop()
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        worker.run()  # commits what is done before it returns
    finally:
        is_enough.set()
        watcher.join()
    print(f"{worker.counts.handled} handled, {worker.counts.retried} retried, {worker.counts.dead} dead")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.order_worker", description=__doc__.split("\n")[0])
    parser.add_argument("--url", help="default: MYQUEUE_URL, or http://localhost")
    parser.add_argument("--topic", default=f"orders-{secrets.token_hex(4)}")
    given = parser.parse_args(arguments)

    def show(letter: DeadLetter) -> None:
        print(f"  {letter.error}: {letter.reason} ({letter.topic} {letter.partition}/{letter.offset})")

    try:
        with Admin(given.url) as admin:
            admin.ensure_topic(given.topic)
        send_orders(given.url, given.topic)
        work_until(given.url, given.topic, ORDERS - 3, 4)
        print("dead letters:")
        replay(given.url, dead_letter_topic=f"{given.topic}.dead", dry_run=True, on_letter=show)
        accepts_old_orders.set()
        back = replay(given.url, dead_letter_topic=f"{given.topic}.dead", error="ValueError")
        print(f"{back.replayed} replayed, {back.skipped} left")
        work_until(given.url, given.topic, 3, 0)
    except (MyQueueError, ValueError) as error:
        print(f"{given.url}: {error}", file=sys.stderr)
        return 1
    if sorted(chain.from_iterable(charged.values())) != list(range(ORDERS)):
        print("It does not add up", file=sys.stderr)
        return 1
    print(f"It adds up: {ORDERS} orders of {len(charged)} customers, each charged once")
    return 0


if __name__ == "__main__":
    sys.exit(main())
