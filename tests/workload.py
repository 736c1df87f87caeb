"""Clients under load that write down what they saw, for the history checker to judge."""

import itertools
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import requests

from tests.calls import Calls
from tests.history import Event
from tests.waiting import let_pass, until

REQUEST_TIMEOUT_S = 12.0
PAUSE_S = 0.02


class Loaded(Protocol):
    """A stack under load whose messages can be read in the end: on this machine, or in containers."""

    url: str

    def await_leader(self, topic: str, partition_id: int, *, within_s: float) -> str: ...

    def messages(self, name: str, topic: str, partition_id: int) -> Iterator[tuple[int, bytes]]: ...


def reason(answer: requests.Response | None) -> str:
    """Why a request did not succeed."""
    return "no answer" if answer is None else f"{answer.status_code} {answer.json().get('error_code')}"


class Recorder:
    """One line for each event, in the order in which they happened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("a")
        self._lock = threading.Lock()

    def write(self, f: str, kind: str, process: str, value: str | int | None, **more: object) -> None:
        with self._lock:
            event: Event = {"f": f, "type": kind, "process": process, "value": value, "s": time.monotonic(), **more}
            self._file.write(json.dumps(event) + "\n")

    def fault(self, f: str, victim: str) -> None:
        self.write(f, "info", victim, None)

    def close(self) -> None:
        self._file.close()


@dataclass
class Load:
    """Producers and consumers of one topic. Every second producer retries under an Idempotency-Key until it
    succeeds, the others try each value once; consumers always retry under a key."""

    url: str
    topic: str
    recorder: Recorder
    pause_s: float = 0.0  # of each client between two requests
    stopping: threading.Event = field(default_factory=threading.Event)
    acknowledged: int = 0
    consumed: int = 0

    def produce(self, process: str, retries: bool) -> None:
        with requests.Session() as session:
            calls = Calls(self.url, session)
            producer = calls.producer(self.topic, name=process)
            for sequence in itertools.count():
                if self.stopping.wait(self.pause_s):
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
            kind = "fail" if not_written else "info"
            self.recorder.write("produce", kind, process, value, sequence=sequence, why=reason(answer))
            if not retries or self.stopping.is_set():
                return
            let_pass(PAUSE_S)

    def consume(self, process: str, consumer: int) -> None:
        with requests.Session() as session:
            calls = Calls(self.url, session)
            while not self.stopping.wait(self.pause_s):
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
            self.recorder.write("consume", "info", process, None, why=reason(answer))
            # Without an answer the claim may have been made: giving up here would lose a message.
            let_pass(PAUSE_S)

    def watch_size(self, process: str, consumer: int) -> None:
        """Of a consumer that never reads: everything there is."""
        with requests.Session() as session:
            calls = Calls(self.url, session)
            while not self.stopping.wait(max(PAUSE_S, self.pause_s)):
                self.recorder.write("size", "invoke", process, None)
                answer = self._try(lambda: calls.size(self.topic, consumer))
                if answer is not None and answer.status_code == 200:
                    self.recorder.write("size", "ok", process, answer.json()["size"])
                else:
                    self.recorder.write("size", "info", process, None, why=reason(answer))

    def _try(self, request: Callable[[], requests.Response]) -> requests.Response | None:
        try:
            return request()
        except requests.RequestException:
            return None

    def await_progress(self, *, within_s: float, produced: int = 80, consumed: int = 20) -> None:
        """The load goes on: this many more successes from here."""
        goal = self.acknowledged + produced, self.consumed + consumed
        until(
            lambda: self.acknowledged >= goal[0] and self.consumed >= goal[1],
            within_s=within_s,
            what=f"{produced} more produced and {consumed} more consumed",
        )

    def drain(self, cluster: Loaded, partitions: int) -> None:
        """The whole log, from its start, after everything is healed: what the leaders hold, and where."""
        for partition_id in range(partitions):
            leader = cluster.await_leader(self.topic, partition_id, within_s=20)
            for offset, value in cluster.messages(leader, self.topic, partition_id):
                place = {"partition": partition_id, "offset": offset}
                self.recorder.write("drain", "ok", f"drain {leader}", value.decode(), **place)


@contextmanager
def running_load(
    cluster: Loaded, topic: str, path: Path, *, producers: int, consumers: int, pause_s: float = 0.0
) -> Iterator[Load]:
    """Load while the block runs. A client that hits something it did not expect fails the block."""
    with closing(Recorder(path)) as recorder:
        load = Load(cluster.url, topic, recorder, pause_s)
        with requests.Session() as session:
            calls = Calls(cluster.url, session)
            registered = [calls.consumer(topic, name=f"c{number}") for number in range(consumers)]
            watcher = calls.consumer(topic, name="watcher")
            partitions = len(calls.partitions(topic).json()["partitions"])
        with ThreadPoolExecutor(producers + consumers + 1) as pool:
            running: list[Future[None]] = [pool.submit(load.produce, f"p{n}", n % 2 == 0) for n in range(producers)]
            running += [pool.submit(load.consume, f"c{n}", consumer) for n, consumer in enumerate(registered)]
            running.append(pool.submit(load.watch_size, "s0", watcher))
            try:
                yield load
            finally:
                load.stopping.set()
        for client in running:
            client.result()
        load.drain(cluster, partitions)
