"""Light traffic of every kind through the published port; each answer that is not a success is remembered."""

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import requests

from myqueue import Consumer, MyQueueError, Producer
from tests.calls import Calls
from tests.compose.failure import StageFailed
from tests.waiting import until

PAUSE_S = 0.1  # of each client between two requests
WAIT_MS = 500
LONG_WAIT_MS = 8000  # longer than a process that stops waits for the requests in its hands
LONG_POLLS = 4  # at the same time: some are at a read manager that goes
LONG_POLL, CONSUME = "long poll", "consume without a key"
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
    consumed: set[str] = field(default_factory=set)
    came_again: list[str] = field(default_factory=list)  # consumed more than once

    def ask(self, kind: str, request: Callable[[requests.Session], requests.Response], *, fresh: bool = False) -> None:
        """Again and again: on one kept connection, or each on one of its own."""
        session = requests.Session()
        try:
            while not self.stopping.wait(PAUSE_S):
                if fresh:
                    session.close()
                    session = requests.Session()
                self._ask_once(kind, partial(request, session))
        finally:
            session.close()

    def _ask_once(
        self,
        kind: str,
        request: Callable[[], requests.Response],
        wrong: Callable[[requests.Response], str | None] = lambda _: None,
    ) -> bool:
        """Whether it succeeded; `wrong` says what is wrong with a successful answer."""
        try:
            answer = request()
        except requests.RequestException as failure:
            problem: str | None = repr(failure)
        else:
            problem = wrong(answer) if answer.ok else f"{answer.status_code} {answer.text[:300]}"
        if problem is not None:
            self._remember(kind, problem)
            return False
        self.succeeded[kind] += 1
        return True

    def take_turns(self, topic: str) -> None:
        """Sends a message and consumes until it comes. No Idempotency-Key tells that a request which went to two read
        managers was one, and still nothing may be left out. What was delivered just before a read manager was killed
        may come again."""
        with requests.Session() as session:
            calls = Calls(self.url, session)
            producer, consumer = calls.producer(topic, name="turns"), calls.consumer(topic, name="turns")
            for number in itertools.count():
                if self.stopping.wait(PAUSE_S):
                    return
                value = f"turn {number}"
                if self._ask_once("produce", partial(calls.produce, topic, producer, value)):
                    self._consume(partial(calls.consume, topic, consumer), value)

    def _consume(self, request: Callable[[], requests.Response], expected: str) -> None:
        while self._ask_once(CONSUME, request, partial(self.misread, expected=expected)):
            if expected in self.consumed:
                return

    def misread(self, answer: requests.Response, expected: str) -> str | None:
        """What is wrong with the next message that a client consumes after it has sent one."""
        found = "nothing" if answer.status_code == 204 else answer.json()["message"]
        if found in self.consumed:
            self.came_again.append(found)
        elif found != expected:
            return f"{found} instead of {expected}"
        self.consumed.add(found)
        return None

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
        """Of what the library sent; known after the end."""
        return self.sent - self.read.keys()

    def await_progress(self, *, within_s: float, each: int = 10) -> None:
        """Every kind of request has succeeded this many times more; one that takes long, once."""
        goal = {kind: count + (1 if kind == LONG_POLL else each) for kind, count in self.succeeded.items()}
        until(
            lambda: all(self.succeeded[kind] >= count for kind, count in goal.items()),
            within_s=within_s,
            what=f"{each} more of every kind of request",
        )


def seconds_until_answered(
    url: str, topic: str, polls: int, are_waiting: Callable[[], bool], act: Callable[[], None]
) -> float:
    """From `act` until the last of that many long polls has got the message that is sent after it."""
    with requests.Session() as session, ThreadPoolExecutor(polls) as pool:
        calls = Calls(url, session)
        calls.topic(topic)
        producer = calls.producer(topic)
        paths = [f"{url}/v1/consumers/{calls.consumer(topic, name=f'poll-{n}')}/poll" for n in range(polls)]
        waiting = [pool.submit(requests.post, path, json={"wait_ms": 30_000}, timeout=60) for path in paths]
        until(are_waiting, within_s=25, what=f"{polls} long polls wait")
        started_s = time.monotonic()
        act()
        calls.sent(topic, producer, "woken")
        for poll in waiting:
            answer = poll.result()
            if answer.status_code != 200 or [one["value"] for one in answer.json()["messages"]] != ["woken"]:
                raise StageFailed(f"a long poll got {answer.status_code} {answer.text[:300]}")
        return time.monotonic() - started_s


@contextmanager
def light_traffic(url: str, topic: str) -> Iterator[Traffic]:
    """While the block runs. A client that hits something it did not expect fails the block."""
    with requests.Session() as session:
        calls = Calls(url, session)
        calls.topic(topic, partitions=3)
        producer = calls.producer(topic, name="plain")
        watcher = calls.consumer(topic, name="watcher")
        idle = calls.topic(f"{topic}-idle")  # nothing comes: every poll waits
        waking = calls.producer(idle, name="waking")
        waiting, *waiting_long = [calls.consumer(idle, name=f"poller-{number}") for number in range(1 + LONG_POLLS)]
        turns = calls.topic(f"{topic}-turns")
    traffic = Traffic(url, topic)
    poll, long_poll = ({"wait_ms": wait_ms, "max_messages": 50} for wait_ms in (WAIT_MS, LONG_WAIT_MS))
    size = {"topic": topic, "consumer_id": str(watcher)}
    clients: list[Callable[[], None]] = [
        lambda: traffic.ask("GET", lambda s: s.get(f"{url}/topics/{topic}/partitions", timeout=15)),
        lambda: traffic.ask("GET, new connection", lambda s: s.get(f"{url}/topics", timeout=15), fresh=True),
        lambda: traffic.ask("GET size", lambda s: s.get(f"{url}/size", params=size, timeout=15)),
        lambda: traffic.ask("HEAD", lambda s: s.head(f"{url}/v1/topics/{topic}", timeout=15)),
        lambda: traffic.ask("poll", lambda s: s.post(f"{url}/v1/consumers/{waiting}/poll", json=poll, timeout=15)),
        lambda: traffic.ask("produce", lambda s: Calls(url, s).produce(topic, producer, "plain")),
        lambda: traffic.take_turns(turns),
        traffic.send,
        traffic.receive,
    ]
    kinds = len(clients) + 1
    for consumer in waiting_long:
        path = f"{url}/v1/consumers/{consumer}/poll"
        clients.append(lambda path=path: traffic.ask(LONG_POLL, lambda s: s.post(path, json=long_poll, timeout=15)))  # type: ignore[misc]
    with ThreadPoolExecutor(len(clients)) as pool:
        running = [pool.submit(client) for client in clients]
        try:
            until(lambda: len(traffic.succeeded) == kinds, within_s=30, what="traffic of every kind")
            yield traffic
            traffic.stopping.set()
            with requests.Session() as session:
                Calls(url, session).sent(idle, waking, "that is all")  # what long polls were waiting for
        finally:
            traffic.stopping.set()
    for client in running:
        client.result()
