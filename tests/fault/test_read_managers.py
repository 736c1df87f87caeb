"""Read managers that join and leave a running system: reads find them, and no read fails when one goes."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest
import requests

from stack.config import CHECKOUT
from stack.local import free_port
from tests.calls import Calls
from tests.cluster import Cluster, until

pytestmark = pytest.mark.timeout(90)

WAIT_MS = 300
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
            "write-manager-url": cluster.internal_url,
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
        self._stopping = threading.Event()
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

    @contextmanager
    def running(self) -> Iterator["Readers"]:
        with ThreadPoolExecutor(len(self._ways)) as pool:
            running = [pool.submit(self._read, *way) for way in self._ways]
            try:
                yield self
            finally:
                self._stopping.set()
            for reader in running:
                reader.result()

    def await_more(self, count: int) -> None:
        goal = self.answers.total() + count
        until(lambda: self.answers.total() >= goal, within_s=20, what=f"{count} more reads")

    def failed(self) -> dict[tuple[str, str], int]:
        return {key: count for key, count in self.answers.items() if key[1] not in ("200", "204")}


def listed(cluster: Cluster) -> set[str]:
    answer = cluster.ask(cluster.internal_url + "/internal/managers")
    return {manager["name"] for manager in answer.json()["managers"]}


def reads_of(cluster: Cluster, extra: Extra) -> int:
    """As nginx has written them down; the address stands alone where nobody failed on the way."""
    log = cluster.local.home.log / "nginx.access.log"
    return log.read_text().count(f'"upstream":"{extra.address}"')


def states(calls: Calls) -> dict[str, str]:
    return {manager["name"]: manager["state"] for manager in calls.get("/v1/cluster").json()["read_managers"]}


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
        killed.end(signal.SIGKILL)
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


def test_while_the_write_manager_is_away_a_new_nginx_knows_the_read_managers_of_its_configuration(
    cluster: Cluster, calls: Calls, topic_name: str
) -> None:
    calls.topic(topic_name)
    cluster.stop("write-manager-1")
    cluster.stop("nginx")
    cluster.start("nginx")
    began_s = time.monotonic()
    for _ in range(20):
        assert requests.get(f"{cluster.url}/topics/{topic_name}/partitions", timeout=5).status_code == 200
    assert time.monotonic() - began_s < 20
