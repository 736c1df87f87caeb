"""Periodic jobs of a process, on APScheduler."""

import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler

from myqueue.protocol.errors import Unavailable
from service.logs import Log

# More threads than any process has jobs: a hung job never delays another one.
_THREADS = 12


class Scheduler:
    """Runs jobs at their intervals. A failed job is logged and runs again; a slow one is not started twice."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._changing = threading.Lock()  # a process may be told to stop while it starts
        self._ending = False
        self._scheduler = BackgroundScheduler(
            executors={"default": ThreadPoolExecutor(_THREADS)},
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
            timezone="UTC",
        )
        # A job that takes longer than its interval skips a run, as it should; that is not worth a line each time.
        logging.getLogger("apscheduler.scheduler").setLevel(logging.ERROR)

    def add(self, name: str, seconds: float, job: Callable[[], None], *, at_once: bool = False) -> None:
        """Replaces the job of the same name. The first run is after the interval, or `at_once`."""

        def run() -> None:
            try:
                job()
            except Unavailable as error:
                self._log.warning("job did not get through", job=name, why=error.message)
            except Exception:  # noqa: BLE001 the next run is the retry
                self._log.exception("job failed", job=name)

        first = {"next_run_time": datetime.now(UTC)} if at_once else {}
        self._scheduler.add_job(run, "interval", seconds=seconds, id=name, name=name, replace_existing=True, **first)

    def start(self) -> None:
        with self._changing:
            if not self._scheduler.running and not self._ending:
                self._scheduler.start()

    def pause(self) -> None:
        """For good: no job begins any more. Those that run go on."""
        with self._changing:
            self._ending = True
            if self._scheduler.running:
                self._scheduler.pause()

    def stop(self) -> None:
        """Returns when the jobs that run have ended."""
        with self._changing:
            self._ending = True
            if self._scheduler.running:
                self._scheduler.shutdown(wait=True)
