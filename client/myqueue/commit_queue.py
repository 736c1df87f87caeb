"""Commits that nobody waits for: one request at a time, with the newest offset of each partition."""

import asyncio
import logging
import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import NamedTuple

from myqueue.background_errors import BackgroundErrors
from myqueue.fetcher import ChangeCondition
from myqueue.io_thread import IoThread
from myqueue.lease_renewer import LeaseRenewer
from myqueue.protocol.errors import MyQueueError, StaleCommit, StaleLease
from myqueue.subscription_state import PartitionState, SubscriptionState

logger = logging.getLogger("myqueue")


def check_read(offsets: Mapping[int, int], subscription: SubscriptionState) -> None:
    """Raises for messages that were read before a seek, which must not be undone, or before another member had them."""
    positions = subscription.positions()
    for partition, offset in offsets.items():
        if offset > positions.get(partition, -1 if subscription.known else offset):
            raise _moved(partition)


def _moved(partition: int) -> StaleLease:
    return StaleLease(
        f"partition {partition} was sought, or had by another member, since the message was read",
        details={"partition_id": partition},
    )


class _Pending(NamedTuple):
    offset: int
    state: PartitionState | None  # the lease under which the messages were read; None: it has none
    resets: int


class CommitQueue:
    """Never moves a cursor back: an offset that a later commit has passed is dropped.

    An error is kept for the application's next call. The partition's next commit makes up for one that failed.
    """

    def __init__(
        self,
        io: IoThread,
        lease_renewer: LeaseRenewer,
        subscription: SubscriptionState,
        errors: BackgroundErrors,
        changed: ChangeCondition,
    ) -> None:
        self._io = io
        self._lease_renewer = lease_renewer
        self._subscription = subscription
        self._errors = errors
        self._changed = changed
        self._pending: dict[int, _Pending] = {}
        self._sending: Future[None] | None = None

    def add(self, offsets: dict[int, int]) -> None:
        """From any thread, with the lock held."""
        for partition, offset in offsets.items():
            state = self._subscription.get(partition)
            wanted = _Pending(offset, state, 0 if state is None else state.resets)
            before = self._pending.get(partition)
            if before is None or before[1:] != wanted[1:] or before.offset < offset:
                self._pending[partition] = wanted
        if self._sending is None and self._pending:
            self._sending = self._io.submit(self._send())

    async def flush(self, timeout_s: float) -> None:
        """Waits until all have an answer; in the background thread, without the lock."""
        deadline = time.monotonic() + timeout_s
        while (sending := self._sending) is not None and (left_s := deadline - time.monotonic()) > 0:
            await asyncio.wait([asyncio.wrap_future(sending)], timeout=left_s)

    async def _send(self) -> None:
        while True:
            with self._changed:
                offsets = self._due()
                if not offsets:
                    self._sending = None
                    return
            while offsets:
                try:
                    await self._lease_renewer.commit(offsets)
                    break
                except MyQueueError as error:
                    partition: int = error.details.get("partition_id", -1)
                    if not isinstance(error, StaleCommit):  # else another commit has passed this one
                        self._failed(error)
                    if not isinstance(error, StaleCommit | StaleLease) or offsets.pop(partition, None) is None:
                        break
                except Exception as error:
                    # The queue must survive a defect; the application gets it as an error.
                    logger.exception("committing")
                    self._failed(MyQueueError(f"defect while committing: {error!r}"))
                    break

    def _due(self) -> dict[int, int]:
        """The lock is held."""
        offsets: dict[int, int] = {}
        for partition, (offset, state, resets) in self._pending.items():
            if self._subscription.get(partition) is not state or (state is not None and state.resets != resets):
                self._errors.commit = _moved(partition)
            elif state is None or offset > state.committed:
                offsets[partition] = offset
        self._pending = {}
        return offsets

    def _failed(self, error: MyQueueError) -> None:
        with self._changed:
            self._errors.commit = error
            self._changed.notify_all()
