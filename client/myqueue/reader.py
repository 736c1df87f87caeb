"""Reader: reads partitions of a topic from given offsets on, without a registration."""

import logging
import math
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Self

from myqueue.argument_checks import WrongType, WrongValue, check_timeout, check_topic, checked_int
from myqueue.async_routing import AsyncRouting
from myqueue.async_transport import AsyncTransport
from myqueue.background_errors import BackgroundErrors
from myqueue.client_reprs import shown
from myqueue.decoding import Messages
from myqueue.fetcher import ChangeCondition, Fetcher
from myqueue.io_thread import io_threads
from myqueue.message import Message
from myqueue.process_shared import process_id, tell_after_fork
from myqueue.protocol.errors import InvalidRequest, MyQueueError, OffsetOutOfRange, PartitionNotFound
from myqueue.routing import RoutingTable
from myqueue.subscription_state import PartitionLease, SubscriptionState
from myqueue.transport import DEFAULT_RETRY, DEFAULT_TIMEOUTS, RetryPolicy, Timeouts, Transport

logger = logging.getLogger("myqueue")


_of_parent: list[object] = []  # an event loop that is dropped in a child changes what the parent's loop waits for


class ReaderClosed(InvalidRequest):
    """The reader was closed before the call."""


class ForkedReader(InvalidRequest):
    """The reader was opened by the parent process, where its background thread is."""


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
            raise WrongType("a Reader needs a topic and offsets: the first one wanted of each partition")
        check_topic(topic)
        starts = _checked(offsets)
        self.topic = topic
        self.skipped = 0  # messages that retention had deleted before they were read
        self._transport = Transport(url, timeouts=timeouts, retry=retry)
        self._lock = threading.Lock()
        self._changed = ChangeCondition(self._lock)
        self._subscription = SubscriptionState()
        self._messages: Iterator[Message] = iter(())
        self._closed = False
        self._process_id = process_id()
        self._io = io_threads.acquire(self._transport.url)
        tell_after_fork(self)
        routing = AsyncRouting(AsyncTransport(self._io, self._transport), topic)
        try:
            table = self._io.run(routing.table())
            _check_partitions(starts, table)
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
            held = [PartitionLease(partition, 0, offset, revoking=False) for partition, offset in starts.items()]
            self._subscription.renew(held, 0.0, math.inf)
            self._fetcher.wake()

    def poll(self, timeout: float | None = None) -> Message | None:
        """The next message; None if none came within `timeout` seconds, or the reader was closed meanwhile.

        `poll(0)` does not wait for what is still to be fetched. An error that lasts longer than the retry policy's
        deadline is raised.
        """
        if self._closed or self._process_id != process_id():
            raise self._unusable()
        message = next(self._messages, None)
        if message is not None:
            return message
        check_timeout(timeout)
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

    def _unusable(self) -> ReaderClosed | ForkedReader:
        if self._process_id == process_id():
            return ReaderClosed(f"the reader of topic {self.topic!r} is closed: open another one")
        return ForkedReader(
            f"the reader of topic {self.topic!r} belongs to process {self._process_id}, and this is process"
            f" {process_id()}, forked from it: open a reader in this process"
        )

    def forget_parent(self) -> None:
        """In a child process: hands out nothing more. No lock: a thread that is not here may have it."""
        self._messages = iter(())
        _of_parent.append(self._io)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        if self._process_id != process_id():
            return shown("Reader", f"of process {self._process_id}", topic=self.topic, url=self._transport.url)
        return shown("Reader", state, topic=self.topic, position=self.position(), url=self._transport.url)

    def position(self) -> dict[int, int]:
        """The next offset to hand out, of each partition."""
        with self._lock:
            return self._subscription.positions()

    def close(self) -> None:
        if self._process_id != process_id():
            return  # it is the parent's
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


def _checked(offsets: Mapping[int, int]) -> dict[int, int]:
    if not isinstance(offsets, Mapping):
        raise WrongType(f"offsets must be {{partition: offset}}, not {type(offsets).__name__}")
    checked = {checked_int("offsets: a partition", p): checked_int("offsets: an offset", o) for p, o in offsets.items()}
    if any(partition < 0 or offset < 0 for partition, offset in checked.items()):
        raise WrongValue(f"offsets: partitions and offsets are 0 or more, not {checked}")
    return checked


def _check_partitions(offsets: Mapping[int, int], table: RoutingTable) -> None:
    count = len(table.leaders)
    if missing := [partition for partition in offsets if partition >= count]:
        raise PartitionNotFound(
            f"partition not found: {missing[0]} of topic {table.topic!r}; its partitions are 0 to {count - 1}"
        )
