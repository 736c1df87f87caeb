"""AsyncProducer: the Producer with `await` where that one blocks.

It is the same producer, with its buffer and its threads, which refuses to wait: what would block raises here, and is
awaited. Nothing is awaited behind the point where a message enters the buffer, so that a task that is cancelled in
`send` has sent nothing.
"""

import asyncio
from collections.abc import Callable, Iterable
from datetime import datetime
from types import TracebackType
from typing import Any, Self, Unpack

from myqueue.client_reprs import producer_repr
from myqueue.delivery import BatchResult, Deliveries, Delivery, call_in_loop
from myqueue.message import Value
from myqueue.message_columns import checked_many
from myqueue.process_shared import process_id
from myqueue.producer import Producer, ProducerSettings, noting_what_is_sent
from myqueue.protocol.errors import MyQueueError
from myqueue.send_arguments import MessageHeaders
from myqueue.sender import Sender
from myqueue.serialization import Tabular, table_values

_SENDS_IN_A_ROW = 256  # that do not wait, before other tasks get their turn


class _BufferFull(Exception):
    def __init__(self, sender: Sender, size: int) -> None:
        self.sender, self.size = sender, size


class _TopicNotOpen(Exception):
    def __init__(self, topic: str) -> None:
        self.topic = topic


class _NonBlockingProducer(Producer):
    def _await_buffer(self, sender: Sender, size: int) -> None:
        self._check_refusing(sender)
        if not sender.buffer.fits(size):
            raise _BufferFull(sender, size)

    def _open(self, topic: str) -> Sender:
        self._topics.check_usable()
        raise _TopicNotOpen(topic)

    def _open_default(self, topic: str) -> None:
        """With the first message."""


class AsyncProducer:
    """For the tasks of one event loop. The arguments are those of `Producer`; it opens with the first message,
    with `async with`, or with `await open()`."""

    def __init__(
        self,
        url: str | None = None,
        topic: str | None = None,
        name: str | None = None,
        **settings: Unpack[ProducerSettings],
    ) -> None:
        self._producer = _NonBlockingProducer(url, topic, name, **settings)
        self._topics = self._producer._topics
        self._serializer = settings.get("value_serializer")
        self._turn = asyncio.Lock()  # of the tasks that wait for the buffer
        self._process_id = process_id()
        self._sends_left = _SENDS_IN_A_ROW

    @property
    def topic(self) -> str | None:
        return self._producer.topic

    @property
    def name(self) -> str:
        return self._producer.name

    def __repr__(self) -> str:
        return producer_repr("AsyncProducer", self.topic, self._topics)

    async def open(self) -> Self:
        """Registers the producer with its topic now, instead of with the first message; once more is fine."""
        if self.topic is not None:
            try:
                await self._sender(None)
            except BaseException:
                await self.close()
                raise
        return self

    async def send(
        self,
        value: Any,
        key: Value | None = None,
        partition: int | None = None,
        timestamp: int | datetime | None = None,
        headers: MessageHeaders | None = None,
        *,
        topic: str | None = None,
        idempotency_key: str | None = None,
        serialized: bool = False,
    ) -> Delivery:
        """As `Producer.send`: waits only while the buffer is full, or for the first message of a topic.

        `await` what it returns for the receipt. If it is cancelled, the message was not sent.
        """
        if self._serializer is not None and not serialized:
            value = self._serializer(value)
        self._sends_left -= 1
        if self._sends_left <= 0:
            self._sends_left = _SENDS_IN_A_ROW
            await asyncio.sleep(0)
        while True:
            try:
                return self._producer.send(
                    value,
                    key,
                    partition,
                    timestamp,
                    headers,
                    topic=topic,
                    idempotency_key=idempotency_key,
                    serialized=True,
                )
            except _BufferFull as full:
                sender, size = full.sender, full.size
            except _TopicNotOpen as missing:
                await self._open(missing.topic)
                continue
            await self._await_buffer(sender, size)

    async def send_many(
        self,
        values: Iterable[Any] | Tabular,
        partition: int | None = None,
        *,
        keys: Iterable[Value | None] | None = None,
        headers: Iterable[MessageHeaders | None] | None = None,
        timestamps: Iterable[int | datetime | None] | None = None,
        topic: str | None = None,
    ) -> Deliveries:
        """As `Producer.send_many`. If it is cancelled, the first messages may be on their way: a note says how many."""
        many = checked_many(values, keys, headers, timestamps, self._serializer)
        sender = await self._sender(topic)
        parts: list[tuple[BatchResult, int, int]] = []
        with noting_what_is_sent(parts, many):
            for size in self._producer._add_many(sender, many, partition, parts):
                if size:
                    await self._await_buffer(sender, size)
                else:
                    await asyncio.sleep(0)
        return Deliveries(parts)

    async def send_table(
        self, table: Tabular, key: Value | None = None, partition: int | None = None, *, topic: str | None = None
    ) -> Deliveries:
        """As `Producer.send_table`. If it is cancelled, the first messages may be on their way."""
        parts: list[tuple[BatchResult, int, int]] = []
        with noting_what_is_sent(parts, None):
            for value in table_values(table):
                delivery = await self.send(value, key, partition, topic=topic, serialized=True)
                parts.append(delivery.as_part())
                await asyncio.sleep(0)  # making the next value takes a millisecond or so
        return Deliveries(parts)

    async def flush(self, timeout: float | None = None) -> None:
        """As `Producer.flush`. If it is cancelled, what was sent is on its way all the same."""
        topics = self._topics
        with topics.buffer.lock:
            flushed = topics.begin_flush()
        try:
            async with asyncio.timeout(timeout):
                await self._changed_until(topics.drained)
        except TimeoutError:
            with topics.buffer.lock:
                raise self._producer._not_drained(timeout) from None
        finally:
            with topics.buffer.lock:
                for sender in flushed:
                    sender.end_flush()
        self._producer._raise_unretrieved()

    async def close(self, timeout: float | None = None) -> None:
        """Flushes, then stops. Messages that are not decided after `timeout`, or when it is cancelled, fail."""
        if not self._topics.begin_close():
            return
        try:
            if self._topics.process_id == process_id():  # else nothing was sent here
                await self.flush(timeout)
        finally:
            # It waits for threads. They are done with what is cancelled, too: the loop must not go before them.
            await asyncio.shield(asyncio.to_thread(self._topics.stop))

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except MyQueueError as failed:
            if error is None:
                raise
            error.add_note(f"closing the producer {self.name!r} then failed: {failed}")

    async def _sender(self, topic: str | None) -> Sender:
        while True:
            try:
                return self._producer._sender(topic)
            except _TopicNotOpen as missing:
                await self._open(missing.topic)

    async def _open(self, topic: str) -> None:
        """In a thread: it calls the cluster. Goes on there when it is cancelled; a later message then finds it open."""
        await asyncio.to_thread(self._topics.open, topic)

    async def _await_buffer(self, sender: Sender, size: int) -> None:
        """Until the buffer takes `size` more bytes. One task at a time looks, so that a change does not wake all."""
        if self._process_id != process_id():  # a task of the parent process may have held it
            self._turn, self._process_id = asyncio.Lock(), process_id()
        try:
            async with asyncio.timeout(self._producer._delivery_timeout_s), self._turn:
                await self._changed_until(lambda: sender.refusing or sender.buffer.fits(size))
        except TimeoutError:
            raise self._producer._stayed_full() from None
        self._producer._check_refusing(sender)

    async def _changed_until(self, holds: Callable[[], bool]) -> None:
        buffer, loop = self._topics.buffer, asyncio.get_running_loop()
        while True:
            changed = asyncio.Event()
            with buffer.lock:
                if holds():
                    return
                buffer.on_change(lambda changed=changed: call_in_loop(loop, changed.set))  # type: ignore[misc]
            await changed.wait()
