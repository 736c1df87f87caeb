"""A producer and a consumer of the library at work, in threads of their own, while a test breaks something."""

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import myqueue
from tests.waiting import until

COMMIT_EVERY = 10
END_S = 30.0


class LibraryClients:
    def __init__(self, url: str, topic: str, *, commits: bool = False) -> None:
        """`commits`: after every few messages, instead of in the background, so that `committed` is known."""
        self.sent: list[str] = []
        self.read: list[str] = []
        self.errors: list[Exception] = []
        self.stale_leases = 0
        self.committed: dict[int, int] = {}  # by partition, as acknowledged
        self._stop_sending, self._stop_reading = threading.Event(), threading.Event()
        self._producer = myqueue.Producer(url, topic=topic)
        self._commits = commits
        self._consumer = myqueue.Consumer(
            url, topic=topic, name="library", start="earliest", commit="manual" if commits else "auto"
        )
        self._threads = [threading.Thread(target=each) for each in (self._send, self._read)]

    @contextmanager
    def running(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            for stop, thread in zip((self._stop_sending, self._stop_reading), self._threads, strict=True):
                stop.set()
                thread.join(2 * END_S)
            self._producer.close()
            self._consumer.close()

    def assert_nothing_lost(self) -> None:
        """Of what was sent, and of what was committed; messages may come again. To be called while they run."""
        self._stop_sending.set()
        self._threads[0].join(2 * END_S)
        until(self.has_read_all, within_s=END_S, what="the library's consumer has read all that was sent")
        assert self.errors == [], list(map(repr, self.errors))
        committed = dict(self.committed)  # first: the consumer may commit once more while the cluster is asked
        cursors = self.cursors()
        lost = {p: (offset, cursors[p]) for p, offset in committed.items() if offset > cursors[p]}
        assert lost == {}, f"commits that were acknowledged, and where the cursors are: {lost}"

    def has_read_all(self) -> bool:
        return bool(self.sent) and set(self.sent) <= set(self.read)

    def cursors(self) -> dict[int, int]:
        """As the cluster says."""
        return {partition: lag.cursor for partition, lag in self._consumer.lag().partitions.items()}

    def _send(self) -> None:
        number = 0
        while not self._stop_sending.is_set():
            try:
                self._producer.send(str(number)).result(timeout=30)
            except myqueue.MyQueueError as error:
                self.errors.append(error)
            else:
                self.sent.append(str(number))
            number += 1
            self._stop_sending.wait(0.02)

    def _read(self) -> None:
        deadline_s = math.inf
        while time.monotonic() < deadline_s and not (self._stop_reading.is_set() and self.has_read_all()):
            if self._stop_reading.is_set():
                deadline_s = min(deadline_s, time.monotonic() + END_S)
            try:
                message = self._consumer.poll(0.5)
                if message is not None:
                    self.read.append(message.text)
                    if self._commits and len(self.read) % COMMIT_EVERY == 0:
                        self.committed |= self._consumer.commit()
            except myqueue.StaleLease:
                self.stale_leases += 1  # of another generation since the takeover: the messages come again
            except myqueue.MyQueueError as error:
                self.errors.append(error)
