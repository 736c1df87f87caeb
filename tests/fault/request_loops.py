"""Requests that are repeated in threads of their own while a test breaks something, and what became of each."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import requests

PAUSE_S = 0.1
TIMEOUT_S = 15.0


@dataclass(frozen=True)
class Answered:
    status: int  # 0: no answer
    retry_after: str | None
    began_s: float
    took_s: float
    body: str


Send = Callable[[requests.Session], requests.Response]


class RequestLoops:
    def __init__(self, sends: Mapping[str, Send], *, pause_s: float = PAUSE_S) -> None:
        self._sends = sends
        self._pause_s = pause_s
        self._answers: dict[str, list[Answered]] = {name: [] for name in sends}
        self._stop = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        threads = [threading.Thread(target=self._run, args=each) for each in self._sends.items()]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join(2 * TIMEOUT_S)

    @property
    def names(self) -> list[str]:
        return list(self._answers)

    def between(self, name: str, start_s: float, end_s: float) -> list[Answered]:
        """The answers to requests that began in this time."""
        return [each for each in self._answers[name] if start_s <= each.began_s < end_s]

    def all(self, name: str) -> list[Answered]:
        return list(self._answers[name])

    def _run(self, name: str, send: Send) -> None:
        with requests.Session() as session:
            while not self._stop.is_set():
                began_s = time.monotonic()
                try:
                    answer = send(session)
                except requests.RequestException as error:
                    status, retry_after, body = 0, None, repr(error)
                else:
                    status, retry_after, body = answer.status_code, answer.headers.get("Retry-After"), answer.text
                took_s = time.monotonic() - began_s
                self._answers[name].append(Answered(status, retry_after, began_s, took_s, body))
                self._stop.wait(self._pause_s)
