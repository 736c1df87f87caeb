"""Renews a consumer's leases, commits handled messages, and releases partitions in a rebalance.

A renewal waits at the server until the member's leases change, so that a rebalance takes milliseconds and not the
interval of renewals. A server that does not wait, or a wait that fails, is followed by renewals at that interval.

While the cluster answers that it cannot decide about leases (503: PostgreSQL or the write manager is away), the member
goes on with the leases that it has.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any

from myqueue.async_transport import AsyncTransport
from myqueue.background_errors import COMMITS, LEASES, BackgroundErrors
from myqueue.fetch_connection import FetchConnection
from myqueue.fetcher import ChangeCondition
from myqueue.http_connection import NoResponse
from myqueue.member_identity import MemberIdentity
from myqueue.poll_interval import PollInterval
from myqueue.protocol import routes
from myqueue.protocol.errors import (
    ConsumerNotFound,
    InvalidRequest,
    MyQueueError,
    Overloaded,
    StaleCommit,
    StaleLease,
    TopicNotFound,
    Unavailable,
)
from myqueue.simple_api import new_key
from myqueue.subscription_state import PartitionLease, PartitionState, SubscriptionState
from myqueue.transport import SHORTEST_ATTEMPT_S, Response

logger = logging.getLogger("myqueue")

COMMIT_EVERY_S = 1.0
FIRST_LEASE_S = 3.0  # until the first response says how long a lease is
LEAVE_S = 5.0
AGAIN_S = 0.02  # between two renewals at least, unless the leases have changed
RENEWALS_PER_LEASE = 3


class LeaseRenewer:
    """A task of the background thread, in which all methods are called.

    `changed` guards the subscription, which the application's thread uses too; it is never held during a request.
    """

    def __init__(
        self,
        transport: AsyncTransport,
        consumer_id: int,
        identity: MemberIdentity,
        subscription: SubscriptionState,
        errors: BackgroundErrors,
        changed: ChangeCondition,
        *,
        auto_commit: bool,
        poll_interval: PollInterval,
        progress: Callable[[], int],
        leased: Callable[[], None],
        before_release: Callable[[], Awaitable[None]],
    ) -> None:
        """`poll_interval` and `progress` are those of the member in all its topics. `leased` is called, with the lock
        held, after every renewal; `before_release` waits for commits that are on their way."""
        self._transport = transport
        self._path = {"consumer_id": consumer_id}
        self._member = identity.member
        self._names = identity.as_json()  # in polls
        self._subscription = subscription
        self._errors = errors
        self._changed = changed
        self._auto_commit = auto_commit
        self._poll_interval = poll_interval
        self._progress = progress
        self._has_left = False  # the member, because the application stays away
        self._leased = leased
        self._before_release = before_release
        self._lease_s = FIRST_LEASE_S
        self._assignment: str | None = None  # of the last answer; None: the server cannot wait for a change
        self._connection = FetchConnection(transport.url)  # of renewals, one at a time
        self._no_wait_until = 0.0
        self._urgent = 0  # commits that want to renew without waiting
        self._woken = asyncio.Event()
        self.committing = asyncio.Lock()  # one commit at a time
        self._renewing = asyncio.Lock()
        self._waiting: asyncio.Task[Response] | None = None  # the renewal that waits
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    def wake(self) -> None:
        """Renews now instead of at the next interval."""
        self._woken.set()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._connection.close()

    async def leave(self) -> None:
        """Releases all leases, so that other members need not wait for their expiry."""
        body = {"member": self._member, "max_messages": 0, "leave": True}
        try:
            await self._transport.call(routes.POLL, path=self._path, body=body, deadline_s=LEAVE_S)
        except MyQueueError as error:
            logger.warning("the leases of consumer %s run out by themselves: %s", self._path["consumer_id"], error)

    async def commit(self, offsets: dict[int, int], *, deadline_s: float | None = None) -> dict[int, int]:
        """Commits the offsets under this member's leases; the cursors after that."""
        before = self._states(offsets)
        async with self.committing:
            self._check_held(offsets, before)
            return await self._commit_renewed(offsets, deadline_s)

    async def commit_handled(self, *, include_in_flight: bool, deadline_s: float | None = None) -> None:
        """Commits what is handled and not committed yet, without partitions that were leased away meanwhile."""
        async with self.committing:
            await self._commit_handled(include_in_flight=include_in_flight, deadline_s=deadline_s)

    async def _commit_handled(self, *, include_in_flight: bool, deadline_s: float | None) -> None:
        while offsets := self._uncommitted(include_in_flight):
            try:
                await self._commit_renewed(offsets, deadline_s)
            except (StaleLease, StaleCommit) as error:
                partition = error.details.get("partition_id")
                with self._changed:
                    state = self._subscription.get(partition) if isinstance(partition, int) else None
                    if state is None or state.leased_until <= time.monotonic():
                        return  # the owner is unknown: commit after the next renewal
                    self._subscription.lose(state.partition)
                logger.info("partition %s went to another member before its commit: %s", partition, error)
            else:
                return

    def _uncommitted(self, include_in_flight: bool) -> dict[int, int]:
        with self._changed:
            handled = self._subscription.handled(include_in_flight=include_in_flight)
            return {
                state.partition: handled[state.partition]
                for state in self._subscription
                if handled[state.partition] > state.committed
            }

    async def _commit_renewed(self, offsets: dict[int, int], deadline_s: float | None) -> dict[int, int]:
        """Commits. After a refusal, renews once: a new write manager may have granted this member the lease again."""
        before = self._states(offsets)
        try:
            return await self._commit(offsets, deadline_s)
        except StaleLease:
            await self._renew_now()
            if self._states(offsets) != before:
                raise
        return await self._commit(offsets, deadline_s)

    def _check_held(self, partitions: Iterable[int], before: list[tuple[PartitionState | None, int]]) -> None:
        """A lease that came while the commit waited for its turn does not cover what was read under another one."""
        for partition, held, now in zip(partitions, before, self._states(partitions), strict=True):
            if held[0] is not None and held != now:
                raise StaleLease(
                    f"partition {partition} was sought, or had by another member, while the commit waited",
                    details={"partition_id": partition},
                )

    def _states(self, partitions: Iterable[int]) -> list[tuple[PartitionState | None, int]]:
        """Identifies the current leases of these partitions: a lease that was lost or reset compares unequal."""
        with self._changed:
            held = [self._subscription.get(partition) for partition in partitions]
            return [(state, 0 if state is None else state.resets) for state in held]

    async def _commit(self, offsets: dict[int, int], deadline_s: float | None) -> dict[int, int]:
        with self._changed:
            held = {state.partition: state.generation for state in self._subscription}
        wanted: list[dict[str, int]] = []
        for partition, offset in offsets.items():
            lease = {"generation": held[partition]} if partition in held else {}
            wanted.append({"partition_id": partition, "offset": offset} | lease)
        if not wanted:
            return {}
        response = await self._transport.call(
            routes.COMMIT,
            path=self._path,
            body={"member": self._member, "offsets": wanted},
            idempotency_key=new_key(),
            deadline_s=deadline_s,
        )
        answer = response.body
        cursors = {int(cursor["partition_id"]): int(cursor["offset"]) for cursor in answer["cursors"]}
        with self._changed:
            for partition, offset in cursors.items():
                if partition in held:
                    self._subscription.committed(partition, offset, held[partition])
        return cursors

    async def _run(self) -> None:
        commit_at = time.monotonic() + COMMIT_EVERY_S
        while True:
            self._woken.clear()
            released: list[int] = []
            at_once = False
            try:
                with self._changed:
                    released = self._subscription.to_release()
                if released:
                    await self._before_release()
                if self._auto_commit and (released or time.monotonic() >= commit_at):
                    await self._commit_quietly()
                    commit_at = time.monotonic() + COMMIT_EVERY_S
                if await self._left_for_long():
                    await self._woken.wait()
                    at_once = True
                elif self._may_wait():
                    at_once = await self._await_change(commit_at)
                else:
                    await self._renew(released)
                    at_once = self._may_wait()
            except Exception as error:
                # The thread must survive a defect; the application gets it as an error.
                logger.exception("keeping the leases of consumer %s", self._path["consumer_id"])
                with self._changed:
                    whose = f"consumer {self._path['consumer_id']}"
                    self._errors.fatal = MyQueueError(f"defect while keeping the leases of {whose}: {error!r}")
                    self._changed.notify_all()
            with self._changed:
                self._subscription.expire(time.monotonic())
                to_release = self._subscription.to_release()
            if to_release:
                at_once = to_release != released
                await self._sleep(0 if at_once else AGAIN_S)
            elif not at_once:
                until_commit_s = commit_at - time.monotonic() if self._auto_commit else self._lease_s
                interval_s = self._lease_s / RENEWALS_PER_LEASE
                await self._sleep(max(AGAIN_S, min(interval_s, until_commit_s, self._until_expiry_s())))

    async def _sleep(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()

    async def _left_for_long(self) -> bool:
        """The application stays away: others get its partitions, and it joins again with its next call."""
        with self._changed:
            found = self._poll_interval.check(self._progress(), time.monotonic())
            exceeded = self._poll_interval.is_exceeded
            leaves, self._has_left = exceeded and not self._has_left, exceeded
            if leaves:
                self._assignment = None
                for state in list(self._subscription):
                    self._subscription.lose(state.partition)
                self._changed.notify_all()
        if found:
            logger.warning("%s", self._poll_interval.error(time.monotonic()))
        if leaves:
            await self.leave()
        return self._poll_interval.is_exceeded

    def _may_wait(self) -> bool:
        """Whether the next renewal may wait for a change: not while a partition is to be released."""
        if self._assignment is None or self._urgent or time.monotonic() < self._no_wait_until:
            return False
        with self._changed:
            return not any(state.revoking for state in self._subscription)

    async def _await_change(self, commit_at: float) -> bool:
        """A renewal that the server answers once the leases are others; whether the next one may follow at once."""
        started, known = time.monotonic(), self._assignment
        wait_s = self._lease_s / RENEWALS_PER_LEASE
        if self._auto_commit:
            wait_s = min(wait_s, commit_at - started)
        wait_s = max(AGAIN_S, wait_s)
        body = {"wait_ms": round(wait_s * 1000), "assignment": known}
        spare_s = max(SHORTEST_ATTEMPT_S, min(self._lease_s / 2, self._until_expiry_s() - wait_s))
        async with self._renewing:
            try:
                self._waiting = asyncio.get_running_loop().create_task(
                    self._transport.call_once(
                        self._connection, routes.POLL, path=self._path, body=self._poll(body), read_s=wait_s + spare_s
                    )
                )
                self._apply((await self._waiting).body, started)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                return True  # a commit renews instead
            except MyQueueError as error:
                # Another manager may be older, or the cluster is in trouble: the next renewal does not wait, and tells.
                logger.debug("waiting for a change of leases failed: %s", error)
                self._keep_if_undecided(error, started)
                self._no_wait_until = time.monotonic() + self._lease_s / RENEWALS_PER_LEASE
                return True
            finally:
                self._waiting = None
        return self._assignment != known or time.monotonic() - started >= wait_s / 2

    def _until_expiry_s(self) -> float:
        now = time.monotonic()
        with self._changed:
            self._subscription.expire(now)
            expiry = self._subscription.next_expiry(now)
        return self._lease_s if expiry is None else expiry - now

    async def _commit_quietly(self) -> None:
        # Leases must be renewed in time, however long another commit takes.
        try:
            async with asyncio.timeout(max(0.0, min(self._lease_s / 3, self._until_expiry_s()))):
                await self.committing.acquire()
        except TimeoutError:
            return
        try:
            await self._commit_handled(include_in_flight=False, deadline_s=self._lease_s / 3)
        except MyQueueError as error:
            logger.debug("commit failed, the next one makes up for it: %s", error)
            with self._changed:
                self._errors.record(COMMITS, error, time.monotonic())
        else:
            with self._changed:
                self._errors.clear(COMMITS)
        finally:
            self.committing.release()

    async def _renew_now(self) -> None:
        """For commits: ends a renewal that waits."""
        if self._poll_interval.is_exceeded:
            return  # the member joins again with the application's next poll only
        self._urgent += 1
        try:
            if self._waiting is not None:
                self._waiting.cancel()
            await self._renew([])
        finally:
            self._urgent -= 1

    async def _renew(self, released: list[int]) -> None:
        async with self._renewing:
            requested_at = time.monotonic()
            deadline_s = max(SHORTEST_ATTEMPT_S, min(self._lease_s / 2, self._until_expiry_s()))
            body = self._poll({"released": released})
            try:
                answer = await self._transport.call(
                    routes.POLL, path=self._path, body=body, deadline_s=deadline_s, connection=self._connection
                )
            except MyQueueError as error:
                self._assignment = None
                if isinstance(error, InvalidRequest):  # older servers know only the member
                    self._names = {"member": self._member}
                if self._keep_if_undecided(error, requested_at):
                    return
                with self._changed:
                    self._errors.record(LEASES, error, requested_at)
                    if isinstance(error, ConsumerNotFound | TopicNotFound):
                        self._errors.fatal = error
                    self._changed.notify_all()
            else:
                self._apply(answer.body, requested_at, released)

    def _keep_if_undecided(self, error: MyQueueError, requested_at: float) -> bool:
        """Whether the cluster answered that it cannot renew leases right now, and this member had some.

        Not when there is no answer: other members may reach the cluster, and get the partitions.
        """
        if not isinstance(error, Unavailable) or isinstance(error, Overloaded | NoResponse):
            return False
        with self._changed:
            self._subscription.keep(requested_at, self._lease_s)
            held = self._subscription.next_expiry(time.monotonic()) is not None
            if held:
                self._errors.clear(LEASES)
            return held

    def _poll(self, more: dict[str, Any]) -> dict[str, Any]:
        with self._changed:
            positions = [
                {"partition_id": state.partition, "offset": state.committed}
                for state in self._subscription
                if not state.revoking
            ]
        return {**self._names, "max_messages": 0, "positions": positions} | more

    def _apply(self, answer: dict[str, Any], requested_at: float, released: Iterable[int] = ()) -> None:
        self._lease_s = answer["lease_ms"] / 1000
        self._assignment = answer.get("assignment")
        leases = [
            PartitionLease(lease["partition_id"], lease["generation"], lease["cursor"], lease["revoking"])
            for lease in answer["leases"]
        ]
        with self._changed:
            self._errors.clear(LEASES)
            for partition in released:
                if not any(lease.partition == partition and not lease.revoking for lease in leases):
                    self._subscription.lose(partition)
            self._subscription.renew(leases, requested_at, self._lease_s)
            self._leased()
            self._changed.notify_all()
