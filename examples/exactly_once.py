"""Exactly once: a worker keeps balances in SQLite, and stores how far it has read in the same transaction.

    python -m examples.exactly_once --url http://127.0.0.1:8080 --payments 20000 --kills 3

The parent sends payments, starts the worker, kills it now and then without warning, starts it again, and at the end
compares the balances with what it sent: nothing is missing and nothing counted twice.
"""

import argparse
import os
import random
import secrets
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

from myqueue import Admin, Consumer, Message, MyQueueError, Producer, TopicExists

TOPIC = "payments"
ACCOUNTS = 20
BATCH = 200  # payments in one transaction
GIVE_UP_S = 120.0


def open_database(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("CREATE TABLE IF NOT EXISTS balance (account TEXT PRIMARY KEY, cents INTEGER, payments INTEGER)")
    database.execute("CREATE TABLE IF NOT EXISTS place (partition INTEGER PRIMARY KEY, next_offset INTEGER)")
    return database


def places(database: sqlite3.Connection) -> dict[int, int]:
    return dict(database.execute("SELECT partition, next_offset FROM place"))


def payments_counted(database: sqlite3.Connection) -> int:
    (count,) = database.execute("SELECT coalesce(sum(payments), 0) FROM balance").fetchone()
    return int(count)


def book(database: sqlite3.Connection, messages: list[Message]) -> None:
    """Stores the results and the offsets they reach, both or neither."""
    database.execute("BEGIN IMMEDIATE")
    known = places(database)
    for message in messages:
        if message.offset < known.get(message.partition, 0):
            continue  # delivered again: it is in the balances
        account, cents = message.text.split()
        database.execute(
            "INSERT INTO balance VALUES (?, ?, 1) "
            "ON CONFLICT (account) DO UPDATE SET cents = cents + excluded.cents, payments = payments + 1",
            (account, int(cents)),
        )
        known[message.partition] = message.offset + 1
    database.executemany("INSERT OR REPLACE INTO place VALUES (?, ?)", known.items())
    database.execute("COMMIT")


def work(url: str, name: str, path: Path, payments: int) -> None:
    """Runs until so many payments are in the balances."""
    # Nothing is committed to the queue: only the database knows the offsets.
    with closing(open_database(path)) as database, Consumer(url, topic=TOPIC, name=name, commit="manual") as consumer:
        for partition, offset in places(database).items():
            consumer.seek(partition, to=offset)
        while payments_counted(database) < payments:
            messages: list[Message] = []
            while len(messages) < BATCH and (message := consumer.poll(0.05 if messages else 1.0)) is not None:
                messages.append(message)
            if messages:
                book(database, messages)


def send_payments(url: str, count: int, seed: int) -> Counter[str]:
    """Returns the balances to expect."""
    chance = random.Random(seed)
    expected: Counter[str] = Counter()
    with Producer(url, topic=TOPIC) as producer:
        for _ in range(count):
            account, cents = f"account-{chance.randrange(ACCOUNTS)}", chance.randrange(1, 10_000)
            expected[account] += cents
            producer.send(f"{account} {cents}", key=account)
    return expected


def run_worker(url: str, name: str, path: Path, payments: int, kills: int) -> None:
    """Starts the worker again after each kill; CalledProcessError if it fails by itself."""
    command = [sys.executable, "-m", "examples.exactly_once", "--url", url, "--payments", str(payments)]
    give_up = time.monotonic() + GIVE_UP_S
    with closing(open_database(path)) as database:
        for number in range(1, kills + 2):
            worker = subprocess.Popen([*command, "--work", str(path), "--name", name])
            try:
                goal = payments * number // (kills + 1) if number <= kills else payments
                while worker.poll() is None and (number > kills or payments_counted(database) < goal):
                    if time.monotonic() > give_up:
                        raise TimeoutError(f"not finished after {GIVE_UP_S:.0f} s")
                    time.sleep(0.01)
            finally:
                worker.kill()
                code = worker.wait()
            print(f"worker {number}: {payments_counted(database)} payments booked, ended with {code}")
            if code > 0:
                raise subprocess.CalledProcessError(code, command)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.exactly_once", description=__doc__.split("\n")[0])
    parser.add_argument("--url", default=os.environ.get("MYQUEUE_URL", "http://127.0.0.1:8080"))
    parser.add_argument("--payments", type=int, default=20_000, help="default 20000")
    parser.add_argument("--kills", type=int, default=3, help="how often the worker is killed (default 3)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--work", type=Path, metavar="DATABASE", help="be the worker")
    parser.add_argument("--name", default=f"balances-{secrets.token_hex(4)}", help="of the consumer")
    given = parser.parse_args(arguments)
    try:
        if given.work is not None:
            work(given.url, given.name, given.work, given.payments)
            return 0
        with Admin(given.url) as admin:
            try:
                admin.create_topic(TOPIC)
            except TopicExists:
                print(f"topic {TOPIC} is there")
            admin.register_consumer(TOPIC, name=given.name, start="latest")  # from here on the messages are this run's
        expected = send_payments(given.url, given.payments, given.seed)
        print(f"{given.payments} payments sent to {len(expected)} accounts")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "balances.db"
            run_worker(given.url, given.name, path, given.payments, given.kills)
            with closing(open_database(path)) as database:
                counted = payments_counted(database)
                found = dict(database.execute("SELECT account, cents FROM balance"))
    except (MyQueueError, ValueError, TimeoutError, subprocess.CalledProcessError) as error:
        print(f"{given.url}: {error}", file=sys.stderr)
        return 1
    if counted != given.payments or found != expected:
        print(f"It does not add up: {counted} payments booked, {given.payments} sent", file=sys.stderr)
        return 1
    print(f"It adds up: {counted} payments, {sum(found.values())} cents, each booked once")
    return 0


if __name__ == "__main__":
    sys.exit(main())
