"""The life of a write manager: standby, then active, then exit.

A process is active once at most. One that is fenced, has lost its lease or finds PostgreSQL on another timeline exits
and is started again as a standby: nothing that it has in memory outlives the right to it.
"""

import asyncio
import math
import threading
import time
from collections.abc import Callable

from sqlalchemy.exc import SQLAlchemyError

from db.catalog import next_id
from db.manager_lease import LeaseLook, ManagerLease
from db.migrate import migrate
from db.primary import Fenced, Primary
from db.timeouts import ANSWER_TIMEOUT_S
from myqueue.protocol.batch import Message, encode_body
from myqueue.protocol.errors import MetadataUnavailable
from service.logs import Log
from service.scheduler import Scheduler
from write_manager.active_state import ActiveState, ManagerRole
from write_manager.heartbeats import Heartbeats
from write_manager.manager_lease_renewal import ManagerLeaseRenewal
from write_manager.metadata_cache import MetadataCache
from write_manager.takeover import WatchedLease, lease_grace_s, silence_to_take_over, watch

LOOK_INTERVAL_S = 0.25
RETRY_S = 0.25
PROBE_INTERVAL_S = 1.0


class Activation:
    """A part: `start` returns when this process is active, which may be never."""

    def __init__(
        self,
        lease: ManagerLease,
        renewal: ManagerLeaseRenewal,
        state: ActiveState,
        primary: Primary,
        cache: MetadataCache,
        heartbeats: Heartbeats,
        scheduler: Scheduler,
        loop: asyncio.AbstractEventLoop,
        log: Log,
        *,
        name: str,
        takeover_s: float,
        lease_s: float,
        exit_process: Callable[[], None],
    ) -> None:
        self._lease = lease
        self._renewal = renewal
        self._state = state
        self._primary = primary
        self._cache = cache
        self._heartbeats = heartbeats
        self._scheduler = scheduler
        # From the start, not from the activation on: a standby must not believe a primary that was replaced either.
        self._probes = Scheduler(log)
        self._probes.add("probe", PROBE_INTERVAL_S, lambda: primary.servers.probe(ANSWER_TIMEOUT_S))
        self._loop = loop
        self._log = log
        self._name = name
        self._takeover_s = takeover_s
        self._lease_s = lease_s
        self._exit_process = exit_process
        self._stopping = threading.Event()
        self._ending = threading.Lock()

    def start(self) -> None:
        encode_body([Message(b"")])  # Arrow's first encoding loads libraries, which would block the event loop
        self._probes.start()
        silent_s = self._stand_by()
        if silent_s is None:
            self._probes.stop()  # it may have been told to stop before they started
            return
        self._log.info("lease taken", holder_was_silent_s=None if silent_s == math.inf else round(silent_s, 2))
        self._renewal.start()
        epoch = self._activate(silent_s)
        if epoch is None or self._stopping.is_set():
            self._stopping.wait()  # `start` of a process that is not active must not return before it stops
            return
        self._scheduler.start()
        self._loop.call_soon_threadsafe(self._state.activate, epoch)
        self._log.info("active", epoch=epoch, topics=len(self._cache.topics))

    def _stand_by(self) -> float | None:
        """Until the lease is taken: how long its holder was silent. None when the process stops.

        Logs each reason to stand by once, until there is another one.
        """
        watched: WatchedLease | None = None
        said = ""
        while not self._stopping.is_set():
            sent_s = time.monotonic()
            try:
                look = self._lease.look()
                if look is None:  # however many find that, one migrates
                    migrate(self._primary.engine)
                    why, detail = "there was no lease in the database before it was migrated", None
                else:
                    watched = watch(watched, look.record, time.monotonic())
                    silent_s = silence_to_take_over(
                        watched, look, name=self._name, sent_s=sent_s, takeover_s=self._takeover_s
                    )
                    if silent_s is not None and self._lease.take(look.record):
                        self._lease.stop_watching()
                        return silent_s
                    why, detail = _why_not(look, self._name), None
            except (SQLAlchemyError, MetadataUnavailable) as error:
                watched = None  # whoever could not reach the server could not renew either
                why, detail = "PostgreSQL does not answer", _first_line(error)
            if why != said:
                self._log.info("standby", why=why, detail=detail)
                said = why
            self._stopping.wait(LOOK_INTERVAL_S)
        return None

    def _activate(self, silent_s: float) -> int | None:
        """The epoch; None when the lease was lost first, or the process stops."""
        said = ""
        while not self._stopping.is_set():
            try:
                return self._try_to_activate(silent_s)
            except Fenced:
                self.end("another write manager has taken the lease")
                return None
            except (SQLAlchemyError, MetadataUnavailable) as error:
                if _first_line(error) != said:
                    said = _first_line(error)
                    self._log.warning("not active yet", why=said)
            if self._state.role is ManagerRole.ENDED:
                return None
            self._stopping.wait(RETRY_S)
        return None

    def _try_to_activate(self, silent_s: float) -> int:
        """Each step may be repeated after one that failed. The epoch is taken again if the outcome of its commit is
        unknown: numbers may be left out."""
        ended = self._lease.end_predecessors_sessions()
        if ended:
            self._log.info("sessions of the write manager before ended", count=ended)
        migrate(self._primary.engine)
        epoch = self._primary.epoch or self._primary.take_over(self._name, leased=True)
        assert self._primary.epoch_timeline is not None
        self._renewal.hold(epoch, self._primary.epoch_timeline)
        # A standby has confirmed the epoch, and with it everything that is read from here on.
        with self._primary.reading() as session:
            self._cache.load(session)
            self._cache.first_new_consumer_id = next_id(session, "consumer")
        self._heartbeats.load()
        self._cache.activated_s = now_s = time.monotonic()
        self._cache.leases_from_s = now_s + lease_grace_s(silent_s, lease_s=self._lease_s, takeover_s=self._takeover_s)
        return epoch

    def end(self, why: str) -> None:
        """This process must not be active any more. From any thread."""
        with self._ending:
            if self._state.role is ManagerRole.ENDED or self._stopping.is_set():
                return
            self._state.end()
        self._renewal.cease()
        self._log.error("not active any more", why=why)
        self._exit_process()

    def stop(self) -> None:
        """All requests are answered and all cursors stored: the next one may take over now.

        The release does not wait for jobs that still run, for they are fenced then; the end of the process does.
        """
        self._stopping.set()
        self._renewal.stop()
        self._probes.stop()
        self._scheduler.stop()
        self._lease.close()
        self._primary.close()

    def problem(self) -> str | None:
        return self._primary.problem() if self._state.role is ManagerRole.ACTIVE else None


def _why_not(look: LeaseLook, name: str) -> str:
    """Why the lease is not to be taken now."""
    if not look.has_standby:
        return "no standby of PostgreSQL follows this server: it could confirm no epoch, and may have been replaced"
    if look.record.holder == name:
        return f"{name} holds the lease: another process has the same --name; give each its own"
    return f"{look.record.holder} holds the lease"


def _first_line(error: Exception) -> str:
    return str(error.__cause__ or error).splitlines()[0]
