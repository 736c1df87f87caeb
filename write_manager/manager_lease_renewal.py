"""Renews the lease of the active write manager, on a thread and a connection of its own, and knows when it last did."""

import math
import threading
import time
from collections.abc import Callable

from db.manager_lease import LeaseRenewed, ManagerLease
from myqueue.protocol.errors import MetadataUnavailable
from service.logs import Log
from write_manager.takeover import counts_as_sent_s

RETRY_S = 0.2  # while renewals fail, or prove nothing
STOP_TIMEOUT_S = 2.0


class ManagerLeaseRenewal:
    """While PostgreSQL does not answer, nobody can take the lease either: the holder goes on, unverified.

    So it does while no standby of PostgreSQL confirms: a primary that was replaced takes renewals as well.
    """

    def __init__(
        self,
        lease: ManagerLease,
        on_lost: Callable[[str], None],
        log: Log,
        *,
        interval_s: float,
        verified_for_s: float,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_lost` gets why the lease, or the right to write, is another one's from now on."""
        self._lease = lease
        self._on_lost = on_lost
        self._log = log
        self._interval_s = interval_s
        self._verified_for_s = verified_for_s
        self._now_s = now_s
        self._renewing = threading.Lock()
        self._changing = threading.Lock()  # the process may be told to stop while the lease is taken
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._epoch = 0
        self._expected: set[int] = {0}  # epochs that the row may have: a renewal may have an unknown outcome
        self._timeline: int | None = None
        self._pending: tuple[str, float] | None = None  # the renewal to be confirmed: its place, and when it was sent
        self._since_s = math.inf  # since when it has been verified without a gap
        self.verified_s = -math.inf  # when the last renewal that proves something counts as sent
        self.attempted_s = -math.inf  # when the last renewal that has ended, in any way, was sent
        self._failing_since_s: float | None = None
        self._unconfirmed_since_s: float | None = None

    def start(self) -> None:
        """The lease was taken. It is released at once if the process stops already."""
        with self._changing:
            if not self._stopping.is_set():
                self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
                self._thread.start()
                return
        self._release()

    def hold(self, epoch: int, timeline: int) -> None:
        """Store the epoch that was taken on that timeline."""
        with self._renewing:
            self._epoch = epoch
            self._timeline = timeline
            self._expected.add(epoch)
            self._renew()
        if self._expected != {epoch}:
            raise MetadataUnavailable(outcome="unknown")

    def is_verified(self) -> bool:
        """No other write manager has been active yet, and none will be for a while."""
        return self._now_s() - self.verified_s <= self._verified_for_s

    def verified_since_s(self) -> float:
        """Since when without a gap; infinite while it is not."""
        return self._since_s if self.is_verified() else math.inf

    def problem(self) -> str | None:
        """PostgreSQL is away, or cannot store anything for sure; not merely late once."""
        if self.is_verified():
            return None
        if self._failing_since_s is not None:
            return f"PostgreSQL has not answered for {self._now_s() - self._failing_since_s:.0f} s"
        if self._unconfirmed_since_s is not None:
            return f"no standby of PostgreSQL has confirmed for {self._now_s() - self._unconfirmed_since_s:.0f} s"
        return None

    def _run(self) -> None:
        wait_s = 0.0
        while not self._stopping.wait(wait_s):
            with self._renewing:
                if not self._stopping.is_set():
                    self._renew()
            wait_s = self._interval_s if self._failing_since_s is None and self.is_verified() else RETRY_S

    def _renew(self) -> None:
        sent_s = self._now_s()
        try:
            renewed = self._lease.renew(self._epoch, self._expected, self._pending[0] if self._pending else None)
        except MetadataUnavailable as error:
            if self._failing_since_s is None:
                self._failing_since_s = sent_s
                self._log.warning("lease not renewed: PostgreSQL does not answer", why=str(error.__cause__ or error))
        else:
            if self._failing_since_s is not None:
                self._log.info("PostgreSQL answers again", after_s=round(sent_s - self._failing_since_s, 1))
                self._failing_since_s = None
            if renewed is None:
                self._on_lost("another write manager has taken the lease")
            elif self._epoch and renewed.epoch != self._epoch:
                self._on_lost("another write manager has taken over")
            elif self._timeline not in (None, renewed.timeline):
                self._on_lost(f"PostgreSQL is on timeline {renewed.timeline} now, no longer on {self._timeline}")
            else:
                self._expected = {self._epoch}
                self._verify(renewed, sent_s)
        finally:
            self.attempted_s = sent_s

    def _verify(self, renewed: LeaseRenewed, sent_s: float) -> None:
        pending = self._pending
        if pending is not None and not renewed.confirmed:
            if self._unconfirmed_since_s is None and not self.is_verified():
                self._unconfirmed_since_s = pending[1]
                self._log.warning("no standby of PostgreSQL confirms: leases are refused, commits too")
            return
        if self._unconfirmed_since_s is not None:
            self._log.info("a standby confirms again", after_s=round(sent_s - self._unconfirmed_since_s, 1))
            self._unconfirmed_since_s = None
        self._pending = renewed.written, sent_s
        if pending is not None:
            if not self.is_verified():
                self._since_s = self._now_s()  # before the line below: others read both
            self.verified_s = counts_as_sent_s(sent_s, pending[1], verified_for_s=self._verified_for_s)

    def cease(self) -> None:
        """Renew no more: this process is not to be active, and the next one need not wait until it has stopped."""
        self._stopping.set()

    def stop(self) -> None:
        """Release the lease, if it was taken and is still held. Nothing may be answered any more."""
        with self._changing:
            self._stopping.set()
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(STOP_TIMEOUT_S)
            self._release()

    def _release(self) -> None:
        try:
            if self._lease.release(self._expected):
                self._log.info("lease released")
        except MetadataUnavailable as error:
            self._log.warning("lease not released: the next write manager waits for it", why=error.message)
