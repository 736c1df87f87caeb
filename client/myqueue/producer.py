"""Producer: sends the messages of a topic in batches, in order, each stored exactly once."""

import threading
import time
import uuid
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Literal, Self, cast

from myqueue.accumulator import MESSAGE_OVERHEAD
from myqueue.delivery import BatchResult, Deliveries, Delivery
from myqueue.idempotent_message import IdempotentMessage
from myqueue.message import Value, as_bytes
from myqueue.partition_queue import Headers
from myqueue.protocol.batch import CODECS
from myqueue.protocol.errors import InvalidRequest, MyQueueError, TooLarge
from myqueue.protocol.limits import (
    MAX_BATCH_BYTES,
    MAX_HEADER_KEY_CHARS,
    MAX_HEADERS,
    MAX_IDEMPOTENCY_KEY_CHARS,
    MAX_KEY_BYTES,
    MAX_MESSAGE_BYTES,
)
from myqueue.sender import OnDelivery, Sender
from myqueue.transport import DEFAULT_RETRY, DEFAULT_TIMEOUTS, RetryPolicy, Timeouts, Transport

Compression = Literal["none", "lz4", "zstd"]
MessageHeaders = Mapping[str, Value | None] | Iterable[tuple[str, Value | None]]

_LARGEST_BATCH = MAX_BATCH_BYTES - (64 << 10)  # the rest is for the batch's header and schema
_LARGEST_TIMESTAMP = (1 << 63) - 1


class Producer:
    """`send` puts a message into a batch and returns at once; it waits only while the buffer is full.

    Each batch is stamped with this producer's epoch and its partition's sequence, so that retries change no order and
    store nothing twice. May be shared by threads.
    """

    def __init__(
        self,
        url: str,
        topic: str,
        name: str | None = None,
        *,
        linger_ms: float = 0.0,
        batch_bytes: int = 1 << 20,
        max_in_flight: int = 4,
        compression: Compression = "none",
        buffer_bytes: int = 64 << 20,
        delivery_timeout_s: float = 60.0,
        on_delivery: OnDelivery | None = None,
        retry: RetryPolicy = DEFAULT_RETRY,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
    ) -> None:
        """A newer producer of the same `name` fences an older one."""
        if compression not in CODECS:
            raise ValueError(f"compression must be one of {', '.join(CODECS)}, not {compression!r}")
        if not 1 <= batch_bytes <= _LARGEST_BATCH:
            raise ValueError(f"batch_bytes must be from 1 to {_LARGEST_BATCH}")
        if max_in_flight < 1:
            raise ValueError("max_in_flight must be 1 or more")
        self.topic = topic
        self.name = name or f"producer-{uuid.uuid4().hex}"  # a name of its own makes registering safe to repeat
        self._buffer_bytes = buffer_bytes
        self._delivery_timeout_s = delivery_timeout_s
        self._closed = False
        self._transport = Transport(url, timeouts=timeouts, retry=retry)
        try:
            self._sender = Sender(
                self._transport,
                topic,
                self.name,
                codec=CODECS[compression],
                batch_bytes=batch_bytes,
                linger_s=linger_ms / 1000,
                max_in_flight=max_in_flight,
                delivery_timeout_s=delivery_timeout_s,
                on_delivery=on_delivery,
            )
        except BaseException:
            self._transport.close()
            raise
        self._lock: threading.Lock = self._sender.lock
        self._accumulator = self._sender.accumulator

    @property
    def producer_id(self) -> int:
        return self._sender.identity.producer_id

    def send(
        self,
        value: Value,
        key: Value | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: MessageHeaders | None = None,
        *,
        idempotency_key: str | None = None,
    ) -> Delivery:
        """Puts a message into the buffer. A key always goes to the same partition. `timestamp`: ms since 1970, or now.

        Give an `idempotency_key` if the message has an identity of its own: sent again under it, also by another
        process with this producer's name, it is stored once. Such a message travels alone, without order with respect
        to others, and cannot have a timestamp or headers of its own.
        """
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
        if idempotency_key is not None:
            if timestamp is not None or headers is not None:
                raise InvalidRequest("a message with an idempotency_key has no timestamp or headers of its own")
            return self._send_idempotent(data, key_data, partition, idempotency_key)
        header_data: Headers | None = None
        if headers is not None:
            header_data, header_bytes = _checked_headers(headers)
            size += header_bytes
            if size > _LARGEST_BATCH:
                raise TooLarge(f"message with its headers has {size} bytes, the limit is {_LARGEST_BATCH}")
        if timestamp is None:
            timestamp = time.time_ns() // 1_000_000
        elif type(timestamp) is not int or not 0 <= timestamp <= _LARGEST_TIMESTAMP:
            raise InvalidRequest("timestamp must be an integer: ms since 1970")
        accumulator = self._accumulator
        with self._lock:
            if self._sender.refusing or accumulator.buffered + size > self._buffer_bytes:
                self._await_buffer(size)
            delivery = accumulator.add(data, key_data, partition, timestamp, header_data, size)
            if accumulator.changed:
                self._sender.dispatch()
            return delivery

    def send_many(self, values: Iterable[Value], partition: int | None = None) -> Deliveries:
        """Sends a list of values, without keys, in batches; one future for all of them. The fast way.

        Sends nothing if one of the values is invalid. If the buffer stays full, some may be in flight: the
        TimeoutError says how many, the next `flush` raises their error.
        """
        checked, sizes = _checked_values(values)
        timestamp = time.time_ns() // 1_000_000
        parts: list[tuple[BatchResult, int, int]] = []
        with self._lock:
            free_bytes = self._accumulator.free_bytes(partition)
        try:
            for piece, size in self._accumulator.split(checked, sizes, free_bytes):
                with self._lock:
                    if self._sender.refusing or self._accumulator.buffered + size > self._buffer_bytes:
                        self._await_buffer(size)
                    parts.append(self._accumulator.add_many(piece, partition, timestamp, size))
                    if self._accumulator.changed:
                        self._sender.dispatch()
        except (TimeoutError, MyQueueError, RuntimeError) as error:
            if parts:
                error.add_note(f"the first {len(Deliveries(parts))} of the {len(checked)} messages are on their way")
            raise
        return Deliveries(parts)

    def flush(self, timeout: float | None = None) -> None:
        """Waits until every message that was sent is decided.

        Raises the first error that the caller has not seen (by `result`, `exception` or `on_delivery`), so that no
        message is lost silently; TimeoutError if some are still in flight.
        """
        if self._sender.in_callback:
            raise RuntimeError("on_delivery must not wait for other deliveries")
        unretrieved = [failed for failed in self._sender.drain(timeout) if failed.unretrieved]
        if unretrieved and (error := unretrieved[0].error) is not None:
            count = sum(failed.unretrieved for failed in unretrieved)
            error.add_note(f"{count} of the messages sent to {self.topic!r} failed")
            raise error

    def close(self, timeout: float | None = None) -> None:
        """Flushes, then stops. Messages that are not decided after `timeout` fail. Closing twice is fine."""
        if self._sender.in_callback:
            raise RuntimeError("on_delivery must not close its producer")
        with self._lock:
            if self._closed:
                return
            self._closed = self._sender.refusing = True
            self._sender.changed.notify_all()
        try:
            self.flush(timeout)
        finally:
            self._sender.stop()
            self._transport.close()

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
            error.add_note(f"closing the producer of {self.topic!r} then failed: {failed}")

    def _send_idempotent(self, data: bytes, key: bytes | None, partition: int | None, idempotency_key: str) -> Delivery:
        if not _is_header_text(idempotency_key):
            raise InvalidRequest(f"idempotency_key must be 1 to {MAX_IDEMPOTENCY_KEY_CHARS} printable ASCII characters")
        deadline = time.monotonic() + self._delivery_timeout_s
        message = IdempotentMessage(self.topic, data, key, partition, idempotency_key, deadline)
        with self._lock:
            self._await_buffer(message.size)
            self._sender.add_idempotent(message)
        return Delivery(message, 0)

    def _await_buffer(self, size: int) -> None:
        """Backpressure: waits until the buffer takes `size` more bytes. Called with the lock held."""
        # A callback that sends must not wait: its own thread is one of those that empty the buffer.
        if not self._sender.in_callback and not self._sender.changed.wait_for(
            lambda: self._sender.refusing or self._fits_buffer(size), self._delivery_timeout_s
        ):
            raise TimeoutError(f"the send buffer stayed full for {self._delivery_timeout_s} s")
        if self._sender.fatal is not None:
            fatal = self._sender.fatal
            raise type(fatal)(fatal.message, outcome="not_written", request_id=fatal.request_id)
        if self._closed:
            raise RuntimeError("the producer is closed")

    def _fits_buffer(self, size: int) -> bool:
        buffered = self._accumulator.buffered
        return buffered == 0 or buffered + size <= self._buffer_bytes


def _checked_values(values: Iterable[Value]) -> tuple[list[bytes], list[int]]:
    """The values as bytes, and their sizes. Converts whole lists where all values have one type."""
    given = values if isinstance(values, list) else list(values)
    kinds = set(map(type, given))
    checked: list[bytes]
    if kinds <= {bytes}:
        checked = cast(list[bytes], given)
    elif kinds == {str}:
        checked = list(map(str.encode, cast(list[str], given)))
    else:
        checked = [as_bytes(value, "value") for value in given]
    sizes = list(map(len, checked))
    longest = max(sizes, default=0)
    if longest > MAX_MESSAGE_BYTES:
        raise TooLarge(f"message has {longest} bytes, the limit is {MAX_MESSAGE_BYTES}")
    return checked, sizes


def _checked_headers(headers: MessageHeaders) -> tuple[Headers | None, int]:
    """The headers and how many bytes they take."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    checked = tuple((key, None if value is None else as_bytes(value, "header value")) for key, value in pairs)
    if len(checked) > MAX_HEADERS:
        raise InvalidRequest(f"a message may have at most {MAX_HEADERS} headers")
    for key, _ in checked:
        if type(key) is not str or len(key) > MAX_HEADER_KEY_CHARS:
            raise InvalidRequest(f"a header's key must be a str of at most {MAX_HEADER_KEY_CHARS} characters")
    return checked or None, sum(len(key.encode()) + len(value or b"") + 16 for key, value in checked)


def _is_header_text(key: str) -> bool:
    return 0 < len(key) <= MAX_IDEMPOTENCY_KEY_CHARS and key.isascii() and key.isprintable() and key == key.strip()
