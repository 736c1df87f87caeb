"""A whole stack under test: kill, pause, resume, stop, start and erase its services, and wait to a deadline."""

import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal
from uuid import UUID

import requests

from myqueue.protocol import batch as batches
from myqueue.protocol import http_headers, internal
from stack.config import StackError
from stack.local import LocalStack
from stack.services import internal_of
from tests.replicas import StoredReplica, stored_replica
from tests.waiting import until

READ_MANAGERS = ("read-manager-1", "read-manager-2")
BROKERS = ("broker-1", "broker-2", "broker-3")
STANDBYS = ("postgres-2", "postgres-3")
WRITE_MANAGERS = ("write-manager-1", "write-manager-2")
HTTP_SERVICES = (*WRITE_MANAGERS, *READ_MANAGERS, *BROKERS)


def answer_of(url: str, timeout_s: float = 2.0) -> requests.Response | None:
    """The answer, whatever it says; None when there was none."""
    with suppress(requests.RequestException):
        return requests.get(url, timeout=timeout_s)
    return None


class Cluster:
    def __init__(self, local: LocalStack) -> None:
        self.local = local
        self.url = local.url
        self._paused: dict[str, int] = {}

    @property
    def secret(self) -> str:
        return self.local.secrets.cluster_secret

    @property
    def internal_url(self) -> str:
        """The internal listener of the write manager that is active."""
        return self.address_of(internal_of(self.active_write_manager()))

    @property
    def internal_urls(self) -> list[str]:
        return self.local.internal_urls

    def active_write_manager(self) -> str:
        """Waits for one: it may be merely late to say so."""

        def active() -> str | None:
            with suppress(StackError):
                return self.local.active_write_manager()
            return None

        return until(active, within_s=10, what="a write manager is active")

    def address_of(self, name: str) -> str:
        return self.local.address_of(name)

    def operations_url(self, name: str) -> str:
        """Where a service answers about itself: a write manager's public listener is closed while it is the standby."""
        return self.address_of(internal_of(name) if name in WRITE_MANAGERS else name)

    def log_of(self, name: str) -> str:
        return self.local.home.log_file(name).read_text(errors="replace")

    def pid(self, name: str) -> int | None:
        """None while the service is between two lives."""
        try:
            return self.local.pid(name)
        except (FileNotFoundError, ValueError):
            return None

    def kill(self, name: str) -> int:
        """kill -9; the runner brings the service back. Returns the pid that died."""
        pid = until(lambda: self.pid(name), within_s=10, what=f"{name} runs")
        os.kill(pid, signal.SIGKILL)
        return pid

    def pause(self, name: str) -> None:
        pid = self.local.pid(name)
        os.kill(pid, signal.SIGSTOP)
        self._paused[name] = pid

    def resume(self, name: str) -> None:
        pid = self._paused.pop(name, None)
        if pid is not None:
            os.kill(pid, signal.SIGCONT)

    def stop(self, name: str) -> None:
        """Ends it and keeps it down."""
        self.local.stop(name)

    def start(self, name: str) -> None:
        self.local.start(name)

    def data_folder(self, name: str) -> Path:
        return self.local.home.data / name

    def erase(self, name: str) -> None:
        """Everything a stopped broker has stored."""
        assert self.local.home.stop_mark(name).exists(), f"{name} may be running"
        shutil.rmtree(self.data_folder(name))

    def topic_id(self, topic: str) -> UUID:
        answer = self.ask(self.internal_url + internal.CATALOG_TOPIC.path_for(topic=topic))
        return UUID(answer.json()["topic_id"])

    def ask(self, url: str, body: object = None, timeout_s: float = 10.0) -> requests.Response:
        """An internal route, with the secret; a body makes it a POST."""
        method = "GET" if body is None else "POST"
        return requests.request(method, url, json=body, headers={http_headers.SECRET: self.secret}, timeout=timeout_s)

    def await_leader(
        self, topic: str, partition_id: int = 0, *, within_s: float, among: tuple[str, ...] = BROKERS
    ) -> str:
        """The broker that leads the partition and can prove it: only a leader answers where the log ends."""
        names = [{"topic_id": str(self.topic_id(topic)), "partition_id": partition_id}]
        question = {"partitions": names, "timestamp": None}

        def leads(name: str) -> bool:
            try:
                answer = self.ask(self.address_of(name) + internal.OFFSETS.path, question, timeout_s=2.0)
            except requests.RequestException:
                return False
            return answer.status_code == 200 and answer.json()["offsets"][0] is not None

        def look() -> str | None:
            return next((name for name in among if name not in self._paused and leads(name)), None)

        return until(look, within_s=within_s, what=f"partition {partition_id} of {topic} has a leader among {among}")

    def messages(self, name: str, topic: str, partition_id: int = 0, start: int = 0) -> Iterator[tuple[int, bytes]]:
        """Offsets and values of everything the broker hands out of a partition that was not cut behind `start`."""
        path = internal.MESSAGES.path_for(topic_id=self.topic_id(topic), partition_id=partition_id)
        offset = start
        with requests.Session() as session:
            session.headers[http_headers.SECRET] = self.secret
            while True:
                url = f"{self.address_of(name)}{path}?offset={offset}&limit=1000"
                answer = session.get(url, timeout=5)
                if answer.status_code == 204:
                    return
                assert answer.status_code == 200, answer.text
                header, body, _ = batches.split(answer.content)
                for message in batches.messages_of(batches.validate(header, body)):
                    yield offset, message.value
                    offset += 1

    def replica(self, name: str, topic: str | UUID, partition_id: int = 0) -> StoredReplica | None:
        """What the broker's file says of a partition; the broker may be running."""
        topic_id = topic if isinstance(topic, UUID) else self.topic_id(topic)
        return stored_replica(self.data_folder(name), topic_id, partition_id)

    def await_voter(self, name: str, topic: str, partition_id: int = 0, *, within_s: float) -> None:
        """The replica counts, and no other one has to go or come before the next fault: its own log says so."""
        topic_id = self.topic_id(topic)

        def counts() -> bool:
            replica = self.replica(name, topic_id, partition_id)
            return replica is not None and replica.is_voter and not replica.is_changing

        until(counts, within_s=within_s, what=f"{name} is a voter of partition {partition_id} of {topic}")

    def heal(self, within_s: float = 30) -> None:
        """Everything runs again, however a test left it."""
        for name in list(self._paused):
            self.resume(name)
        layout = self.local.home.layout()
        assert layout is not None
        for name in layout.services:
            if self.local.home.stop_mark(name).exists():
                self.local.start(name)
        self.await_healthy(within_s=within_s)

    def delete_topics(self) -> None:
        """So that brokers do not carry along what earlier tests wrote."""
        listed = requests.get(self.url + "/topics", timeout=10)
        for topic in listed.json().get("topics", ()):
            requests.delete(f"{self.url}/v1/topics/{topic}", timeout=10)

    def await_placement(self, *, within_s: float = 30) -> None:
        """New partitions go to every broker. A write manager learns of the brokers one heartbeat after its start."""

        def is_spread() -> bool:
            name = f"placement-{time.monotonic_ns()}"
            made = requests.post(self.url + "/topics", json={"name": name, "partitions": 3}, timeout=10)
            listed = requests.get(f"{self.url}/topics/{name}/partitions", timeout=10)
            self.delete_topics()
            return made.status_code == 201 and {p["leader"] for p in listed.json().get("partitions", ())} == {1, 2, 3}

        until(is_spread, within_s=within_s, what="a topic of three partitions is led by three brokers")

    def await_restart(self, name: str, died: int, *, within_s: float) -> None:
        """Another process than the one that died answers for this service."""

        def is_back() -> bool:
            return self.pid(name) not in (None, died) and self._is_ready(name)

        until(is_back, within_s=within_s, what=f"{name} is back after pid {died} died")

    def _is_ready(self, name: str) -> bool:
        if name not in HTTP_SERVICES:
            record = self.local.home.state().processes[name]
            return record.state == "ready"
        # A write manager comes back as the standby.
        path = "/healthz" if name in WRITE_MANAGERS else "/readyz"
        answer = answer_of(self.operations_url(name) + path)
        return answer is not None and answer.status_code == 200

    def await_ready(self, *, within_s: float) -> None:
        """The port answers that everything it needs is there."""

        def is_ready() -> bool:
            answer = answer_of(self.url + "/readyz")
            return answer is not None and answer.status_code == 200

        until(is_ready, within_s=within_s, what=f"{self.url}/readyz says 200")

    def await_healthy(self, *, within_s: float) -> None:
        """Every single process is well, not only as many as are needed."""

        def is_healthy() -> bool:
            return self.local.status().is_healthy

        until(is_healthy, within_s=within_s, what="all processes are healthy")
        self.await_verified(within_s=within_s)
        self.await_ready(within_s=within_s)

    def await_verified(self, *, within_s: float) -> None:
        """A write manager is active, has PostgreSQL and a standby that confirms, and so gives out leases."""

        def is_verified() -> bool:
            try:
                status = self.ask(self.local.internal_url + internal.WRITE_MANAGER_STATUS.path).json()
            except (StackError, requests.RequestException):
                return False
            return bool(status["active"]) and status["degraded"] is None

        until(is_verified, within_s=within_s, what="the write manager is active and not degraded")


@contextmanager
def running_cluster(
    folder: Path, storage: Literal["disk", "memory"] = "disk", database_hang_s: float | None = 0
) -> Iterator[Cluster]:
    """A stack of its own in `folder/home`; its logs stay in `folder/log` for the search after a failure. Tests may
    pause PostgreSQL servers for as long as they want, unless `database_hang_s` says when the runner kills them; None:
    as by default."""
    local = LocalStack(folder / "home", storage=storage, database_hang_s=database_hang_s)
    try:
        local.up()
        cluster = Cluster(local)
        cluster.await_healthy(within_s=30)
        yield cluster
    finally:
        try:
            local.down()
            shutil.copytree(local.home.log, folder / "log")
        finally:
            local.clean()
