"""A running system takes other numbers of read managers and more brokers, and no request fails."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests

from stack.config import StackError
from stack.local import LocalStack
from tests.waiting import until

READS = ("/topics", "/v1/cluster", "/topics/scaled/partitions")


class Requests:
    """Reads and writes of clients that go on meanwhile."""

    def __init__(self, stack: LocalStack) -> None:
        self._url = stack.url
        self._ending = threading.Event()
        self._threads = [
            *(threading.Thread(target=self._repeat, args=("GET", path)) for path in READS),
            threading.Thread(target=self._repeat, args=("PUT", "/v1/topics/scaled")),
        ]
        self.answers: list[int] = []
        self.failures: list[str] = []

    def _repeat(self, method: str, path: str) -> None:
        with requests.Session() as session:
            while not self._ending.wait(0.01):
                try:
                    answer = session.request(method, self._url + path, json={} if method == "PUT" else None, timeout=30)
                except requests.RequestException as error:
                    self.failures.append(f"{method} {path}: {error!r}")
                    continue
                self.answers.append(answer.status_code)
                if not answer.ok:
                    self.failures.append(f"{method} {path}: {answer.status_code} {answer.text[:200]}")

    @contextmanager
    def going_on(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            self.await_more()
            yield
            self.await_more()
        finally:
            self._ending.set()
            for thread in self._threads:
                thread.join()

    def await_more(self) -> None:
        before = len(self.answers)
        until(lambda: len(self.answers) > before + 200, within_s=30, what="requests are answered")


def names(stack: LocalStack, role: str) -> list[str]:
    return [process.name for process in stack.status().processes if process.role == role]


@pytest.mark.slow
def test_scaling_while_it_runs(tmp_path: Path) -> None:
    with LocalStack(tmp_path / "home") as stack:
        assert requests.put(f"{stack.url}/v1/topics/scaled", json={}, timeout=30).ok
        requests_meanwhile = Requests(stack)
        with requests_meanwhile.going_on():
            for numbers in ({"read_managers": 4, "brokers": 4}, {"read_managers": 3}, {"read_managers": 1}):
                stack.scale(**numbers)
                requests_meanwhile.await_more()
        assert requests_meanwhile.failures == []
        assert names(stack, "reads") == ["read-manager-1"]
        assert names(stack, "broker") == ["broker-1", "broker-2", "broker-3", "broker-4"]
        with pytest.raises(StackError, match="can only be added"):
            stack.scale(brokers=3)
        stack.down()
        stack.up()
        assert names(stack, "broker") == ["broker-1", "broker-2", "broker-3", "broker-4"], "with their messages"
