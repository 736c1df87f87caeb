"""The thread that keeps a consumer's leases: renews them, commits what is handled, gives back what others wait for."""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from myqueue.holdings import Holding, Holdings, Lease
from myqueue.protocol import routes
from myqueue.protocol.errors import ConsumerNotFound, MyQueueError, StaleCommit, StaleLease, TopicNotFound
from myqueue.simple_api import new_key
from myqueue.transport import SHORTEST_ATTEMPT_S, Transport
from myqueue.troubles import COMMITS, LEASES, Troubles

logger = logging.getLogger("myqueue")

COMMIT_EVERY_S = 1.0
FIRST_LEASE_S = 3.0  # until the cluster has told how long a lease is
LEAVE_S = 5.0
AGAIN_S = 0.02  # when a partition waits to be given back


class Keeper:
    """`changed` guards the holdings; no call is made while it is held."""

    def __init__(
        self,
        transport: Transport,
        consumer_id: int,
        member: str,
        holdings: Holdings,
        troubles: Troubles,
        changed: threading.Condition,
        *,
        auto_commit: bool,
        leased: Callable[[], None],
    ) -> None:
        """`leased` is called with the lock held when the leases are told."""
        self._transport = transport
        self._path = {"consumer_id": consumer_id}
        self._member = member
        self._holdings = holdings
        self._troubles = troubles
        self._changed = changed
        self._auto_commit = auto_commit
        self._leased = leased
        self._lease_s = FIRST_LEASE_S
        self._kicked = threading.Event()
        self._stopping = False
        self.committing = threading.Lock()  # one commit at a time
        self._renewing = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="myqueue-leases", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def kick(self) -> None:
        """Something is worth a renewal before its time."""
        self._kicked.set()

    def stop(self) -> None:
        self._stopping = True
        self._kicked.set()
        self._thread.join(self._lease_s)

    def leave(self) -> None:
        """Others need not wait until the leases run out."""
        body = {"member": self._member, "max_messages": 0, "leave": True}
        try:
            self._transport.call(routes.POLL, path=self._path, body=body, deadline_s=LEAVE_S)
        except MyQueueError as error:
            logger.warning("the leases of consumer %s run out by themselves: %s", self._path["consumer_id"], error)

    def commit(self, offsets: dict[int, int], *, deadline_s: float | None = None) -> dict[int, int]:
        """Commits the offsets under the leases that are held; the cursors after that."""
        with self.committing:
            return self._commit_renewed(offsets, deadline_s)

    def commit_handled(self, *, with_hand: bool, deadline_s: float | None = None) -> None:
        """Commits what is handled and not committed yet; what was leased away meanwhile is left out."""
        with self.committing:
            self._commit_handled(with_hand=with_hand, deadline_s=deadline_s)

    def _commit_handled(self, *, with_hand: bool, deadline_s: float | None) -> None:
        while offsets := self._uncommitted(with_hand):
            try:
                self._commit_renewed(offsets, deadline_s)
            except (StaleLease, StaleCommit) as error:
                partition = error.details.get("partition_id")
                with self._changed:
                    holding = self._holdings.get(partition) if isinstance(partition, int) else None
                    if holding is None or holding.held_until <= time.monotonic():
                        return  # whose it is, is not known: it is committed when the lease has come back
                    self._holdings.lose(holding.partition)
                logger.info("partition %s went to another member before its commit: %s", partition, error)
            else:
                return

    def _uncommitted(self, with_hand: bool) -> dict[int, int]:
        with self._changed:
            handled = self._holdings.handled(with_hand=with_hand)
            return {h.partition: handled[h.partition] for h in self._holdings if handled[h.partition] > h.committed}

    def _commit_renewed(self, offsets: dict[int, int], deadline_s: float | None) -> dict[int, int]:
        """A lease that is refused may have been given anew to this member, by a new write manager: looks once."""
        before = self._held(offsets)
        try:
            return self._commit(offsets, deadline_s)
        except StaleLease:
            self._renew([])
            if self._held(offsets) != before:
                raise
        return self._commit(offsets, deadline_s)

    def _held(self, partitions: Iterable[int]) -> list[tuple[Holding | None, int]]:
        """Where these partitions stand: another holding, or one that was started again, is not the same."""
        with self._changed:
            held = [self._holdings.get(partition) for partition in partitions]
            return [(holding, 0 if holding is None else holding.restarts) for holding in held]

    def _commit(self, offsets: dict[int, int], deadline_s: float | None) -> dict[int, int]:
        with self._changed:
            held = {holding.partition: holding.generation for holding in self._holdings}
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
                    self._holdings.committed(partition, offset, held[partition])
        return cursors

    def _run(self) -> None:
        commit_at = time.monotonic() + COMMIT_EVERY_S
        while not self._stopping:
            self._kicked.clear()
            try:
                with self._changed:
                    released = self._holdings.releasable()
                if self._auto_commit and (released or time.monotonic() >= commit_at):
                    self._commit_quietly()
                    commit_at = time.monotonic() + COMMIT_EVERY_S
                self._renew(released)
            except Exception as error:
                # The thread must outlive a defect; the reader is told.
                logger.exception("keeping the leases of consumer %s", self._path["consumer_id"])
                with self._changed:
                    self._troubles.fatal = MyQueueError(f"defect while keeping leases: {error!r}")
                    self._changed.notify_all()
            with self._changed:
                self._holdings.expire(time.monotonic())
                more_to_release = bool(self._holdings.releasable())
            until_commit_s = commit_at - time.monotonic() if self._auto_commit else self._lease_s
            pause_s = max(AGAIN_S, min(self._lease_s / 3, until_commit_s, self._until_expiry_s()))
            self._kicked.wait(AGAIN_S if more_to_release else pause_s)

    def _until_expiry_s(self) -> float:
        now = time.monotonic()
        with self._changed:
            self._holdings.expire(now)
            expiry = self._holdings.next_expiry(now)
        return self._lease_s if expiry is None else expiry - now

    def _commit_quietly(self) -> None:
        # The leases must be renewed in time, whoever is committing for how long.
        if not self.committing.acquire(timeout=max(0.0, min(self._lease_s / 3, self._until_expiry_s()))):
            return
        try:
            self._commit_handled(with_hand=False, deadline_s=self._lease_s / 3)
        except MyQueueError as error:
            logger.debug("commit failed, the next one makes up for it: %s", error)
            with self._changed:
                self._troubles.begin(COMMITS, error, time.monotonic())
        else:
            with self._changed:
                self._troubles.over(COMMITS)
        finally:
            self.committing.release()

    def _renew(self, released: list[int]) -> None:
        with self._renewing:
            self._ask_for_leases(released)

    def _ask_for_leases(self, released: list[int]) -> None:
        body: dict[str, Any] = {"member": self._member, "max_messages": 0, "released": released}
        asked_at = time.monotonic()
        deadline_s = max(SHORTEST_ATTEMPT_S, min(self._lease_s / 2, self._until_expiry_s()))
        try:
            answer = self._transport.call(routes.POLL, path=self._path, body=body, deadline_s=deadline_s).body
        except MyQueueError as error:
            with self._changed:
                self._troubles.begin(LEASES, error, asked_at)
                if isinstance(error, ConsumerNotFound | TopicNotFound):
                    self._troubles.fatal = error
                self._changed.notify_all()
            return
        self._lease_s = answer["lease_ms"] / 1000
        leases = [
            Lease(lease["partition_id"], lease["generation"], lease["cursor"], lease["revoking"])
            for lease in answer["leases"]
        ]
        with self._changed:
            self._troubles.over(LEASES)
            for partition in released:
                if not any(lease.partition == partition and not lease.revoking for lease in leases):
                    self._holdings.lose(partition)
            self._holdings.renew(leases, asked_at, self._lease_s)
            self._leased()
            self._changed.notify_all()
