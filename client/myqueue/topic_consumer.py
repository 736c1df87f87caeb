"""One topic of a consumer: the member's leases, positions, fetches and commits there."""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from myqueue.async_routing import AsyncRouting
from myqueue.async_transport import AsyncTransport
from myqueue.background_errors import BackgroundErrors
from myqueue.commit_queue import CommitQueue
from myqueue.descriptions import Lag, lag_of
from myqueue.error_subjects import KnownConsumer
from myqueue.fetcher import ChangeCondition, Fetcher
from myqueue.io_thread import IoThread
from myqueue.lease_renewer import LeaseRenewer
from myqueue.member_identity import MemberIdentity
from myqueue.poll_interval import PollInterval
from myqueue.protocol import routes
from myqueue.protocol.errors import MyQueueError, OffsetOutOfRange
from myqueue.rebalance_listener import AsyncRebalanceCallback, RebalanceListener
from myqueue.subscription_state import SubscriptionState
from myqueue.transport import Transport

logger = logging.getLogger("myqueue")

CLOSE_S = 5.0  # for the last commit


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """What holds for all topics of a consumer."""

    name: str
    identity: MemberIdentity
    partition: int | None
    start: str | dict[str, int]  # as the API takes it
    auto_commit: bool
    gap_is_error: bool
    on_assign: AsyncRebalanceCallback | None
    on_revoke: AsyncRebalanceCallback | None
    on_lost: AsyncRebalanceCallback | None
    fetch_bytes: int
    fetch_in_background: bool

    @property
    def has_callbacks(self) -> bool:
        return any(callback is not None for callback in (self.on_assign, self.on_revoke, self.on_lost))


class TopicConsumer:
    """All topics of a consumer share a lock and its condition, and the time that the application may stay away.

    Coroutines run in the background thread. What is no coroutine is called with the lock held.
    """

    def __init__(
        self,
        topic: str,
        settings: ConsumerSettings,
        transport: Transport,
        changed: ChangeCondition,
        lock: threading.Lock,
        poll_interval: PollInterval,
        *,
        progress: Callable[[], int],
        on_rebalance: Callable[[], None],
    ) -> None:
        """`progress` is that of the member in all topics; `on_rebalance` is called when callbacks have become due."""
        self.topic = topic
        self.consumer_id = -1  # until it is open
        self.skipped = 0
        self.subscription = SubscriptionState(
            topic, auto_commit=settings.auto_commit, has_callbacks=settings.has_callbacks
        )
        self.listener = RebalanceListener(
            topic,
            self.subscription,
            lock,
            on_assign=settings.on_assign,
            on_revoke=settings.on_revoke,
            on_lost=settings.on_lost,
            on_given_up=self.wake_renewer,
        )
        self.errors = BackgroundErrors(transport.retry.deadline_s)
        self.fetcher: Fetcher | None = None  # from the first read on
        self._settings = settings
        self._transport = transport
        self._changed = changed
        self._lock = lock
        self._poll_interval = poll_interval
        self._progress = progress
        self._on_rebalance = on_rebalance
        self._stopping = False
        self._io: IoThread | None = None

    # Beginning

    async def open(self, io: IoThread) -> None:
        """Registers the consumer."""
        settings = self._settings
        self._calls = AsyncTransport(io, self._transport)
        body = {"topic": self.topic, "name": settings.name, "partition_id": settings.partition, "from": settings.start}
        answer = await self._calls.call(
            routes.REGISTER_CONSUMER, body={field: value for field, value in body.items() if value is not None}
        )
        self.consumer_id = answer.body["consumer_id"]
        self._transport.consumers[self.consumer_id] = KnownConsumer(settings.name, self.topic)
        self._lease_renewer = LeaseRenewer(
            self._calls,
            self.consumer_id,
            settings.identity,
            self.subscription,
            self.errors,
            self._changed,
            auto_commit=settings.auto_commit,
            poll_interval=self._poll_interval,
            progress=self._progress,
            leased=self._renewed,
            before_release=self._flush_commits,
        )
        self._commits = CommitQueue(io, self._lease_renewer, self.subscription, self.errors, self._changed)
        self._io = io

    async def start(self, prefetch_bytes: int) -> None:
        """Takes leases and fetches, from the first read on: a consumer that is only asked for its lag takes none."""
        if self.fetcher is not None or self._io is None:
            return
        routing = AsyncRouting(self._calls, self.topic)
        table = await routing.table()
        with self._lock:
            if self.fetcher is not None or self._stopping:
                return
            self.fetcher = Fetcher(
                self._io,
                routing,
                table,
                self.subscription,
                self.errors,
                self._lock,
                self._changed,
                prefetch_bytes=prefetch_bytes,
                fetch_bytes=self._settings.fetch_bytes,
                in_background=self._settings.fetch_in_background,
                on_gap=self._gap,
            )
        self._lease_renewer.start()

    def set_prefetch(self, prefetch_bytes: int) -> None:
        if self.fetcher is not None:
            self.fetcher.set_prefetch(prefetch_bytes)

    def refill(self, taken_bytes: int) -> None:
        if self.fetcher is not None:
            self.fetcher.refill(taken_bytes)

    def wake_fetcher(self) -> None:
        if self.fetcher is not None:
            self.fetcher.wake()

    def wake_renewer(self) -> None:
        """Not after `stop`: the background thread may have ended."""
        if self._io is not None and not self._stopping:
            self._io.call_soon(self._lease_renewer.wake)

    def _renewed(self) -> None:
        self.wake_fetcher()
        if self.subscription.is_rebalance_due():
            self._on_rebalance()

    def _gap(self, gone: int, error: OffsetOutOfRange) -> MyQueueError | None:
        self.skipped += gone
        if not self._settings.gap_is_error:
            logger.warning(
                "%s: %d messages of %s were deleted by retention before they were read",
                self._settings.name,
                gone,
                self.topic,
            )
        return error if self._settings.gap_is_error else None

    # Positions

    def commit_later(self, offsets: dict[int, int]) -> None:
        self._commits.add(offsets)

    async def commit(self, offsets: Mapping[int, int]) -> dict[int, int]:
        return await self._lease_renewer.commit(dict(offsets))

    def is_ahead(self, offsets: Mapping[int, int]) -> bool:
        """Whether these offsets of partitions on lease are beyond what is committed."""
        return any(offsets[state.partition] > state.committed for state in self.subscription)

    async def seek(self, body: dict[str, Any]) -> dict[int, int]:
        await self._flush_commits()  # an answer that came after the seek would be an error
        with self._lock:
            self.subscription.seeking += 1
        try:
            response = await self._calls.call(routes.SEEK, path={"consumer_id": self.consumer_id}, body=body)
            cursors = response.body["cursors"]
            with self._lock:
                for cursor in cursors:
                    self.subscription.seek(cursor["partition_id"], cursor["offset"], cursor["generation"])
                self.wake_fetcher()
        finally:
            with self._lock:
                self.subscription.seeking -= 1
        return {cursor["partition_id"]: cursor["offset"] for cursor in cursors}

    async def size(self) -> int:
        async with self._lease_renewer.committing:
            query: dict[str, str | int] = {"topic": self.topic, "consumer_id": self.consumer_id}
            size: int = (await self._calls.call(routes.SIZE, query=query)).body["size"]
            with self._lock:
                ahead = sum(self.subscription.positions().values()) - sum(
                    state.committed for state in self.subscription
                )
        return max(0, size - ahead)

    async def lag(self) -> Lag:
        return lag_of((await self._calls.call(routes.LAG, path={"consumer_id": self.consumer_id})).body)

    async def all_held_by_others(self) -> bool:
        """Whether other members have all partitions."""
        partitions = (await self.lag()).partitions.values()
        return all(partition.member not in (None, self._settings.identity.member) for partition in partitions)

    async def end_offsets(self) -> dict[int, int]:
        listed = (await self._calls.call(routes.LIST_PARTITIONS, path={"topic": self.topic})).body
        return {entry["partition_id"]: entry["end_offset"] for entry in listed["partitions"]}

    # Ending

    def stop(self, *, include_in_flight: bool) -> None:
        """Hands out nothing more. `include_in_flight`: what was handed out counts as handled."""
        self._stopping = True
        if self.fetcher is not None:
            self.fetcher.stop()
        self.subscription.stop()
        if not include_in_flight:
            self.subscription.forget_in_flight()

    async def end(self, *, include_in_flight: bool) -> None:
        """After `stop`: commits, and gives the partitions back."""
        if self._io is None:
            return
        await self._stop_tasks()
        await self._flush_commits()
        if self.fetcher is not None:
            if self._settings.auto_commit:
                try:
                    await self._lease_renewer.commit_handled(include_in_flight=include_in_flight, deadline_s=CLOSE_S)
                except MyQueueError as error:
                    logger.warning(
                        "%s: the last messages of %s will be delivered again: %s",
                        self._settings.name,
                        self.topic,
                        error,
                    )
            await self._lease_renewer.leave()
        self._calls.close()

    def lose(self) -> None:
        """The topic is gone, or this member's place in it: `on_lost` becomes due, and `end_lost` follows."""
        self._stopping = True
        if self.fetcher is not None:
            self.fetcher.stop()
        for state in list(self.subscription):
            self.subscription.lose(state.partition)

    async def end_lost(self) -> None:
        self._calls.close()
        await self._stop_tasks()

    async def _stop_tasks(self) -> None:
        await self._lease_renewer.stop()
        if self.fetcher is not None:
            await self.fetcher.close()

    async def _flush_commits(self) -> None:
        await self._commits.flush(CLOSE_S)
