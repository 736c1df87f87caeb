"""One run of a job: begins and ends at the statistics API, and renews its lease there meanwhile."""

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from myqueue.protocol.errors import MyQueueError, RunEnded, RunNotFound
from spark.stats_client import StatsClient


class RunStopped(Exception):
    """Raised in a run that has to end."""


class JobRun:
    """A context manager: an exception fails the run. Any thread may call `stop`."""

    def __init__(self, calls: StatsClient, job: str, holder: str, trigger: str, tick: int | None = None) -> None:
        self._calls = calls
        begun = calls.begin(job, holder, trigger, tick)
        self.job = job
        self.run_id: int = begun["run_id"]
        self.doing = "starting Spark"  # shown as progress
        self.rows = 0
        self.left_out = 0
        self.fails: str | None = None  # why a run that completed counts as failed
        self._lease_s: float = begun["lease_ms"] / 1000
        self._stopped: str | None = None
        self._lock = threading.Lock()  # guards `_stopped` and `_on_stop`
        self._on_stop: Callable[[], None] | None = None
        self._done = threading.Event()
        self._renewer = threading.Thread(target=self._renew_lease, name=f"renew-{job}", daemon=True)
        self._renewer.start()

    def check(self) -> None:
        if self._stopped is not None:
            raise RunStopped(self._stopped)

    def stop(self, why: str) -> None:
        with self._lock:
            if self._stopped is not None or self._done.is_set():
                return
            self._stopped = why
            on_stop = self._on_stop
        if on_stop is not None:
            on_stop()

    def on_stop(self, act: Callable[[], None]) -> None:
        """Called once when the run is stopped; at once if it is already."""
        with self._lock:
            self._on_stop = act
            is_late = self._stopped is not None
        if is_late:
            act()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._done.set()
        self._renewer.join()
        if isinstance(error, RunEnded | RunNotFound):
            return  # it has ended already
        message = self.fails if error is None else (self._stopped or error_summary(error))
        try:
            self._calls.end(
                self.run_id, succeeded=message is None, rows=self.rows, left_out=self.left_out, message=message
            )
        except MyQueueError:
            # Its lease expires. The earlier error says more than this one.
            if error is None:
                raise

    def _renew_lease(self) -> None:
        renewed = time.monotonic()
        while not self._done.wait(min(self._lease_s / 3, max(0.0, renewed + self._lease_s - time.monotonic()))):
            asked = time.monotonic()
            left_s = renewed + self._lease_s - asked
            if left_s <= 0:
                self.stop("its lease could not be renewed in time")
                return
            try:
                self._calls.renew(self.run_id, within_s=left_s)
                renewed = asked
            except MyQueueError as error:
                if not error.retriable:
                    self.stop(f"another run may have taken its place: {error.message}")
                    return


def error_summary(error: BaseException) -> str:
    """The message without the Java stack and query plan that Spark appends. Never empty."""
    text = str(getattr(error, "message", None) or error)
    for end in ("JVM stacktrace", "=== Streaming Query ==="):
        text = text.split(end, 1)[0]
    return text.strip() or type(error).__name__
