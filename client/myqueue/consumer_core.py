"""What all consumers do, however they wait: positions, leases, fetches and commits of one member."""

import logging
import threading
import time
import uuid
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from myqueue.async_routing import AsyncRouting
from myqueue.async_transport import AsyncTransport
from myqueue.background_errors import BackgroundErrors
from myqueue.commit_queue import CommitQueue, Committed, offsets_of
from myqueue.consumer_polling import Polling
from myqueue.consumer_waits import Waits, deadline_of
from myqueue.decoding import Messages, table_of
from myqueue.descriptions import Lag, lag_of
from myqueue.deserializing import values_by
from myqueue.error_subjects import KnownConsumer
from myqueue.fetcher import ChangeCondition, Fetcher
from myqueue.io_thread import IoThread, io_threads
from myqueue.lease_renewer import LeaseRenewer
from myqueue.member_identity import new_member
from myqueue.message import Message
from myqueue.poll_interval import DEFAULT_MAX_POLL_INTERVAL_S, PollInterval
from myqueue.process_shared import process_id, tell_after_fork
from myqueue.protocol import routes
from myqueue.protocol.errors import InvalidRequest, MyQueueError, OffsetOutOfRange
from myqueue.protocol.limits import MAX_FETCH_BYTES
from myqueue.rebalance_listener import AsyncRebalanceCallback, RebalanceListener
from myqueue.serialization import Deserializer
from myqueue.start_position import Start, seek_position, start_position
from myqueue.subscription_state import InFlight, LeaseIdentity, SubscriptionState, lease_identity
from myqueue.transport import DEFAULT_RETRY, DEFAULT_TIMEOUTS, RetryPolicy, Timeouts, Transport

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger("myqueue")

T = TypeVar("T")

CLOSE_S = 5.0  # for the last commit


class ConsumerClosed(InvalidRequest):
    """The consumer was closed before the call, or is not open yet."""


class ForkedConsumer(InvalidRequest):
    """The consumer was opened by the parent process: its background thread and its leases are there."""


class ConsumerCore:
    def __init__(
        self,
        waits: Waits,
        url: str | None = None,
        topic: str = "",
        name: str | None = None,
        partition: int | None = None,
        start: Start = "latest",
        *,
        commit: Literal["auto", "manual"] = "auto",
        on_gap: Literal["skip", "error"] = "skip",
        on_assign: AsyncRebalanceCallback | None = None,
        on_revoke: AsyncRebalanceCallback | None = None,
        on_lost: AsyncRebalanceCallback | None = None,
        max_poll_interval_s: float = DEFAULT_MAX_POLL_INTERVAL_S,
        client_id: str | None = None,
        prefetch_bytes: int = 16 << 20,
        fetch_bytes: int = 4 << 20,
        value_deserializer: Deserializer | None = None,
        retry: RetryPolicy = DEFAULT_RETRY,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
    ) -> None:
        if not topic:
            raise TypeError("a consumer needs a topic")
        if commit not in ("auto", "manual"):
            raise ValueError(f'commit must be "auto" or "manual", not {commit!r}')
        if on_gap not in ("skip", "error"):
            raise ValueError(f'on_gap must be "skip" or "error", not {on_gap!r}')
        if not 1 <= fetch_bytes <= MAX_FETCH_BYTES:
            raise ValueError(f"fetch_bytes must be from 1 to {MAX_FETCH_BYTES}")
        self.topic = topic
        self.name = name or f"consumer-{uuid.uuid4().hex}"  # a name of its own makes registering safe to repeat
        self.partition = partition
        self._identity = new_member(client_id)
        self.member, self.client_id = self._identity.member, self._identity.client_id
        self.consumer_id = -1  # until it is open
        self.skipped = 0
        self.messages: Iterator[Message] = iter(())  # of the chunk in hand
        self.handed_lease: LeaseIdentity | None = None  # of those messages
        self._start = start_position(start, partition)
        self._values = values_by(value_deserializer)
        self.waits = waits
        self._auto_commit = commit == "auto"
        self._gap_is_error = on_gap == "error"
        self._prefetch_bytes = prefetch_bytes
        self._fetch_bytes = fetch_bytes
        self._transport = Transport(url, timeouts=timeouts, retry=retry)
        self._lock = threading.Lock()
        self._changed = ChangeCondition(self._lock)
        has_callbacks = any(callback is not None for callback in (on_assign, on_revoke, on_lost))
        self._subscription = SubscriptionState(auto_commit=self._auto_commit, has_callbacks=has_callbacks)
        self._listener = RebalanceListener(
            topic,
            self._subscription,
            self._lock,
            on_assign=on_assign,
            on_revoke=on_revoke,
            on_lost=on_lost,
            on_given_up=self._wake_renewer,
        )
        self._poll_interval = PollInterval(max_poll_interval_s, f"consumer {self.name!r} of topic {topic!r}")
        self._errors = BackgroundErrors(retry.deadline_s)
        self._reader: object = None  # the thread or task that has read last
        self._closed = False  # to readers
        self._ended = False  # to all calls: a callback of `close` may commit
        self._process_id = process_id()
        self.io: IoThread | None = None
        self._fetcher: Fetcher | None = None
        tell_after_fork(self)

    async def open(self) -> None:
        """Registers the consumer."""
        self.check_not_forked()
        if self._closed or self.io is not None:
            state = "closed" if self._closed else "open already"
            raise ConsumerClosed(f"consumer {self.name!r} of topic {self.topic!r} is {state}: open another one")
        self.io = io = io_threads.acquire(self._transport.url)
        self._calls = AsyncTransport(io, self._transport)
        body = {"topic": self.topic, "name": self.name, "partition_id": self.partition, "from": self._start}
        try:
            answer = await self._call(
                routes.REGISTER_CONSUMER, body={field: value for field, value in body.items() if value is not None}
            )
        except BaseException:
            self._closed = self._ended = True
            io_threads.release(io.url, io)
            self._transport.close()
            raise
        self.consumer_id = answer["consumer_id"]
        self._transport.consumers[self.consumer_id] = KnownConsumer(self.name, self.topic)
        self._lease_renewer = LeaseRenewer(
            self._calls,
            self.consumer_id,
            self._identity,
            self._subscription,
            self._errors,
            self._changed,
            auto_commit=self._auto_commit,
            poll_interval=self._poll_interval,
            leased=self._wake_fetcher,
            before_release=self._flush_commits,
        )
        self._commits = CommitQueue(io, self._lease_renewer, self._subscription, self._errors, self._changed)
        self._polling = Polling(
            self.waits,
            self._subscription,
            self._listener,
            self._poll_interval,
            self._errors,
            self._changed,
            retry_deadline_s=self._transport.retry.deadline_s,
            wake_renewer=self._wake_renewer,
            all_held_by_others=self._all_held_by_others,
            end_offsets=self._end_offsets,
        )

    # Reading

    async def next_message(self, timeout: float | None) -> Message | None:
        """When `messages` has no more."""
        await self._begin_reading()
        async with self._polling:
            deadline = deadline_of(timeout)
            while await self._polling.ask_for_more(deadline):
                message = self._first_of_next()
                if message is not None:
                    return message
        return None

    async def next_messages(self, max_messages: int, timeout: float | None) -> list[Message]:
        handed = await self._next_chunks(max_messages, timeout)
        return self._values.messages(self.topic, handed, self._subscription, self._lock)

    async def next_table(self, max_messages: int, timeout: float | None) -> "pa.Table":
        return table_of(handed.chunk for handed in await self._next_chunks(max_messages, timeout))

    async def _next_chunks(self, max_messages: int, timeout: float | None) -> list[InFlight]:
        if max_messages < 1:
            raise ValueError("max_messages must be 1 or more")
        await self._begin_reading()
        return await self._polling.next_chunks(max_messages, timeout)

    def _first_of_next(self) -> Message | None:
        """None if a rebalance took the partition that was ready."""
        with self._lock:
            taken = None if self._closed else self._subscription.take(time.monotonic())
            if taken is None:
                return None
            state, chunk = taken
            messages = Messages(self.topic, chunk)
            self._subscription.hand_out(state, chunk, messages)
            self.messages, self.handed_lease = self._values.iterator(messages), lease_identity(state)
            self._refill(chunk.size)
        return next(self.messages, None)

    def pause(self, partitions: Iterable[int]) -> None:
        self.check_usable()
        with self._lock:
            self._subscription.recall_in_flight()
            self._subscription.paused.update(partitions)

    def resume(self, partitions: Iterable[int]) -> None:
        self.check_usable()
        with self._lock:
            self._subscription.paused.difference_update(partitions)
            self._changed.notify_all()

    def leases(self) -> dict[int, LeaseIdentity]:
        with self._lock:
            return {state.partition: lease_identity(state) for state in self._subscription}

    # Positions

    async def commit(self, what: Committed, *, wait: bool) -> dict[int, int]:
        self.check_usable()
        with self._lock:
            self._errors.raise_commit_error()
            if not isinstance(what, Mapping):
                self._polling.check_member()
            offsets = offsets_of(what, self._subscription)
            if not wait:
                self._commits.add(offsets)
                return offsets
        return await self._run(self._lease_renewer.commit(offsets))

    async def seek(self, partition: int | None, to: int | Start) -> dict[int, int]:
        self.check_usable()
        chosen = self.partition if partition is None else partition
        body: dict[str, Any] = {"to": seek_position(to, chosen)} | ({} if chosen is None else {"partition_id": chosen})
        return await self._run(self._seek(body))

    async def _seek(self, body: dict[str, Any]) -> dict[int, int]:
        await self._flush_commits()  # an answer that came after the seek would be an error
        with self._lock:
            self._subscription.seeking += 1
        try:
            response = await self._calls.call(routes.SEEK, path={"consumer_id": self.consumer_id}, body=body)
            cursors = response.body["cursors"]
            with self._lock:
                for cursor in cursors:
                    self._subscription.seek(cursor["partition_id"], cursor["offset"], cursor["generation"])
                self._wake_fetcher()
        finally:
            with self._lock:
                self._subscription.seeking -= 1
        return {cursor["partition_id"]: cursor["offset"] for cursor in cursors}

    def position(self) -> dict[int, int]:
        self.check_not_forked()
        with self._lock:
            return self._subscription.positions()

    async def size(self) -> int:
        self.check_usable()
        return await self._run(self._size())

    async def _size(self) -> int:
        async with self._lease_renewer.committing:
            query: dict[str, str | int] = {"topic": self.topic, "consumer_id": self.consumer_id}
            size: int = (await self._calls.call(routes.SIZE, query=query)).body["size"]
            with self._lock:
                ahead = sum(self._subscription.positions().values()) - sum(
                    state.committed for state in self._subscription
                )
        return max(0, size - ahead)

    async def lag(self) -> Lag:
        self.check_usable()
        return lag_of(await self._call(routes.LAG, path={"consumer_id": self.consumer_id}))

    # Ending

    def is_open(self) -> bool:
        return not self._closed and self._process_id == process_id()

    def has_leases(self) -> bool:
        return self._fetcher is not None and self.is_open()

    def check_usable(self) -> None:
        self.check_not_forked()
        if self._ended:
            raise self._is_closed()
        if self.consumer_id < 0:
            raise ConsumerClosed(f"consumer {self.name!r} of topic {self.topic!r} is not open: use `async with`")

    def _is_closed(self) -> ConsumerClosed:
        return ConsumerClosed(f"consumer {self.name!r} of topic {self.topic!r} is closed: open another one")

    def check_not_forked(self) -> None:
        if self._process_id != process_id():
            raise ForkedConsumer(
                f"consumer {self.name!r} of topic {self.topic!r} belongs to process {self._process_id}, and this is "
                f"process {process_id()}, forked from it: open a consumer in this process"
            )

    async def close(self, error: BaseException | None = None, *, call_back: bool = True) -> None:
        """Raises the error of a commit that nobody has waited for. The copy of a child process is only forgotten.

        Messages in flight count as handled if the reader itself closes, and not after an error. `call_back`: whether
        `on_revoke` is called.
        """
        if self._process_id != process_id():
            return
        include_in_flight = error is None and self._reader == self.waits.reader()
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._fetcher is not None:
                self._fetcher.stop()
            self._subscription.stop()
            if not include_in_flight:
                self._subscription.forget_in_flight()
            last_call = self._listener.last_call()
            self._changed.notify_all()
        if self.io is None:
            self._ended = True
            self._transport.close()
            return
        try:
            try:
                if call_back and last_call is not None:
                    await self._listener.run(last_call)
            finally:
                self._ended = True
                await self._run(self._end(include_in_flight))
        finally:
            io_threads.release(self.io.url, self.io)
            self._transport.close()
        failed = self._errors.take_commit_error()
        if failed is not None and error is None:
            raise failed
        if failed is not None:
            logger.warning("%s: a commit failed: %s", self.name, failed)

    async def _end(self, include_in_flight: bool) -> None:
        await self._lease_renewer.stop()
        if self._fetcher is not None:
            await self._fetcher.close()
        await self._flush_commits()
        if self._fetcher is not None:
            if self._auto_commit:
                try:
                    await self._lease_renewer.commit_handled(include_in_flight=include_in_flight, deadline_s=CLOSE_S)
                except MyQueueError as error:
                    logger.warning("%s: the last messages will be delivered again: %s", self.name, error)
            await self._lease_renewer.leave()
        self._calls.close()

    def forget_parent(self) -> None:
        """In a child process: hands out nothing more. No lock: a thread that is not here may have it."""
        self._subscription.stop()
        self.messages = iter(())
        _of_parent.append(self.io)

    # Waiting for messages

    async def _begin_reading(self) -> None:
        """Leases are taken from the first read on: an object that is only asked for its lag takes none."""
        self.check_usable()
        if self._closed:
            raise self._is_closed()
        self._reader = self.waits.reader()
        if self._fetcher is not None:
            return
        routing = AsyncRouting(self._calls, self.topic)
        table = await self._run(routing.table())
        with self._lock:
            if self._fetcher is not None or self._closed or self.io is None:
                return
            self._fetcher = self._polling.fetcher = Fetcher(
                self.io,
                routing,
                table,
                self._subscription,
                self._errors,
                self._lock,
                self._changed,
                prefetch_bytes=self._prefetch_bytes,
                fetch_bytes=self._fetch_bytes,
                in_background=self.waits.in_background,
                on_gap=self._gap,
            )
            self.io.call_soon(self._start_leases)

    def _start_leases(self) -> None:
        if not self._closed:
            self._lease_renewer.start()

    async def _all_held_by_others(self) -> bool:
        lag = lag_of(await self._call(routes.LAG, path={"consumer_id": self.consumer_id}))
        return all(partition.member not in (None, self.member) for partition in lag.partitions.values())

    async def _end_offsets(self) -> dict[int, int]:
        listed = await self._call(routes.LIST_PARTITIONS, path={"topic": self.topic})
        return {entry["partition_id"]: entry["end_offset"] for entry in listed["partitions"]}

    async def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """In the background thread."""
        assert self.io is not None
        return await self.waits.run(self.io, coroutine)

    async def _call(self, route: routes.Route, **arguments: Any) -> dict[str, Any]:
        return (await self._run(self._calls.call(route, **arguments))).body

    async def _flush_commits(self) -> None:
        await self._commits.flush(CLOSE_S)

    def _gap(self, gone: int, error: OffsetOutOfRange) -> MyQueueError | None:
        """Called by the fetcher with the lock held."""
        self.skipped += gone
        if not self._gap_is_error:
            logger.warning("%s: %d messages were deleted by retention before they were read", self.name, gone)
        return error if self._gap_is_error else None

    def _refill(self, taken_bytes: int) -> None:
        """Called with the lock held."""
        if self._fetcher is not None:
            self._fetcher.refill(taken_bytes)

    def _wake_renewer(self) -> None:
        """Called with the lock held: the background thread may have ended after `close`."""
        if self.io is not None and not self._closed:
            self.io.call_soon(self._lease_renewer.wake)

    def _wake_fetcher(self) -> None:
        """Called with the lock held."""
        if self._fetcher is not None:
            self._fetcher.wake()


# An event loop that is dropped changes what the parent's loop waits for: the selector in the kernel is the same one.
_of_parent: list[object] = []
