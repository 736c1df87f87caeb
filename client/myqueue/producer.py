"""Producer: sends messages to topics in batches, in order, each stored exactly once."""

import _thread
import logging
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, Self, TypedDict

import pyarrow as pa

from myqueue.argument_checks import WrongValue, check_name, check_number, check_timeout, check_topic, checked_int
from myqueue.client_reprs import producer_repr
from myqueue.delivery import BatchResult, Deliveries, Delivery, DeliveryTimeout
from myqueue.idempotent_message import IdempotentMessage
from myqueue.message import Value, as_bytes
from myqueue.message_columns import (
    MESSAGE_OVERHEAD,
    CheckedValues,
    FewMessages,
    ManyMessages,
    MessageColumns,
    by_partition,
    checked_many,
)
from myqueue.partition_queue import Headers
from myqueue.process_shared import process_id
from myqueue.protocol.batch import CODECS
from myqueue.protocol.errors import MyQueueError, TooLarge
from myqueue.protocol.limits import MAX_KEY_BYTES, MAX_MESSAGE_BYTES
from myqueue.send_arguments import (
    LARGEST_BATCH,
    MessageHeaders,
    check_idempotency_key,
    checked_headers,
)
from myqueue.send_threads import MAX_THREADS, in_send_thread
from myqueue.sender import OnDelivery, Sender, copy_of
from myqueue.serialization import Serializer, Tabular, table_values
from myqueue.start_position import timestamp_ms
from myqueue.topic_senders import SenderSettings, TopicSenders
from myqueue.transport import DEFAULT_RETRY, DEFAULT_TIMEOUTS, RetryPolicy, Timeouts

logger = logging.getLogger("myqueue")

Compression = Literal["none", "lz4", "zstd"]


class ProducerSettings(TypedDict, total=False):
    """The settings of `Producer`, for classes that pass them on."""

    create: bool
    linger_ms: float
    batch_bytes: int
    max_in_flight: int
    compression: Compression
    buffer_bytes: int
    delivery_timeout_s: float
    value_serializer: Serializer | None
    on_delivery: OnDelivery | None
    retry: RetryPolicy
    timeouts: Timeouts


class Producer:
    """`send` puts a message into a batch and returns at once; it waits only while the buffer is full.

    Each batch is stamped with this producer's epoch and its partition's sequence, so that retries change no order and
    store nothing twice. May be shared by threads. All producers of a process share threads and connections.
    """

    def __init__(
        self,
        url: str | None = None,
        topic: str | None = None,
        name: str | None = None,
        *,
        create: bool = True,
        linger_ms: float = 0.0,
        batch_bytes: int = 1 << 20,
        max_in_flight: int = 4,
        compression: Compression = "none",
        buffer_bytes: int = 64 << 20,
        delivery_timeout_s: float = 60.0,
        value_serializer: Serializer | None = None,
        on_delivery: OnDelivery | None = None,
        retry: RetryPolicy = DEFAULT_RETRY,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
    ) -> None:
        """`url`: by default that of the variable MYQUEUE_URL. `topic`: of messages that are sent without one.

        A newer producer of the same `name` fences an older one. Without `create`, a topic that is missing is an error.
        """
        if compression not in CODECS:
            raise WrongValue(f"compression must be one of {', '.join(CODECS)}, not {compression!r}")
        check_name(name)
        check_number("linger_ms", linger_ms, 0, 3_600_000)
        check_number("batch_bytes", batch_bytes, 1, LARGEST_BATCH, whole=True)
        check_number("max_in_flight", max_in_flight, 1, MAX_THREADS, whole=True)
        check_number("buffer_bytes", buffer_bytes, 1, whole=True)
        check_number("delivery_timeout_s", delivery_timeout_s, 0.001, 1_000_000)
        self.topic = topic
        self._delivery_timeout_s = delivery_timeout_s
        self._serializer = value_serializer
        settings = SenderSettings(
            create=create,
            codec=CODECS[compression],
            batch_bytes=batch_bytes,
            linger_s=linger_ms / 1000,
            max_in_flight=max_in_flight,
            delivery_timeout_s=delivery_timeout_s,
            on_delivery=on_delivery,
        )
        self._topics = TopicSenders(url, name, buffer_bytes, settings, retry=retry, timeouts=timeouts)
        self._senders: dict[str | None, Sender] = self._topics.senders  # type: ignore[assignment] # None is never there
        if topic is not None:
            self._open_default(topic)

    @property
    def name(self) -> str:
        return self._topics.name

    @property
    def producer_id(self) -> int:
        """In the producer's own topic: an id belongs to a name in a topic."""
        return self._sender(None).identity.producer_id

    def __repr__(self) -> str:
        return producer_repr("Producer", self.topic, self._topics)

    def send(
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
        """Puts a message into the buffer. A key always goes to the same partition. `timestamp`: ms since 1970, a
        datetime, or now.

        `value` is bytes or str, or what the producer's `value_serializer` takes unless it is `serialized` already.
        `topic`: another one than the producer's; the first message for it registers the producer there.

        Give an `idempotency_key` if the message has an identity of its own: sent again under it, also by another
        process with this producer's name, it is stored once. Such a message travels alone, without order with respect
        to others, and cannot have a timestamp or headers of its own.
        """
        if self._serializer is not None and not serialized:
            value = self._serializer(value)
        data = value if type(value) is bytes else as_bytes(value, "value")
        size = len(data)
        if size > MAX_MESSAGE_BYTES:
            raise TooLarge(f"message has {size} bytes, the limit is {MAX_MESSAGE_BYTES}")
        size += MESSAGE_OVERHEAD
        key_data: bytes | None = None
        if key is not None:
            key_data = key if type(key) is bytes else as_bytes(key, "key")
            if len(key_data) > MAX_KEY_BYTES:
                raise TooLarge(f"key has {len(key_data)} bytes, the limit is {MAX_KEY_BYTES}")
            size += len(key_data)
        if partition is not None and type(partition) is not int:
            partition = checked_int("partition", partition)
        if idempotency_key is not None:
            if timestamp is not None or headers is not None:
                raise WrongValue("a message with an idempotency_key has no timestamp or headers of its own")
            return self._send_idempotent(topic, data, key_data, partition, idempotency_key)
        header_data: Headers | None = None
        if headers is not None:
            header_data, header_bytes = checked_headers(headers)
            size += header_bytes
            if size > LARGEST_BATCH:
                raise TooLarge(f"message with its headers has {size} bytes, the limit is {LARGEST_BATCH}")
        time_ms = time.time_ns() // 1_000_000 if timestamp is None else timestamp_ms(timestamp, "timestamp")
        if topic is not None:
            check_topic(topic)
        sender = self._senders.get(self.topic if topic is None else topic)
        if sender is None:
            sender = self._sender(topic)
        with sender.lock:
            buffer = sender.buffer
            if sender.refusing or buffer.used + size > buffer.limit:
                self._await_buffer(sender, size)
            accumulator = sender.accumulator
            delivery = accumulator.add(data, key_data, partition, time_ms, header_data, size)
            if accumulator.changed:
                sender.dispatch()
            return delivery

    def send_many(
        self,
        values: Iterable[Any] | Tabular,
        partition: int | None = None,
        *,
        keys: Iterable[Value | None] | None = None,
        headers: Iterable[MessageHeaders | None] | None = None,
        timestamps: Iterable[int | datetime | None] | None = None,
        topic: str | None = None,
    ) -> Deliveries:
        """Sends a list of values in batches; one future for all of them. The fast way.

        `keys`, `headers` and `timestamps` have one entry for each value, or None, as `send` takes them. Columns of
        Arrow, pandas or numpy are as good as lists. A table is its columns `value`, `key`, `headers` and `timestamp`.

        Sends nothing if one of the messages is invalid. If the buffer stays full, some may be in flight: the
        DeliveryTimeout says how many, the next `flush` raises their error.
        """
        if partition is not None:
            partition = checked_int("partition", partition)
        many = checked_many(values, keys, headers, timestamps, self._serializer)
        sender = self._sender(topic)
        parts: list[tuple[BatchResult, int, int]] = []
        with noting_what_is_sent(parts, many):
            for size in self._add_many(sender, many, partition, parts):
                if size:
                    with sender.lock:
                        self._await_buffer(sender, size)
        return Deliveries(parts)

    def send_table(
        self, table: Tabular, key: Value | None = None, partition: int | None = None, *, topic: str | None = None
    ) -> Deliveries:
        """Sends a `pyarrow.Table`, a `RecordBatch` or a pandas DataFrame, as many rows to a message as fit into it.

        `myqueue.table_of` makes a table of the messages again. Give a key or a partition if the order of the rows is
        to be kept: it holds inside a partition.
        """
        parts: list[tuple[BatchResult, int, int]] = []
        with noting_what_is_sent(parts, None):
            parts.extend(
                self.send(value, key, partition, topic=topic, serialized=True).as_part()
                for value in table_values(table)
            )
        return Deliveries(parts)

    def flush(self, timeout: float | None = None) -> None:
        """Waits until every message that was sent is decided, in all topics.

        Raises the first error that the caller has not seen (by `result`, `exception`, `await` or `on_delivery`), so
        that no message is lost silently; DeliveryTimeout if some are still in flight.
        """
        if in_send_thread():
            raise RuntimeError("on_delivery must not wait for other deliveries")
        check_timeout(timeout)
        buffer = self._topics.buffer
        with buffer.lock, self._flushing():
            if not buffer.changed.wait_for(self._topics.drained, timeout):
                raise self._not_drained(timeout)
        self._raise_unretrieved()

    def close(self, timeout: float | None = None) -> None:
        """Flushes, then stops. Messages that are not decided after `timeout` fail. Closing twice is fine."""
        if in_send_thread():
            raise RuntimeError("on_delivery must not close its producer")
        check_timeout(timeout)
        if self._topics.begin_close():
            try:
                if self._topics.process_id == process_id():  # else nothing was sent here
                    self.flush(timeout)
            finally:
                self._topics.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except MyQueueError as failed:
            if error is None:
                raise
            error.add_note(f"closing the producer {self.name!r} then failed: {failed}")

    def __del__(self) -> None:
        """Takes no lock: the garbage collector may run this in a thread that holds it."""
        topics = self.__dict__.get("_topics")  # not there if an argument was refused
        if topics is None or topics.closed or topics.process_id != process_id():
            return
        if waiting := sum(not sender.drained for sender in list(self._senders.values())):
            text = f"the producer {self.name!r} was dropped with messages in its buffer, of {waiting} topics: close it"
            logger.warning("%s; they are sent if the process lives on", text)
            with suppress(Exception):  # a filter may turn it into an error, of which nothing here can take notice
                warnings.warn(text, ResourceWarning, stacklevel=2, source=self)
        with suppress(RuntimeError):  # the interpreter ends
            _thread.start_new_thread(topics.retire, ())

    def _open_default(self, topic: str) -> None:
        try:
            self._topics.open(topic)
        except BaseException:
            self.close()
            raise

    def _sender(self, topic: str | None) -> Sender:
        """Of the topic, or of the producer's own; opens it."""
        wanted = self.topic if topic is None else topic
        if wanted is None:
            raise WrongValue("the producer has no topic of its own: give send a topic, or the Producer")
        check_topic(wanted)
        return self._senders.get(wanted) or self._open(wanted)

    def _open(self, topic: str) -> Sender:
        return self._topics.open(topic)

    def _add_many(
        self,
        sender: Sender,
        many: ManyMessages,
        partition: int | None,
        parts: list[tuple[BatchResult, int, int]],
    ) -> Iterator[int]:
        """Adds the messages; yields a size for which the caller has to await the buffer, or 0 if others may run."""
        timestamp = time.time_ns() // 1_000_000
        accumulator, buffer = sender.accumulator, sender.buffer
        may_wait = not in_send_thread()
        for number, piece, size in self._pieces(sender, many, partition, timestamp):
            added = False
            while not added:
                with sender.lock:
                    if not sender.refusing and (buffer.fits(size) or not may_wait):
                        if isinstance(piece, FewMessages):
                            parts += accumulator.add_few(piece, number, timestamp)
                        else:
                            parts.append(accumulator.add_many(piece, number, timestamp, size))
                        added = True
                        if accumulator.changed:
                            sender.dispatch()
                if not added:
                    yield size
            yield 0

    def _pieces(
        self, sender: Sender, many: ManyMessages, partition: int | None, timestamp: int
    ) -> Iterator[tuple[int | None, list[bytes] | FewMessages | pa.RecordBatch, int]]:
        """Partition, messages that fit into a batch of it, and their size."""
        accumulator = sender.accumulator

        def free_bytes(number: int | None) -> int:
            with sender.lock:
                return accumulator.free_bytes(number)

        if isinstance(many, CheckedValues):
            for values, size in accumulator.split(many.values, many.sizes, free_bytes(partition)):
                yield partition, values, size
            return
        free_bytes(partition)  # raises an error if there is no such partition, also if there is nothing to send
        if isinstance(many, FewMessages):
            if many.rows:
                yield partition, many, many.size
            return
        for window in many.windows(timestamp):
            divided = by_partition(window, accumulator.partitions) if partition is None else [(partition, window)]
            for number, messages in divided:
                for columns, size in accumulator.split_columns(messages, free_bytes(number)):
                    yield number, columns, size

    def _send_idempotent(
        self, topic: str | None, data: bytes, key: bytes | None, partition: int | None, idempotency_key: str
    ) -> Delivery:
        check_idempotency_key(idempotency_key)
        sender = self._sender(topic)
        deadline = time.monotonic() + self._delivery_timeout_s
        message = IdempotentMessage(sender.identity.topic, data, key, partition, idempotency_key, deadline)
        with sender.lock:
            if sender.refusing or not sender.buffer.fits(message.size):
                self._await_buffer(sender, message.size)
            sender.add_idempotent(message)
        return Delivery(message, 0)

    def _await_buffer(self, sender: Sender, size: int) -> None:
        """Backpressure: waits until the buffer takes `size` more bytes. Called with the lock held."""
        # A callback that sends must not wait: its own thread is one of those that empty the buffer.
        if not in_send_thread() and not sender.buffer.changed.wait_for(
            lambda: sender.refusing or sender.buffer.fits(size), self._delivery_timeout_s
        ):
            raise self._stayed_full()
        self._check_refusing(sender)

    def _stayed_full(self) -> DeliveryTimeout:
        limit = self._topics.buffer.limit
        return DeliveryTimeout(
            f"the send buffer of producer {self.name!r}, {limit} bytes, stayed full for {self._delivery_timeout_s} s",
            outcome="not_written",
        )

    def _check_refusing(self, sender: Sender) -> None:
        self._topics.check_usable()
        if sender.fatal is not None:
            raise copy_of(sender.fatal)

    @contextmanager
    def _flushing(self) -> Iterator[None]:
        """With the buffer's lock held, at both ends."""
        flushed = self._topics.begin_flush()
        try:
            yield
        finally:
            for sender in flushed:
                sender.end_flush()

    def _not_drained(self, timeout: float | None) -> DeliveryTimeout:
        topics = ", ".join(repr(topic) for topic, sender in sorted(self._topics.senders.items()) if not sender.drained)
        return DeliveryTimeout(
            f"{self._topics.incomplete()} messages to {topics} are still on their way after {timeout} s"
        )

    def _raise_unretrieved(self) -> None:
        if not self._topics.closed:
            self._topics.check_usable()
        with self._topics.buffer.lock:
            failed = self._topics.take_failed()
        if failed and (error := failed[0].error) is not None:
            count = sum(result.unretrieved for result in failed)
            error.add_note(
                f"{count} of the messages sent to {', '.join(sorted({repr(r.topic) for r in failed}))} failed"
            )
            raise error


@contextmanager
def noting_what_is_sent(parts: list[tuple[BatchResult, int, int]], many: ManyMessages | None) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        if parts:
            of_all = "" if many is None else f" of the {len(many)}"
            first = "" if isinstance(many, MessageColumns) else "the first "  # columns are sent by partition
            error.add_note(f"{first}{len(Deliveries(parts))}{of_all} messages are on their way")
        raise
