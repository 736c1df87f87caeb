"""Reader: reads partitions of a topic from given offsets on, without a registration."""

import logging
import math
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Self

from myqueue.async_routing import AsyncRouting
from myqueue.async_transport import AsyncTransport
from myqueue.background_errors import BackgroundErrors
from myqueue.decoding import Messages
from myqueue.fetcher import ChangeCondition, Fetcher
from myqueue.io_thread import io_threads
from myqueue.message import Message
from myqueue.protocol.errors import MyQueueError, OffsetOutOfRange
from myqueue.subscription_state import PartitionLease, SubscriptionState
from myqueue.transport import DEFAULT_RETRY, DEFAULT_TIMEOUTS, RetryPolicy, Timeouts, Transport

logger = logging.getLogger("myqueue")


class Reader:
    """For looking at a topic. No cursor is stored: to go on later, keep the offsets of `position`.

    Messages are fetched ahead in the background, and handed out in the order of their partition, to one thread.
    """

    def __init__(
        self,
        url: str | None = None,
        topic: str = "",
        offsets: Mapping[int, int] | None = None,
        *,
        prefetch_bytes: int = 16 << 20,
        fetch_bytes: int = 4 << 20,
        retry: RetryPolicy = DEFAULT_RETRY,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
    ) -> None:
        """`offsets`: the first one wanted of each partition; other partitions are not read."""
        if not topic or offsets is None:
            raise TypeError("a Reader needs a topic and offsets: the first one wanted of each partition")
        self.topic = topic
        self.skipped = 0  # messages that retention had deleted before they were read
        self._transport = Transport(url, timeouts=timeouts, retry=retry)
        self._lock = threading.Lock()
        self._changed = ChangeCondition(self._lock)
        self._subscription = SubscriptionState()
        self._messages: Iterator[Message] = iter(())
        self._closed = False
        self._io = io_threads.acquire(self._transport.url)
        routing = AsyncRouting(AsyncTransport(self._io, self._transport), topic)
        try:
            table = self._io.run(routing.table())
        except BaseException:
            io_threads.release(self._io.url, self._io)
            self._transport.close()
            raise
        self._fetcher = Fetcher(
            self._io,
            routing,
            table,
            self._subscription,
            BackgroundErrors(retry.deadline_s),
            self._lock,
            self._changed,
            prefetch_bytes=prefetch_bytes,
            fetch_bytes=fetch_bytes,
            in_background=False,
            on_gap=self._gap,
        )
        with self._lock:
            # No other member competes for them: the leases never expire.
            held = [PartitionLease(partition, 0, offset, revoking=False) for partition, offset in offsets.items()]
            self._subscription.renew(held, 0.0, math.inf)
            self._fetcher.wake()

    def poll(self, timeout: float | None = None) -> Message | None:
        """The next message; None if none came within `timeout` seconds, or the reader was closed meanwhile.

        `poll(0)` does not wait for what is still to be fetched. An error that lasts longer than the retry policy's
        deadline is raised.
        """
        message = next(self._messages, None)
        if message is not None:
            return message
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        with self._lock:
            self._subscription.finish_in_flight()
            self._fetcher.wait_for(lambda: self._subscription.ready(time.monotonic()), deadline)
            taken = None if self._closed else self._subscription.take(time.monotonic())
            if taken is None:
                return None
            state, chunk = taken
            messages = Messages(self.topic, chunk)
            self._subscription.hand_out(state, chunk, messages)
            self._messages = messages.iterator
            self._fetcher.refill(chunk.size)
        return next(messages.iterator, None)

    def position(self) -> dict[int, int]:
        """The next offset to hand out, of each partition."""
        with self._lock:
            return self._subscription.positions()

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._fetcher.stop()
            self._subscription.stop()
            self._changed.notify_all()
        try:
            self._io.run(self._fetcher.close())
        finally:
            io_threads.release(self._io.url, self._io)
            self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _gap(self, gone: int, _: OffsetOutOfRange) -> MyQueueError | None:
        """Called by the fetcher with the lock held."""
        self.skipped += gone
        logger.warning("%d messages of %s were deleted by retention before they were read", gone, self.topic)
        return None
