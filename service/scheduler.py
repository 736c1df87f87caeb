"""Periodic jobs of a process, on APScheduler."""

from collections.abc import Callable

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler

from myqueue.protocol.errors import Unavailable
from service.logs import Log

# More threads than any process has jobs: a hung job never delays another one.
_THREADS = 8


class Scheduler:
    """Runs jobs at their intervals. A failed job is logged and runs again; a slow one is not started twice."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._scheduler = BackgroundScheduler(
            executors={"default": ThreadPoolExecutor(_THREADS)},
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
            timezone="UTC",
        )

    def add(self, name: str, seconds: float, job: Callable[[], None]) -> None:
        """Replaces the job of the same name."""

        def run() -> None:
            try:
                job()
            except Unavailable as error:
                self._log.warning("job did not get through", job=name, why=error.message)
            except Exception:  # noqa: BLE001 the next run is the retry
                self._log.exception("job failed", job=name)

        self._scheduler.add_job(run, "interval", seconds=seconds, id=name, name=name, replace_existing=True)

    def start(self) -> None:
        if not self._scheduler.running:
            self._scheduler.start()

    def stop(self) -> None:
        if self._scheduler.running:
            self._scheduler.shutdown(wait=True)
