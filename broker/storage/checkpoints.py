"""Moves what is in the WAL into the database file, beside the writing thread and not on it."""

import threading
from collections.abc import Callable

import apsw

from broker.storage.database import PAGE_BYTES, Database
from broker.storage.writer import fail_stop
from service.logs import Log as Logger


class Checkpoints:
    def __init__(
        self, database: Database, logger: Logger, *, wal_bytes: int, on_failure: Callable[[], None] = fail_stop
    ) -> None:
        self._database = database
        self._logger = logger
        self._wanted_frames = max(1, wal_bytes // PAGE_BYTES)
        self._on_failure = on_failure
        self._wake = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None
        database.on_commit = self._after_commit

    def _after_commit(self) -> None:
        if self._database.wal_frames >= self._wanted_frames:
            self._wake.set()

    def start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            self._wake.wait()
            if self._stopping:
                return
            self._wake.clear()
            try:
                self._database.checkpoint()
            except (apsw.BusyError, apsw.FullError) as error:
                self._logger.warning("checkpoint has to wait", error=str(error))
            except apsw.Error:
                self._logger.exception("a checkpoint failed; the process stops")
                self._on_failure()
                raise
