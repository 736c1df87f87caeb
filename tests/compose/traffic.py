"""Light traffic of every kind through the published port; each answer that is not a success is remembered."""

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import requests

from myqueue import Consumer, MyQueueError, Producer
from tests.calls import Calls
from tests.cluster import until

PAUSE_S = 0.1  # of each client between two requests
WAIT_MS = 500
LIBRARY_WAIT_S = 0.5
FAILURES_KEPT = 20


@dataclass
class Traffic:
    url: str
    topic: str
    stopping: threading.Event = field(default_factory=threading.Event)
    succeeded: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    sent: set[str] = field(default_factory=set)  # acknowledged, by the library
    read: Counter[str] = field(default_factory=Counter)

    def ask(self, kind: str, request: Callable[[requests.Session], requests.Response], *, fresh: bool = False) -> None:
        """Again and again: on one kept connection, or each on one of its own."""
        session = requests.Session()
        try:
            while not self.stopping.wait(PAUSE_S):
                if fresh:
                    session.close()
                    session = requests.Session()
                self._ask_once(kind, session, request)
        finally:
            session.close()

    def _ask_once(
        self, kind: str, session: requests.Session, request: Callable[[requests.Session], requests.Response]
    ) -> None:
        try:
            answer = request(session)
        except requests.RequestException as failure:
            self._remember(kind, repr(failure))
            return
        if answer.ok:
            self.succeeded[kind] += 1
        else:
            self._remember(kind, f"{answer.status_code} {answer.text[:300]}")

    def _remember(self, kind: str, what: str) -> None:
        self.failed[kind] += 1
        if len(self.failures) < FAILURES_KEPT:
            self.failures.append(f"{kind} at {time.strftime('%H:%M:%S', time.gmtime())}: {what}")

    def send(self) -> None:
        """By the library: batches straight to the brokers."""
        with Producer(self.url, self.topic, name="sender") as producer:
            for number in itertools.count():
                if self.stopping.wait(PAUSE_S):
                    return
                value = f"library-{number}"
                try:
                    producer.send(value).result(30)
                except MyQueueError as failure:
                    self._remember("library send", repr(failure))
                else:
                    self.sent.add(value)
                    self.succeeded["library send"] += 1

    def receive(self) -> None:
        """By the library: leases, fetches and commits."""
        with Consumer(self.url, self.topic, name="reader", start="earliest") as consumer:
            while not (self.stopping.is_set() and self.sent <= self.read.keys()):
                try:
                    message = consumer.poll(LIBRARY_WAIT_S)
                except MyQueueError as failure:
                    self._remember("library poll", repr(failure))
                    continue
                self.succeeded["library poll"] += 1
                if message is not None:
                    self.read[message.text] += 1
                elif self.stopping.is_set():
                    return

    @property
    def lost(self) -> set[str]:
        """Of what the library sent; told after the end."""
        return self.sent - self.read.keys()

    def await_progress(self, *, within_s: float, each: int = 10) -> None:
        """Every kind of request has succeeded this many times more."""
        goal = {kind: count + each for kind, count in self.succeeded.items()}
        until(
            lambda: all(self.succeeded[kind] >= count for kind, count in goal.items()),
            within_s=within_s,
            what=f"{each} more of every kind of request",
        )


@contextmanager
def light_traffic(url: str, topic: str) -> Iterator[Traffic]:
    """While the block runs. A client that hits something it did not expect fails the block."""
    with requests.Session() as session:
        calls = Calls(url, session)
        calls.topic(topic, partitions=3)
        producer = calls.producer(topic, name="plain")
        watcher = calls.consumer(topic, name="watcher")
        waiting = calls.consumer(calls.topic(f"{topic}-idle"), name="poller")  # nothing comes: every poll waits
    traffic = Traffic(url, topic)
    poll = {"wait_ms": WAIT_MS, "max_messages": 50}
    size = {"topic": topic, "consumer_id": str(watcher)}
    clients: list[Callable[[], None]] = [
        lambda: traffic.ask("GET", lambda s: s.get(f"{url}/topics/{topic}/partitions", timeout=15)),
        lambda: traffic.ask("GET, new connection", lambda s: s.get(f"{url}/topics", timeout=15), fresh=True),
        lambda: traffic.ask("GET size", lambda s: s.get(f"{url}/size", params=size, timeout=15)),
        lambda: traffic.ask("HEAD", lambda s: s.head(f"{url}/v1/topics/{topic}", timeout=15)),
        lambda: traffic.ask("poll", lambda s: s.post(f"{url}/v1/consumers/{waiting}/poll", json=poll, timeout=15)),
        lambda: traffic.ask("produce", lambda s: Calls(url, s).produce(topic, producer, "plain")),
        traffic.send,
        traffic.receive,
    ]
    with ThreadPoolExecutor(len(clients)) as pool:
        running = [pool.submit(client) for client in clients]
        try:
            until(lambda: len(traffic.succeeded) == len(clients), within_s=30, what="traffic of every kind")
            yield traffic
        finally:
            traffic.stopping.set()
    for client in running:
        client.result()
