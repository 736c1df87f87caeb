"""Clients under load that write down what they saw, for the history checker to judge."""

import itertools
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import requests

from tests.calls import Calls
from tests.history import Event

REQUEST_TIMEOUT_S = 12.0
PAUSE_S = 0.02


class Recorder:
    """One line for each event, in the order in which they happened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("a")
        self._lock = threading.Lock()

    def write(self, f: str, kind: str, process: str, value: str | None, **more: object) -> None:
        event: Event = {"f": f, "type": kind, "process": process, "value": value, "s": time.monotonic(), **more}
        with self._lock:
            self._file.write(json.dumps(event) + "\n")

    def close(self) -> None:
        self._file.close()


@dataclass
class Load:
    """Producers and consumers of one topic. Every second producer retries under an Idempotency-Key until it is told
    success, the others try each value once; consumers always retry under a key."""

    url: str
    topic: str
    recorder: Recorder
    stopping: threading.Event = field(default_factory=threading.Event)
    acknowledged: int = 0
    consumed: int = 0

    def produce(self, process: str, retries: bool) -> None:
        with requests.Session() as session:
            calls = Calls(self.url, session)
            producer = calls.producer(self.topic, name=process)
            for sequence in itertools.count():
                if self.stopping.is_set():
                    return
                self._produce_one(calls, process, producer, sequence, retries)

    def _produce_one(self, calls: Calls, process: str, producer: int, sequence: int, retries: bool) -> None:
        value = f"{process}-{sequence}"
        key = {"Idempotency-Key": value} if retries else None
        while True:
            self.recorder.write("produce", "invoke", process, value, sequence=sequence)
            answer = self._try(lambda: calls.produce(self.topic, producer, value, key))
            if answer is not None and answer.status_code == 200:
                place = {"partition": answer.json()["partition_id"], "offset": answer.json()["offset"]}
                self.recorder.write("produce", "ok", process, value, sequence=sequence, **place)
                self.acknowledged += 1
                return
            not_written = answer is not None and answer.json().get("outcome") == "not_written"
            why = "no answer" if answer is None else f"{answer.status_code} {answer.json().get('error_code')}"
            kind = "fail" if not_written else "info"
            self.recorder.write("produce", kind, process, value, sequence=sequence, why=why)
            if not retries or self.stopping.is_set():
                return
            time.sleep(PAUSE_S)

    def consume(self, process: str, consumer: int) -> None:
        with requests.Session() as session:
            calls = Calls(self.url, session)
            while not self.stopping.is_set():
                self._consume_one(calls, process, consumer)

    def _consume_one(self, calls: Calls, process: str, consumer: int) -> None:
        key = {"Idempotency-Key": uuid.uuid4().hex}
        while True:
            answer = self._try(lambda: calls.consume(self.topic, consumer, key))
            if answer is not None and answer.status_code == 200:
                read = answer.json()
                place = {"partition": read["partition_id"], "offset": read["offset"]}
                self.recorder.write("consume", "ok", process, read["message"], **place)
                self.consumed += 1
                return
            if answer is not None and answer.status_code == 204:
                return
            why = "no answer" if answer is None else f"{answer.status_code} {answer.json().get('error_code')}"
            self.recorder.write("consume", "info", process, None, why=why)
            # Until there is an answer nobody knows whether the claim was made: giving up here would lose a message.
            time.sleep(PAUSE_S)

    def _try(self, request: Callable[[], requests.Response]) -> requests.Response | None:
        try:
            return request()
        except requests.RequestException:
            return None

    def drain(self) -> None:
        """The whole log, from its start, after everything is healed."""
        with requests.Session() as session:
            calls = Calls(self.url, session)
            reader = calls.consumer(self.topic, **{"from": "earliest"})
            for message in calls.drained(self.topic, reader):
                place = {"partition": message["partition_id"], "offset": message["offset"]}
                self.recorder.write("drain", "ok", f"drain {reader}", message["message"], **place)


@contextmanager
def running_load(url: str, topic: str, path: Path, *, producers: int, consumers: int) -> Iterator[Load]:
    """Load while the block runs. A client that hits something it did not expect fails the block."""
    recorder = Recorder(path)
    load = Load(url, topic, recorder)
    with requests.Session() as session:
        registered = [Calls(url, session).consumer(topic, name=f"c{number}") for number in range(consumers)]
    with ThreadPoolExecutor(producers + consumers) as pool:
        running: list[Future[None]] = [pool.submit(load.produce, f"p{n}", n % 2 == 0) for n in range(producers)]
        running += [pool.submit(load.consume, f"c{n}", consumer) for n, consumer in enumerate(registered)]
        try:
            yield load
        finally:
            load.stopping.set()
    for client in running:
        client.result()
    load.drain()
    recorder.close()
