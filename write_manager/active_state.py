"""Whether this write manager is active, as every request asks it; runs on the event loop."""

import asyncio
import math
import time
from collections.abc import Callable
from enum import Enum, auto

from myqueue.protocol import http_headers, internal
from myqueue.protocol.errors import ManagerUnavailable, MetadataUnavailable, MyQueueError, StandbyManager
from myqueue.protocol.internal import WriteManagerStatus
from service.http_messages import Headers, HttpRequest, HttpResponse
from service.router import Router
from write_manager.manager_lease_renewal import ManagerLeaseRenewal

TICK_S = 0.25
VERIFY_WAIT_S = 1.5  # for a renewal of the lease that is late, as on a busy machine
VERIFY_PAUSE_S = 0.02


class ManagerRole(Enum):
    """In this order, each at most once in the life of a process."""

    STANDBY = auto()
    ACTIVE = auto()
    ENDED = auto()  # fenced, or the lease is lost: the process is about to exit


class ActiveState:
    def __init__(
        self,
        name: str,
        renewal: ManagerLeaseRenewal,
        *,
        max_pause_s: float,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """A process that was paused for longer than `max_pause_s` answers nothing before it has tried to renew its
        lease: another one may have taken over meanwhile."""
        self._name = name
        self._renewal = renewal
        self._max_pause_s = max_pause_s
        self._now_s = now_s
        self.role = ManagerRole.STANDBY
        self.epoch: int | None = None
        self._ticked_s = math.inf
        self._paused_s = -math.inf
        self._verifying: asyncio.Task[None] | None = None

    def activate(self, epoch: int) -> None:
        """Called on the event loop."""
        if self.role is not ManagerRole.STANDBY:
            return
        self.epoch = epoch
        self.role = ManagerRole.ACTIVE
        self._tick()

    def end(self) -> None:
        """From any thread."""
        self.role = ManagerRole.ENDED

    def _tick(self) -> None:
        self._was_paused()
        self._ticked_s = self._now_s()
        asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _was_paused(self) -> bool:
        """And no renewal was tried since."""
        now_s = self._now_s()
        if now_s - self._ticked_s > self._max_pause_s:
            self._paused_s = now_s
        return self._paused_s >= self._renewal.attempted_s

    def refusal(self) -> MyQueueError | None:
        """The gate of the public listener, which is open only while this process is active."""
        if self.role is ManagerRole.ACTIVE and not self._was_paused():
            return None
        return ManagerUnavailable("this write manager is not active", outcome="not_written", retry_after_s=1)

    def internal_refusal(self) -> MyQueueError | None:
        if self.role is not ManagerRole.ACTIVE:
            return StandbyManager(retry_after_s=1)
        return self.refusal()

    def headers(self) -> Headers:
        """Of every answer of the internal listener: callers do not use one that is older than another they have got."""
        return [] if self.epoch is None else [(http_headers.EPOCH.lower(), str(self.epoch))]

    def is_verified(self) -> bool:
        return self._renewal.is_verified()

    def verified_since_s(self) -> float:
        return self._renewal.verified_since_s()

    async def await_verified(self) -> None:
        """Before an answer that only memory backs: waits for a renewal that is late, not for PostgreSQL to be back."""
        if self._is_late():
            if self._verifying is None or self._verifying.done():
                self._verifying = asyncio.create_task(self._until_not_late())
            await asyncio.wait([self._verifying], timeout=VERIFY_WAIT_S)
        self.check_verified()

    async def _until_not_late(self) -> None:
        """One for all requests that wait: the machine is busy already."""
        while self._is_late():
            await asyncio.sleep(VERIFY_PAUSE_S)

    def _is_late(self) -> bool:
        return self.role is ManagerRole.ACTIVE and not self._renewal.is_verified() and self._renewal.problem() is None

    def check_verified(self) -> None:
        """The same, without waiting."""
        if not self._renewal.is_verified():
            raise ManagerUnavailable(
                "the write manager cannot verify right now that it is the active one",
                outcome="not_written",
                retry_after_s=1,
            )

    def check_database(self) -> None:
        """Before a request that has to be stored: it need not wait for a server that is known to be away."""
        if self._renewal.problem() is not None:
            raise MetadataUnavailable(outcome="not_written", retry_after_s=1)

    def problem(self) -> str | None:
        return "standby" if self.role is ManagerRole.STANDBY else None if self.refusal() is None else "not active"

    def status(self) -> WriteManagerStatus:
        is_active = self.refusal() is None
        return {
            "status": "success",
            "name": self._name,
            "active": is_active,
            "epoch": self.epoch,
            "degraded": self._renewal.problem() if is_active else None,
        }


def add_status_route(router: Router, state: ActiveState) -> None:
    async def status(_: HttpRequest) -> HttpResponse:
        return HttpResponse.json(state.status())

    router.add(internal.WRITE_MANAGER_STATUS, status, quiet=True, gated=False, limited=False)
