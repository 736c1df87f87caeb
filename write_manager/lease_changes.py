"""Lease changes: which members of consumers should poll now, because their leases are not those of their last answer.

A read manager waits for them with one request for all of its members. What it misses costs nothing but time: every
member also polls at an interval.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from pydantic import TypeAdapter

from myqueue.protocol import internal
from myqueue.protocol.internal import LeaseChangesAnswer, LeaseChangesRequest
from service.http_messages import HttpRequest, HttpResponse
from service.router import Router

REMEMBERED = 4096  # changes; a read manager that is further behind lets all of its members poll
LONGEST_WAIT_MS = 10_000
_REQUEST = TypeAdapter(LeaseChangesRequest)


class LeaseChanges:
    """Runs on the event loop."""

    def __init__(self, epoch: Callable[[], int | None]) -> None:
        """`epoch` of the write manager: its numbers are above those of all earlier ones."""
        self._epoch = epoch
        self._count = 0
        self._changes: deque[tuple[int, str]] = deque(maxlen=REMEMBERED)
        self._waiting: set[asyncio.Future[None]] = set()
        self._stopping = False

    def publish(self, consumer_id: int, members: Iterable[str]) -> None:
        before = self._count
        for member in members:
            self._changes.append((consumer_id, member))
            self._count += 1
        if self._count > before:
            self._wake()

    async def since(self, request: LeaseChangesRequest) -> LeaseChangesAnswer:
        """The changes after number `after`; waits while there are none."""
        base = (self._epoch() or 0) << 32
        after = request["after"] - base
        if after == self._count and not self._stopping:
            await self._wait(min(request["wait_ms"], LONGEST_WAIT_MS) / 1000)
        missing = self._count - after
        known = 0 <= missing <= len(self._changes)
        changed = list(self._changes)[len(self._changes) - missing :] if known else []
        return {
            "status": "success",
            "last": base + self._count,
            "complete": known,
            "changed": [{"consumer_id": consumer_id, "member": member} for consumer_id, member in changed],
        }

    def stop(self) -> None:
        """Answer all waiting requests now."""
        self._stopping = True
        self._wake()

    async def _wait(self, seconds: float) -> None:
        woken = asyncio.get_running_loop().create_future()
        self._waiting.add(woken)
        try:
            await asyncio.wait([woken], timeout=seconds)
        finally:
            self._waiting.discard(woken)

    def _wake(self) -> None:
        for woken in self._waiting:
            if not woken.done():
                woken.set_result(None)


def add_lease_change_routes(router: Router, changes: LeaseChanges) -> None:
    async def since(request: HttpRequest) -> HttpResponse:
        return HttpResponse.json(await changes.since(request.parse_internal(_REQUEST)))

    router.add(internal.LEASE_CHANGES, since, quiet=True)
    router.on_stop(changes.stop)
