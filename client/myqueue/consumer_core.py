"""What all consumers do, however they wait: reading, positions and the end of one member of one or several topics."""

import asyncio
import logging
import threading
import time
import uuid
from collections.abc import Coroutine, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from myqueue.argument_checks import WrongValue, check_number
from myqueue.async_transport import AsyncTransport
from myqueue.consumer_polling import Polling
from myqueue.consumer_positions import Positions, of_each
from myqueue.consumer_waits import Waits, deadline_of
from myqueue.decoding import Messages, table_of
from myqueue.descriptions import Lag
from myqueue.deserializing import values_by
from myqueue.fetcher import ChangeCondition
from myqueue.io_thread import IoThread, io_threads
from myqueue.member_identity import new_member
from myqueue.message import Message
from myqueue.poll_interval import DEFAULT_MAX_POLL_INTERVAL_S, PollInterval
from myqueue.process_shared import process_id, tell_after_fork
from myqueue.protocol.errors import InvalidRequest, MyQueueError
from myqueue.protocol.limits import MAX_FETCH_BYTES
from myqueue.rebalance_listener import AsyncRebalanceCallback, run_all
from myqueue.serialization import Deserializer
from myqueue.start_position import Start, start_position
from myqueue.subscription_state import InFlight, LeaseIdentity, lease_identity
from myqueue.topic_consumer import ConsumerSettings, TopicConsumer
from myqueue.topic_discovery import DEFAULT_METADATA_MAX_AGE_S, TopicDiscovery, list_topics
from myqueue.topic_subscription import Committed, Offsets, Partition, TopicRotation, TopicSubscription
from myqueue.transport import DEFAULT_RETRY, DEFAULT_TIMEOUTS, RetryPolicy, Timeouts, Transport

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger("myqueue")

T = TypeVar("T")


class ConsumerClosed(InvalidRequest):
    """The consumer was closed before the call, or is not open yet."""


class ForkedConsumer(InvalidRequest):
    """The consumer was opened by the parent process: its background thread and its leases are there."""


class ConsumerCore:
    def __init__(
        self,
        waits: Waits,
        url: str | None,
        subscribed: TopicSubscription,
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
        metadata_max_age_s: float = DEFAULT_METADATA_MAX_AGE_S,
        client_id: str | None = None,
        prefetch_bytes: int = 16 << 20,
        fetch_bytes: int = 4 << 20,
        value_deserializer: Deserializer | None = None,
        retry: RetryPolicy = DEFAULT_RETRY,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
    ) -> None:
        if commit not in ("auto", "manual"):
            raise WrongValue(f'commit must be "auto" or "manual", not {commit!r}')
        if on_gap not in ("skip", "error"):
            raise WrongValue(f'on_gap must be "skip" or "error", not {on_gap!r}')
        check_number("fetch_bytes", fetch_bytes, 1, MAX_FETCH_BYTES, whole=True)
        if partition is not None and subscribed.only is None:
            raise WrongValue("partition is one of a single topic: do not give it with several")
        identity = new_member(client_id)
        self.topic = str(subscribed)
        self.name = name or f"consumer-{uuid.uuid4().hex}"  # a name of its own makes registering safe to repeat
        self.partition = partition
        self.member, self.client_id = identity.member, identity.client_id
        self.messages: Iterator[Message] = iter(())  # of the chunk in hand
        self.handed_lease: LeaseIdentity | None = None  # of those messages
        self.waits = waits
        self.io: IoThread | None = None
        self._subscribed = subscribed
        self._settings = ConsumerSettings(
            self.name,
            identity,
            partition,
            start_position(start, partition),
            auto_commit=commit == "auto",
            gap_is_error=on_gap == "error",
            on_assign=on_assign,
            on_revoke=on_revoke,
            on_lost=on_lost,
            fetch_bytes=fetch_bytes,
            fetch_in_background=waits.in_background,
        )
        self._values = values_by(value_deserializer)
        self._prefetch_bytes = prefetch_bytes
        self._transport = Transport(url, timeouts=timeouts, retry=retry)
        self._lock = threading.Lock()
        self._changed = ChangeCondition(self._lock)
        self._poll_interval = PollInterval(max_poll_interval_s, self._text())
        self._topics: TopicRotation[TopicConsumer] = TopicRotation()
        self._discovery: TopicDiscovery | None = None
        if subscribed.pattern is not None:
            self._discovery = TopicDiscovery(
                subscribed,
                self._topics,
                self._changed,
                max_age_s=metadata_max_age_s,
                retry_deadline_s=retry.deadline_s,
                join=self._join,
                share_prefetch=self._share_prefetch,
            )
        self._polling = Polling(
            waits,
            self._topics,
            self._poll_interval,
            self._changed,
            retry_deadline_s=retry.deadline_s,
            has_callbacks=self._settings.has_callbacks,
            names_topics=not subscribed.by_number,
            discovery=self._discovery,
            run=self._run,
        )
        self._positions = Positions(subscribed, self._topics, self._polling, self._lock, self._run)
        self._reader: object = None  # the thread or task that has read last
        self.is_registered = False
        self._is_reading = False
        self._closed = False  # to readers
        self._ended = False  # to all calls: a callback of `close` may commit
        self._process_id = process_id()
        tell_after_fork(self)

    async def open(self) -> None:
        """Registers the consumer."""
        self.check_not_forked()
        if self._closed or self.io is not None:
            state = "closed" if self._closed else "open already"
            raise ConsumerClosed(f"{self._text()} is {state}: open another one")
        self.io = io = io_threads.acquire(self._transport.url)
        try:
            await self._run(self._join_all(io))
        except BaseException:
            self._closed = self._ended = True
            io_threads.release(io.url, io)
            self._transport.close()
            raise
        self.is_registered = True

    async def _join_all(self, io: IoThread) -> None:
        calls, names = AsyncTransport(io, self._transport), self._subscribed.topics
        if self._discovery is not None:
            await self._discovery.open(io, calls)
            return
        if len(names) > 1:
            # Those that seem to be missing first: after a typing error the name is registered nowhere.
            listed = await list_topics(calls)
            await of_each({name: self._join(name) for name in names if name not in listed})
        await of_each({name: self._join(name) for name in names if self._topics.get(name) is None})

    async def _join(self, name: str) -> None:
        """In the background thread: the topic is read from its cursor on, or from `start`."""
        assert self.io is not None
        topic = TopicConsumer(
            name,
            self._settings,
            self._transport,
            self._changed,
            self._lock,
            self._poll_interval,
            progress=self._progress,
            on_rebalance=self._polling.recall_in_flight,
        )
        await topic.open(self.io)
        if self._is_reading:
            await topic.start(self._prefetch_share(len(self._topics) + 1))
        with self._lock:
            self._topics.add(topic)
            if self._closed:
                topic.stop(include_in_flight=False)
            self._share_prefetch()
            self._changed.notify_all()

    def _progress(self) -> int:
        """Of the application, in all topics; the lock is held."""
        return sum(topic.subscription.progress() for topic in self._topics)

    def _share_prefetch(self) -> None:
        """Called with the lock held, after a topic has come or gone."""
        for topic in self._topics:
            topic.set_prefetch(self._prefetch_share(len(self._topics)))

    def _prefetch_share(self, topics: int) -> int:
        return max(1, self._prefetch_bytes // topics)

    @property
    def topics(self) -> tuple[str, ...]:
        if self._subscribed.pattern is None:
            return self._subscribed.topics
        return tuple(sorted(topic.topic for topic in self._topics))

    @property
    def consumer_ids(self) -> dict[str, int]:
        return {topic.topic: topic.consumer_id for topic in self._topics}

    @property
    def consumer_id(self) -> int:
        """-1 until it is open."""
        if self._subscribed.only is None:
            raise InvalidRequest("a consumer of several topics has an id in each of them: see consumer_ids")
        return next(iter(self.consumer_ids.values()), -1)

    @property
    def skipped(self) -> int:
        before = 0 if self._discovery is None else self._discovery.skipped  # of topics that are gone
        return sum((topic.skipped for topic in self._topics), before)

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
        return self._values.messages(await self._next_chunks(max_messages, timeout), self._lock)

    async def next_table(self, max_messages: int, timeout: float | None) -> "pa.Table":
        handed = await self._next_chunks(max_messages, timeout)
        topics = None if self._subscribed.by_number else [each.subscription.topic for each in handed]
        return table_of([each.chunk for each in handed], topics)

    async def _next_chunks(self, max_messages: int, timeout: float | None) -> list[InFlight]:
        check_number("max_messages", max_messages, 1, whole=True)
        await self._begin_reading()
        return await self._polling.next_chunks(max_messages, timeout)

    async def _begin_reading(self) -> None:
        """Leases are taken from the first read on: an object that is only asked for its lag takes none."""
        self.check_usable()
        if self._closed:
            raise self._is_closed()
        self._reader = self.waits.reader()
        if not self._is_reading:
            await self._run(self._start_reading())

    async def _start_reading(self) -> None:
        share = self._prefetch_share(max(1, len(self._topics)))
        topics = list(self._topics)
        results = await asyncio.gather(*(topic.start(share) for topic in topics), return_exceptions=True)
        for topic, result in zip(topics, results, strict=True):
            with self._lock:
                if result is not None and not self._polling.is_gone(topic, result):
                    raise result
        self._is_reading = True
        if self._discovery is not None and not self._closed:
            self._discovery.start()

    def _first_of_next(self) -> Message | None:
        """None if a rebalance took the partition that was ready."""
        with self._lock:
            taken = self._polling.take(time.monotonic())
            if taken is None:
                return None
            topic, state, chunk = taken
            messages = Messages(topic.topic, chunk)
            topic.subscription.hand_out(state, chunk, messages)
            self.messages, self.handed_lease = self._values.iterator(messages), lease_identity(state)
            topic.refill(chunk.size)
        return next(self.messages, None)

    def pause(self, partitions: Iterable[Partition]) -> None:
        self.check_usable()
        by_topic = self._subscribed.by_topic(partitions)
        with self._lock:
            for name, numbers in by_topic.items():
                subscription = self._positions.topic(name).subscription
                subscription.recall_in_flight()
                subscription.paused.update(numbers)

    def resume(self, partitions: Iterable[Partition]) -> None:
        self.check_usable()
        by_topic = self._subscribed.by_topic(partitions)
        with self._lock:
            for name, numbers in by_topic.items():
                self._positions.topic(name).subscription.paused.difference_update(numbers)
            self._changed.notify_all()

    def leases(self) -> dict[Any, LeaseIdentity]:
        with self._lock:
            return self._subscribed.keyed(
                {
                    topic.topic: {state.partition: lease_identity(state) for state in topic.subscription}
                    for topic in self._topics
                }
            )

    def position(self) -> Offsets:
        self.check_not_forked()
        with self._lock:
            return self._subscribed.keyed({topic.topic: topic.subscription.positions() for topic in self._topics})

    async def commit(self, what: Committed, *, wait: bool) -> Offsets:
        self.check_usable()
        return await self._positions.commit(what, wait=wait)

    async def seek(self, partition: Partition | None, to: int | Start) -> Offsets:
        self.check_usable()
        return await self._positions.seek(self.partition if partition is None else partition, to)

    async def size(self) -> int:
        self.check_usable()
        return await self._positions.size()

    async def lag(self) -> Lag:
        self.check_usable()
        return await self._positions.lag()

    # Ending

    def is_open(self) -> bool:
        return not self._closed and self._process_id == process_id()

    def has_leases(self) -> bool:
        return self._is_reading and self.is_open()

    def check_usable(self) -> None:
        self.check_not_forked()
        if self._ended:
            raise self._is_closed()
        if not self.is_registered:
            raise ConsumerClosed(f"{self._text()} is not open: use `async with`")

    def _text(self) -> str:
        return f"consumer {self.name!r} of topic {self.topic!r}"

    def _is_closed(self) -> ConsumerClosed:
        return ConsumerClosed(f"{self._text()} is closed: open another one")

    def check_not_forked(self) -> None:
        if self._process_id != process_id():
            raise ForkedConsumer(
                f"{self._text()} belongs to process {self._process_id}, and this is "
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
            self._closed = self._polling.is_stopping = True
            for topic in self._topics:
                topic.stop(include_in_flight=include_in_flight)
            last_calls = [(topic.listener, call) for topic in self._topics if (call := topic.listener.last_call())]
            self._changed.notify_all()
        if self.io is None:
            self._ended = True
            self._transport.close()
            return
        try:
            try:
                if call_back:
                    await run_all(last_calls)
            finally:
                self._ended = True
                await self._run(self._end(include_in_flight))
        finally:
            io_threads.release(self.io.url, self.io)
            self._transport.close()
        try:
            with self._lock:
                self._polling.raise_commit_error()
        except MyQueueError as failed:
            if error is None:
                raise
            logger.warning("%s: a commit failed: %s", self.name, failed)

    async def _end(self, include_in_flight: bool) -> None:
        if self._discovery is not None:
            await self._discovery.stop()
        await asyncio.gather(*(topic.end(include_in_flight=include_in_flight) for topic in self._topics))

    def forget_parent(self) -> None:
        """In a child process: hands out nothing more. No lock: a thread that is not here may have it."""
        for topic in self._topics:
            topic.subscription.stop()
        self.messages = iter(())
        _of_parent.append(self.io)

    async def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """In the background thread."""
        assert self.io is not None
        return await self.waits.run(self.io, coroutine)


# An event loop that is dropped changes what the parent's loop waits for: the selector in the kernel is the same one.
_of_parent: list[object] = []
