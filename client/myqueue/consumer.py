"""Consumer: reads a topic, or one partition of it, message by message."""

import threading
import time
import uuid
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from myqueue.message import Message, message_from_body
from myqueue.protocol.errors import MyQueueError
from myqueue.protocol.limits import MAX_WAIT_MS
from myqueue.retry import DEFAULT_RETRY, RetryPolicy
from myqueue.simple_api import SimpleApi, Start, new_key
from myqueue.transport import DEFAULT_TIMEOUTS, Timeouts, Transport


class Consumer:
    """A named position in a topic. Consumers with the same name, in any process, share it and split the messages.

    Reading moves the position. Each read carries an Idempotency-Key that changes only when a message has arrived: a
    read whose answer was lost is asked for again, by a retry or by the next `poll`, and gets the same message.
    """

    def __init__(
        self,
        url: str,
        topic: str,
        name: str | None = None,
        partition: int | None = None,
        start: Start = "latest",
        *,
        wait_s: float = 2.0,
        retry: RetryPolicy = DEFAULT_RETRY,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
    ) -> None:
        """`start` counts only when the name is new. `wait_s` is how long one request waits at the server for a
        message: `close` from another thread ends a waiting iteration after at most that time."""
        self.topic = topic
        self.name = name or f"consumer-{uuid.uuid4().hex}"  # a name of its own makes registering safe to repeat
        self.partition = partition
        self._wait_s = min(wait_s, MAX_WAIT_MS / 1000)
        self._api = SimpleApi(Transport(url, timeouts=timeouts, retry=retry))
        self._reading = threading.Lock()
        self._closed = False
        self._key = new_key()
        try:
            self.consumer_id: int = self._api.register_consumer(topic, self.name, partition, start)["consumer_id"]
        except BaseException:
            self._api.close()
            raise

    def poll(self, timeout: float | None = None) -> Message | None:
        """The next message; None if none came within `timeout` seconds, or the consumer was closed meanwhile.

        Without a timeout it waits until there is one. While the cluster does not answer, the deadline of the retry
        policy counts, not the timeout.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._closed:
            left_s = self._wait_s if deadline is None else max(0.0, deadline - time.monotonic())
            message = self._read(min(left_s, self._wait_s))
            if message is not None:
                return message
            if deadline is not None and time.monotonic() >= deadline:
                return None
        return None

    def get_message(self) -> Message | None:
        """The next message, or None if there is none right now."""
        return self.poll(0)

    def size(self) -> int:
        """Messages that this consumer has not read yet."""
        size: int = self._api.size(self.topic, self.consumer_id)["size"]
        return size

    def __iter__(self) -> Iterator[Message]:
        """Waits for more until the consumer is closed."""
        while (message := self.poll()) is not None:
            yield message

    def close(self) -> None:
        """Ends iterations, also in other threads. A message that is on its way to one is still handed out."""
        self._closed = True
        self._api.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self, wait_s: float) -> Message | None:
        with self._reading:
            try:
                body = self._api.consume(
                    self.topic,
                    self.consumer_id,
                    wait_ms=int(wait_s * 1000),
                    idempotency_key=self._key,
                )
            except MyQueueError:
                if self._closed:
                    return None
                raise
            if body is None:
                return None
            message = message_from_body(self.topic, body)
            self._key = new_key()
            return message
