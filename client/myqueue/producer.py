"""Producer: sends the messages of a topic in the background, in order, each stored exactly once."""

import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from myqueue.delivery import Delivery
from myqueue.message import Receipt, Value, as_bytes
from myqueue.protocol.errors import InvalidRequest, MyQueueError, Outcome, TooLarge, Unavailable
from myqueue.protocol.limits import MAX_IDEMPOTENCY_KEY_CHARS, MAX_KEY_BYTES, MAX_MESSAGE_BYTES
from myqueue.retry import DEFAULT_RETRY, RetryPolicy
from myqueue.simple_api import SimpleApi
from myqueue.transport import DEFAULT_TIMEOUTS, Timeouts, Transport

logger = logging.getLogger("myqueue")

OnDelivery = Callable[[Delivery], None]


@dataclass(frozen=True, slots=True)
class _Outgoing:
    value: bytes
    key: bytes | None
    partition: int | None
    idempotency_key: str
    deadline: float  # monotonic
    delivery: Delivery

    @property
    def size(self) -> int:
        return len(self.value) + len(self.key or b"")


class Producer:
    """One thread sends what the buffer holds, one message after the other, so that retries cannot change their order.

    `send` returns at once and waits only while the buffer is full. Every message carries an Idempotency-Key that stays
    the same through all retries. May be shared by threads.
    """

    def __init__(
        self,
        url: str,
        topic: str,
        name: str | None = None,
        *,
        buffer_messages: int = 1000,
        buffer_bytes: int = 32 << 20,
        delivery_timeout_s: float = 60.0,
        on_delivery: OnDelivery | None = None,
        retry: RetryPolicy = DEFAULT_RETRY,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
    ) -> None:
        self.topic = topic
        self.name = name or f"producer-{uuid.uuid4().hex}"  # a name of its own makes registering safe to repeat
        self._buffer_messages = buffer_messages
        self._buffer_bytes = buffer_bytes
        self._delivery_timeout_s = delivery_timeout_s
        self._on_delivery = on_delivery
        self._api = SimpleApi(Transport(url, timeouts=timeouts, retry=retry))
        self._changed = threading.Condition()
        self._waiting: deque[_Outgoing] = deque()  # the first one is being sent
        self._waiting_bytes = 0
        self._failed: list[Delivery] = []  # since the last flush
        self._closed = False
        self._key_prefix = uuid.uuid4().hex
        self._sent = 0
        try:
            self.producer_id: int = self._api.register_producer(topic, self.name)["producer_id"]
        except BaseException:
            self._api.close()
            raise
        self._sender = threading.Thread(target=self._run, name=f"myqueue-{self.name}", daemon=True)
        self._sender.start()

    def send(
        self,
        value: Value,
        key: Value | None = None,
        partition: int | None = None,
        *,
        idempotency_key: str | None = None,
    ) -> Delivery:
        """Puts a message into the buffer. A key always goes to the same partition.

        Give an `idempotency_key` if the message has an identity of its own: sent again under it, also by another
        process with this producer's name, it is stored once.
        """
        data = as_bytes(value, "value")
        key_data = None if key is None else as_bytes(key, "key")
        if len(data) > MAX_MESSAGE_BYTES:
            raise TooLarge(f"message has {len(data)} bytes, the limit is {MAX_MESSAGE_BYTES}")
        if key_data is not None and len(key_data) > MAX_KEY_BYTES:
            raise TooLarge(f"key has {len(key_data)} bytes, the limit is {MAX_KEY_BYTES}")
        if idempotency_key is not None and not _is_header_text(idempotency_key):
            raise InvalidRequest(f"idempotency_key must be 1 to {MAX_IDEMPOTENCY_KEY_CHARS} printable ASCII characters")
        deadline = time.monotonic() + self._delivery_timeout_s
        with self._changed:
            size = len(data) + len(key_data or b"")
            # A callback that sends must not wait: its own thread is the one that makes room.
            if not self._in_callback() and not self._changed.wait_for(
                lambda: self._closed or self._has_room(size), self._delivery_timeout_s
            ):
                raise TimeoutError(f"the send buffer stayed full for {self._delivery_timeout_s} s")
            if self._closed:
                raise RuntimeError("the producer is closed")
            delivery = Delivery(self._changed)
            self._sent += 1
            own_key = idempotency_key or f"{self._key_prefix}-{self._sent}"
            outgoing = _Outgoing(data, key_data, partition, own_key, deadline, delivery)
            self._waiting.append(outgoing)
            self._waiting_bytes += outgoing.size
            self._changed.notify_all()
        return delivery

    def send_many(self, values: Iterable[Value]) -> list[Delivery]:
        return [self.send(value) for value in values]

    def flush(self, timeout: float | None = None) -> None:
        """Waits until every message that was sent is decided.

        Raises the first error that nobody has asked for (by `result`, `exception` or `on_delivery`), so that a message
        cannot get lost unnoticed; TimeoutError if some are still on their way.
        """
        if self._in_callback():
            raise RuntimeError("on_delivery must not wait for other deliveries")
        with self._changed:
            if not self._changed.wait_for(lambda: not self._waiting, timeout):
                raise TimeoutError(f"{len(self._waiting)} messages are still on their way after {timeout} s")
            unnoticed = [delivery for delivery in self._failed if not delivery.noticed]
            self._failed.clear()
        if unnoticed and (error := unnoticed[0].exception(0)) is not None:
            error.add_note(f"{len(unnoticed)} of the messages sent to {self.topic!r} failed")
            raise error

    def close(self, timeout: float | None = None) -> None:
        """Flushes, then stops. What is not decided after `timeout` fails. Closing twice is fine."""
        if self._in_callback():
            raise RuntimeError("on_delivery must not close its producer")
        with self._changed:
            if self._closed:
                return
            self._closed = True  # no more sends; the thread goes on until the buffer is empty
            self._changed.notify_all()
        try:
            self.flush(timeout)
        finally:
            self._abandon()
            self._api.close()
            self._sender.join(1.0)  # longer only while an attempt that was abandoned waits for its answer

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

    def _in_callback(self) -> bool:
        return threading.current_thread() is self._sender

    def _has_room(self, size: int) -> bool:
        if not self._waiting:
            return True
        return len(self._waiting) < self._buffer_messages and self._waiting_bytes + size <= self._buffer_bytes

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                outgoing = self._waiting[0]
            self._settle(outgoing, self._deliver(outgoing))

    def _deliver(self, outgoing: _Outgoing) -> Receipt | MyQueueError:
        left_s = outgoing.deadline - time.monotonic()
        if left_s <= 0:
            return Unavailable("waited in the send buffer past its delivery timeout", outcome="not_written")
        try:
            body = self._api.produce(
                self.topic,
                self.producer_id,
                outgoing.value,
                outgoing.key,
                outgoing.partition,
                idempotency_key=outgoing.idempotency_key,
                deadline_s=left_s,
            )
            return Receipt(self.topic, body["partition_id"], body["offset"])
        except MyQueueError as error:
            return error
        except Exception as error:
            # The thread must outlive a defect, else every later send would wait for ever.
            logger.exception("sending to %s", self.topic)
            return MyQueueError(f"defect while sending: {error!r}", outcome="unknown")

    def _settle(self, outgoing: _Outgoing, outcome: Receipt | MyQueueError) -> None:
        with self._changed:
            if not self._waiting or self._waiting[0] is not outgoing:
                return  # abandoned by close
            outgoing.delivery.settle(outcome)
        # Before it leaves the buffer: a flush returns when the callbacks have run, too.
        if self._on_delivery is not None:
            self._tell(self._on_delivery, outgoing.delivery)
        with self._changed:
            if self._waiting and self._waiting[0] is outgoing:
                self._waiting.popleft()
                self._waiting_bytes -= outgoing.size
            if isinstance(outcome, MyQueueError):
                self._failed.append(outgoing.delivery)
            self._changed.notify_all()

    def _tell(self, on_delivery: OnDelivery, delivery: Delivery) -> None:
        try:
            delivery.exception(0)  # from here on it counts as noticed
            on_delivery(delivery)
        except Exception:
            logger.exception("on_delivery raised")  # the caller's defect must not stop the messages behind

    def _abandon(self) -> None:
        with self._changed:
            for position, outgoing in enumerate(self._waiting):
                outcome: Outcome = "unknown" if position == 0 else "not_written"
                if not outgoing.delivery.done():
                    outgoing.delivery.settle(Unavailable("the producer was closed before the answer", outcome=outcome))
            self._waiting.clear()
            self._waiting_bytes = 0
            self._changed.notify_all()


def _is_header_text(key: str) -> bool:
    return 0 < len(key) <= MAX_IDEMPOTENCY_KEY_CHARS and key.isascii() and key.isprintable() and key == key.strip()
