"""Read managers that join and leave a running system: reads find them, and no read fails when one goes."""

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest
import requests

from stack.config import CHECKOUT
from stack.local import free_port
from tests.calls import Calls
from tests.cluster import WRITE_MANAGERS, Cluster
from tests.history import UNREPORTED_S
from tests.waiting import until

pytestmark = pytest.mark.timeout(90)

WAIT_MS = 300
LONG_WAIT_MS = 8000  # longer than a process that stops waits for the requests in its hands
LONG_WAITERS = 20  # enough that each manager has some of them
SHORT_WAITERS = 2
PAUSE_S = 0.01


class Extra:
    """A read manager that the configuration of nginx does not name."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.name = name
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        database = cluster.local.database("postgres-2")
        flags = {
            "name": name,
            "port": str(self.port),
            "write-manager-urls": ",".join(cluster.internal_urls),
            "database-hosts": database.hosts,
            "log-level": "warning",
        }
        secrets = {"MYQUEUE_CLUSTER_SECRET": cluster.secret, "MYQUEUE_DATABASE_PASSWORD": database.password}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "read_manager", *(text for name in flags for text in (f"--{name}", flags[name]))],
            env=os.environ | secrets,
            cwd=CHECKOUT,
        )

    def end(self, number: signal.Signals) -> None:
        self.process.send_signal(number)
        self.process.wait(15)


class Readers:
    """Clients that keep reading in several ways and count the answers."""

    def __init__(self, url: str, topic: str, consumer: int) -> None:
        self.answers: Counter[tuple[str, str]] = Counter()
        self.repeated_s: list[float] = []  # when messages that were consumed twice were consumed first
        self._url = url
        self._topic = topic
        self._idle_topic = f"{topic}-idle"
        self._stopping = threading.Event()
        self._pool = ThreadPoolExecutor(LONG_WAITERS + 10)
        self._clients: list[Future[None]] = []
        poll: dict[str, object] = {"json": {"member": "m", "wait_ms": WAIT_MS}}
        self._ways: list[tuple[str, str, dict[str, object]]] = [
            ("GET", f"{url}/topics/{topic}/partitions", {}),
            ("GET", f"{url}/v1/topics/{topic}/partitions/0/messages?offset=0&wait_ms={WAIT_MS}", {}),
            ("HEAD", f"{url}/topics", {}),
            ("POST", f"{url}/v1/consumers/{consumer}/poll", poll),
        ]

    def _read(self, method: str, url: str, more: dict[str, object]) -> None:
        with requests.Session() as session:
            while not self._stopping.wait(PAUSE_S):
                try:
                    answer = session.request(method, url, timeout=15, **more)  # type: ignore[arg-type]
                    said = str(answer.status_code) if answer.status_code < 300 else answer.text
                except requests.RequestException as error:
                    said = repr(error)
                self.answers[f"{method} {url.partition('?')[0]}", said] += 1

    def _take_turns(self) -> None:
        """Sends a message and consumes the next one, without a key of its own: it is that one and none further on.
        After a kill a message of before may come again: its delivery was not reported yet."""
        consumed_s: dict[str, float] = {}
        with requests.Session() as session:
            calls = Calls(self._url, session)
            topic = calls.topic(f"{self._topic}-turns")
            producer, consumer = calls.producer(topic), calls.consumer(topic)
            for number in itertools.count():
                if self._stopping.wait(PAUSE_S):
                    return
                calls.sent(topic, producer, f"m{number}")
                while (found := self._consumed(calls, topic, consumer)) in consumed_s:
                    self.repeated_s.append(consumed_s.pop(found))
                if found == f"m{number}":
                    consumed_s[found] = time.monotonic()
                    found = "200"
                self.answers["GET /consumer/consume", found] += 1

    def _consumed(self, calls: Calls, topic: str, consumer: int) -> str:
        """The message, or what the answer was instead."""
        try:
            answer = calls.consume(topic, consumer, wait_ms=WAIT_MS)
        except requests.RequestException as error:
            return repr(error)
        return str(answer.json()["message"]) if answer.status_code == 200 else f"{answer.status_code} {answer.text}"

    @contextmanager
    def running(self) -> Iterator["Readers"]:
        with requests.Session() as session, self._pool:
            calls = Calls(self._url, session)
            idle = calls.producer(calls.topic(self._idle_topic))
            for way in self._ways:
                self._begin(self._read, *way)
            self._begin(self._take_turns)
            try:
                yield self
            finally:
                self._stopping.set()
                calls.sent(self._idle_topic, idle, "that is all")  # what the long polls were waiting for
        for reader in self._clients:
            reader.result()

    def wait_long(self, extras: Sequence[Extra]) -> None:
        """Begins long polls; each of these managers has at least one of them in its hands."""
        with requests.Session() as session:
            consumers = [Calls(self._url, session).consumer(self._idle_topic) for _ in range(LONG_WAITERS)]
        poll: dict[str, object] = {"json": {"member": "m", "wait_ms": LONG_WAIT_MS}}
        for consumer in consumers:
            self._begin(self._read, "POST", f"{self._url}/v1/consumers/{consumer}/poll", poll)
        until(lambda: min(map(waiting_at, extras)) > SHORT_WAITERS, within_s=20, what="long polls everywhere")

    def _begin(self, client: Callable[..., None], *arguments: object) -> None:
        self._clients.append(self._pool.submit(client, *arguments))

    def await_more(self, count: int) -> None:
        goal = self.answers.total() + count
        until(lambda: self.answers.total() >= goal, within_s=20, what=f"{count} more reads")

    def failed(self) -> dict[tuple[str, str], int]:
        return {key: count for key, count in self.answers.items() if key[1] not in ("200", "204")}


def listed(cluster: Cluster) -> set[str]:
    answer = cluster.ask(cluster.internal_url + "/internal/managers")
    return {manager["name"] for manager in answer.json()["managers"]}


def reads_of(cluster: Cluster, extra: Extra) -> int:
    """From nginx's access log; one address alone means that no other manager failed first."""
    log = cluster.local.home.log / "nginx.access.log"
    return log.read_text().count(f'"upstream":"{extra.address}"')


def waiting_at(extra: Extra) -> int:
    """Requests that wait for messages there, by its own metrics."""
    metrics = requests.get(f"http://{extra.address}/metrics", timeout=5).text
    [waiting] = [line for line in metrics.splitlines() if line.startswith("myqueue_waiting_requests ")]
    return int(float(waiting.split()[1]))


def states(calls: Calls) -> dict[str, str]:
    return {manager["name"]: manager["state"] for manager in calls.get("/v1/cluster").json()["read_managers"]}


@pytest.mark.slow
def test_more_read_managers_come_and_go_under_load(cluster: Cluster, calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name)
    readers = Readers(cluster.url, topic_name, calls.consumer(topic_name))
    with ExitStack() as ending, readers.running():
        killed, stopped = [Extra(cluster, name) for name in ("extra-1", "extra-2")]
        for extra in (killed, stopped):
            ending.callback(extra.process.wait)
            ending.callback(extra.process.kill)
        for extra in (killed, stopped):
            until(lambda: reads_of(cluster, extra) > 10, within_s=40, what=f"{extra.name} gets reads")  # noqa: B023
        readers.wait_long([killed, stopped])
        killed.end(signal.SIGKILL)
        killed_s = time.monotonic()
        readers.await_more(100)
        stopped.end(signal.SIGTERM)
        assert stopped.process.returncode == 0
        assert stopped.name not in listed(cluster), "it said that it leaves"
        readers.await_more(100)
        until(lambda: killed.name not in listed(cluster), within_s=10, what="the killed one is missed")
        until(
            lambda: states(calls).get(stopped.name) == "inactive" == states(calls).get(killed.name),
            within_s=10,
            what="everybody can see that they are away",
        )
    assert readers.failed() == {}
    assert all(abs(killed_s - consumed_s) < UNREPORTED_S for consumed_s in readers.repeated_s), "repeated, but not lost"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"name": "x" * 201}, "name: must have 1 to 200 printable characters"),
        ({"name": "a\x00b"}, "name: must have 1 to 200 printable characters"),
        ({"endpoint": f"http://127.0.0.1:{'1' * 300}"}, "endpoint: longer than 300 characters"),
        ({"endpoint": "http://127.0.0.1:80/elsewhere"}, "endpoint: must be http://host:port"),
        ({"endpoint": "http://192.0.2.1:80"}, "endpoint: lies outside the networks"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else "",
)
def test_who_cannot_be_a_read_manager_is_refused(cluster: Cluster, wrong: dict[str, str], message: str) -> None:
    """Reads are sent to where they say they are, and a row that cannot be stored would keep others from it."""
    heartbeat = {"name": "odd", "endpoint": "http://127.0.0.1:1"} | wrong
    answer = cluster.ask(f"{cluster.internal_url}/internal/managers/heartbeat", heartbeat)
    assert answer.status_code == 400
    assert answer.json()["message"].startswith(message)
    assert heartbeat["name"] not in listed(cluster)


def test_while_the_write_manager_is_away_a_new_nginx_knows_the_read_managers_of_its_configuration(
    cluster: Cluster, calls: Calls, topic_name: str
) -> None:
    calls.topic(topic_name)
    for name in WRITE_MANAGERS:
        cluster.stop(name)
    cluster.stop("nginx")
    cluster.start("nginx")
    began_s = time.monotonic()
    for _ in range(20):
        assert requests.get(f"{cluster.url}/topics/{topic_name}/partitions", timeout=5).status_code == 200
    assert time.monotonic() - began_s < 20
