"""The thread that renews a consumer's leases, commits handled messages, and releases partitions in a rebalance."""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from myqueue.fetcher import COMMITS, LEASES, BackgroundErrors
from myqueue.protocol import routes
from myqueue.protocol.errors import ConsumerNotFound, MyQueueError, StaleCommit, StaleLease, TopicNotFound
from myqueue.simple_api import new_key
from myqueue.subscription_state import PartitionLease, PartitionState, SubscriptionState
from myqueue.transport import SHORTEST_ATTEMPT_S, Transport

logger = logging.getLogger("myqueue")

COMMIT_EVERY_S = 1.0
FIRST_LEASE_S = 3.0  # until the first response says how long a lease is
LEAVE_S = 5.0
AGAIN_S = 0.02  # while a partition waits to be released


class LeaseRenewer:
    """`changed` guards the subscription; it is never held during a request."""

    def __init__(
        self,
        transport: Transport,
        consumer_id: int,
        member: str,
        subscription: SubscriptionState,
        errors: BackgroundErrors,
        changed: threading.Condition,
        *,
        auto_commit: bool,
        leased: Callable[[], None],
    ) -> None:
        """`leased` is called, with the lock held, after every renewal."""
        self._transport = transport
        self._path = {"consumer_id": consumer_id}
        self._member = member
        self._subscription = subscription
        self._errors = errors
        self._changed = changed
        self._auto_commit = auto_commit
        self._leased = leased
        self._lease_s = FIRST_LEASE_S
        self._woken = threading.Event()
        self._stopping = False
        self.committing = threading.Lock()  # one commit at a time
        self._renewing = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="myqueue-leases", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Renews now instead of at the next interval."""
        self._woken.set()

    def stop(self) -> None:
        self._stopping = True
        self._woken.set()
        self._thread.join(self._lease_s)

    def leave(self) -> None:
        """Releases all leases, so that other members need not wait for their expiry."""
        body = {"member": self._member, "max_messages": 0, "leave": True}
        try:
            self._transport.call(routes.POLL, path=self._path, body=body, deadline_s=LEAVE_S)
        except MyQueueError as error:
            logger.warning("the leases of consumer %s run out by themselves: %s", self._path["consumer_id"], error)

    def commit(self, offsets: dict[int, int], *, deadline_s: float | None = None) -> dict[int, int]:
        """Commits the offsets under this member's leases; the cursors after that."""
        with self.committing:
            return self._commit_renewed(offsets, deadline_s)

    def commit_handled(self, *, include_in_flight: bool, deadline_s: float | None = None) -> None:
        """Commits what is handled and not committed yet, without partitions that were leased away meanwhile."""
        with self.committing:
            self._commit_handled(include_in_flight=include_in_flight, deadline_s=deadline_s)

    def _commit_handled(self, *, include_in_flight: bool, deadline_s: float | None) -> None:
        while offsets := self._uncommitted(include_in_flight):
            try:
                self._commit_renewed(offsets, deadline_s)
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

    def _commit_renewed(self, offsets: dict[int, int], deadline_s: float | None) -> dict[int, int]:
        """Commits. After a refusal, renews once: a new write manager may have granted this member the lease again."""
        before = self._states(offsets)
        try:
            return self._commit(offsets, deadline_s)
        except StaleLease:
            self._renew([])
            if self._states(offsets) != before:
                raise
        return self._commit(offsets, deadline_s)

    def _states(self, partitions: Iterable[int]) -> list[tuple[PartitionState | None, int]]:
        """Identifies the current leases of these partitions: a lease that was lost or reset compares unequal."""
        with self._changed:
            held = [self._subscription.get(partition) for partition in partitions]
            return [(state, 0 if state is None else state.resets) for state in held]

    def _commit(self, offsets: dict[int, int], deadline_s: float | None) -> dict[int, int]:
        with self._changed:
            held = {state.partition: state.generation for state in self._subscription}
        wanted: list[dict[str, int]] = []
        for partition, offset in offsets.items():
            lease = {"generation": held[partition]} if partition in held else {}
            wanted.append({"partition_id": partition, "offset": offset} | lease)
        if not wanted:
            return {}
        answer = self._transport.call(
            routes.COMMIT,
            path=self._path,
            body={"member": self._member, "offsets": wanted},
            idempotency_key=new_key(),
            deadline_s=deadline_s,
        ).body
        cursors = {int(cursor["partition_id"]): int(cursor["offset"]) for cursor in answer["cursors"]}
        with self._changed:
            for partition, offset in cursors.items():
                if partition in held:
                    self._subscription.committed(partition, offset, held[partition])
        return cursors

    def _run(self) -> None:
        commit_at = time.monotonic() + COMMIT_EVERY_S
        while not self._stopping:
            self._woken.clear()
            try:
                with self._changed:
                    released = self._subscription.to_release()
                if self._auto_commit and (released or time.monotonic() >= commit_at):
                    self._commit_quietly()
                    commit_at = time.monotonic() + COMMIT_EVERY_S
                self._renew(released)
            except Exception as error:
                # The thread must survive a defect; the application gets it as an error.
                logger.exception("keeping the leases of consumer %s", self._path["consumer_id"])
                with self._changed:
                    self._errors.fatal = MyQueueError(f"defect while keeping leases: {error!r}")
                    self._changed.notify_all()
            with self._changed:
                self._subscription.expire(time.monotonic())
                more_to_release = bool(self._subscription.to_release())
            until_commit_s = commit_at - time.monotonic() if self._auto_commit else self._lease_s
            pause_s = max(AGAIN_S, min(self._lease_s / 3, until_commit_s, self._until_expiry_s()))
            self._woken.wait(AGAIN_S if more_to_release else pause_s)

    def _until_expiry_s(self) -> float:
        now = time.monotonic()
        with self._changed:
            self._subscription.expire(now)
            expiry = self._subscription.next_expiry(now)
        return self._lease_s if expiry is None else expiry - now

    def _commit_quietly(self) -> None:
        # Leases must be renewed in time, however long another thread's commit takes.
        if not self.committing.acquire(timeout=max(0.0, min(self._lease_s / 3, self._until_expiry_s()))):
            return
        try:
            self._commit_handled(include_in_flight=False, deadline_s=self._lease_s / 3)
        except MyQueueError as error:
            logger.debug("commit failed, the next one makes up for it: %s", error)
            with self._changed:
                self._errors.record(COMMITS, error, time.monotonic())
        else:
            with self._changed:
                self._errors.clear(COMMITS)
        finally:
            self.committing.release()

    def _renew(self, released: list[int]) -> None:
        with self._renewing:
            self._ask_for_leases(released)

    def _ask_for_leases(self, released: list[int]) -> None:
        body: dict[str, Any] = {"member": self._member, "max_messages": 0, "released": released}
        requested_at = time.monotonic()
        deadline_s = max(SHORTEST_ATTEMPT_S, min(self._lease_s / 2, self._until_expiry_s()))
        try:
            answer = self._transport.call(routes.POLL, path=self._path, body=body, deadline_s=deadline_s).body
        except MyQueueError as error:
            with self._changed:
                self._errors.record(LEASES, error, requested_at)
                if isinstance(error, ConsumerNotFound | TopicNotFound):
                    self._errors.fatal = error
                self._changed.notify_all()
            return
        self._lease_s = answer["lease_ms"] / 1000
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
