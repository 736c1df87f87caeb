"""Lease watch: wakes polls that wait when the leases of their members change.

One request waits at the write manager for the members of all polls here. When it fails, or the write manager is another
one, polls go on renewing their leases at an interval.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from myqueue.protocol.errors import MyQueueError
from read_manager.write_manager_client import AsyncWriteManagerClient
from service.logs import Log

WAIT_S = 3.0  # of the request at the write manager
RETRY_PAUSE_S = 0.3
UNKNOWN = -1  # the number of the last change


class WaitingMember:
    """A poll that waits: `changed` is done once its member's leases have changed since it was made."""

    __slots__ = ("changed",)

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(self) -> None:
        if not self.changed.done():
            self.changed.set_result(None)


class LeaseWatch:
    """Runs on the event loop."""

    def __init__(self, write_manager: AsyncWriteManagerClient, log: Log) -> None:
        """`write_manager` is used for nothing else: a long wait must not take the connection of another call."""
        self._write_manager = write_manager
        self._log = log
        self._waiting: dict[tuple[int, str], set[WaitingMember]] = {}
        self._following: asyncio.Task[None] | None = None
        self._stopping = False

    @contextmanager
    def watched(self, consumer_id: int, member: str) -> Iterator[WaitingMember]:
        """Enter it before the leases are asked for: a change that comes before their answer is seen too."""
        key = (consumer_id, member)
        waiting = WaitingMember()
        self._waiting.setdefault(key, set()).add(waiting)
        if self._following is None and not self._stopping:
            self._following = asyncio.create_task(self._follow())
        try:
            yield waiting
        finally:
            others = self._waiting[key]
            others.discard(waiting)
            if not others:
                del self._waiting[key]

    def stop(self) -> None:
        """All waiting polls return now."""
        self._stopping = True
        if self._following is not None:
            self._following.cancel()
        self._wake_all()

    async def _follow(self) -> None:
        """Runs from the first poll that waits to the end of the process."""
        now_s = asyncio.get_running_loop().time
        last = UNKNOWN
        while True:
            asked_s = now_s()
            try:
                answer = await self._write_manager.lease_changes(last, WAIT_S)
            except MyQueueError as error:
                self._log.info("lease changes are not followed for a moment", why=error.message)
                await asyncio.sleep(RETRY_PAUSE_S)
                continue
            if not answer["complete"]:
                self._wake_all()  # something may have changed for any of them
            for change in answer["changed"]:
                for waiting in self._waiting.get((change["consumer_id"], change["member"]), ()):
                    waiting.wake()
            if answer["last"] == last and now_s() - asked_s < WAIT_S / 2:
                await asyncio.sleep(RETRY_PAUSE_S)  # the write manager stops, and lets no request wait
            last = answer["last"]

    def _wake_all(self) -> None:
        for polls in self._waiting.values():
            for waiting in polls:
                waiting.wake()
