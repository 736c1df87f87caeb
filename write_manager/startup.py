"""Startup: wait for PostgreSQL, migrate, take the epoch, load the catalog."""

import time

from sqlalchemy.exc import SQLAlchemyError

from db.catalog import next_id
from db.migrate import migrate
from db.primary import Primary
from myqueue.protocol.batch import Message, encode_body
from myqueue.protocol.errors import ManagerUnavailable, MetadataUnavailable, MyQueueError
from service.logs import Log
from write_manager.heartbeats import Heartbeats
from write_manager.metadata_cache import MetadataCache

PAUSE_S = 0.25


class Startup:
    def __init__(
        self, primary: Primary, cache: MetadataCache, heartbeats: Heartbeats, log: Log, *, name: str, timeout_s: float
    ) -> None:
        self._primary = primary
        self._cache = cache
        self._heartbeats = heartbeats
        self._log = log
        self._name = name
        self._timeout_s = timeout_s
        self._active = False

    def start(self) -> None:
        deadline_s = time.monotonic() + self._timeout_s
        while True:
            try:
                migrate(self._primary.engine)
                epoch = self._primary.take_over(self._name)
                break
            except (SQLAlchemyError, MetadataUnavailable) as error:
                if time.monotonic() > deadline_s:
                    raise
                self._log.info("waiting for PostgreSQL", why=str(error).splitlines()[0])
                time.sleep(PAUSE_S)
        encode_body([Message(b"")])  # Arrow's first encoding loads libraries, which would block the event loop
        # A standby has confirmed the epoch, and with it everything that is read from here on.
        with self._primary.reading() as session:
            self._cache.load(session)
            self._cache.first_new_consumer_id = next_id(session, "consumer")
        self._cache.loaded_s = time.monotonic()
        self._heartbeats.load()
        self._active = True
        self._log.info("active", epoch=epoch, topics=len(self._cache.topics))

    def stop(self) -> None:
        self._primary.close()

    def refusal(self) -> MyQueueError | None:
        if self._active:
            return None
        return ManagerUnavailable("the write manager is still starting", outcome="not_written", retry_after_s=1)

    def problem(self) -> str | None:
        return self._primary.problem() if self._active else "still starting"
