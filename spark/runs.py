"""One run of a job: begun and ended at the statistics API, and kept alive there while it works."""

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from myqueue.protocol.errors import MyQueueError, RunEnded, RunNotFound
from spark.stats_calls import StatsCalls


class RunStopped(Exception):
    """The run must not go on."""


class Run:
    """A context: what leaves it by an exception has failed. `stop` may come from any thread."""

    def __init__(self, calls: StatsCalls, job: str, holder: str, trigger: str, tick: int | None = None) -> None:
        self._calls = calls
        begun = calls.begin(job, holder, trigger, tick)
        self.job = job
        self.run_id: int = begun["run_id"]
        self.doing = "starting Spark"  # for whoever watches
        self.rows = 0
        self.fails: str | None = None  # the work was done, and found that something is wrong
        self._lease_s: float = begun["lease_ms"] / 1000
        self._stopped: str | None = None
        self._lock = threading.Lock()  # over what stops it
        self._on_stop: Callable[[], None] | None = None
        self._done = threading.Event()
        self._renewer = threading.Thread(target=self._keep, name=f"renew-{job}", daemon=True)
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
            return  # there is nothing left to end
        message = self.fails if error is None else (self._stopped or said(error))
        try:
            self._calls.end(self.run_id, succeeded=message is None, rows=self.rows, message=message)
        except MyQueueError:
            # Its lease runs out by itself. What went wrong before says more than this.
            if error is None:
                raise

    def _keep(self) -> None:
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


def said(error: BaseException) -> str:
    """Its message without what Spark's errors have behind it: a Java stack, a query's plan. Never empty."""
    text = str(getattr(error, "message", None) or error)
    for end in ("JVM stacktrace", "=== Streaming Query ==="):
        text = text.split(end, 1)[0]
    return text.strip() or type(error).__name__
