"""Consumer: reads a topic, or one partition of it, from where its name has got to."""

import logging
import math
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from myqueue.decoding import Chunk, Messages, table_of
from myqueue.descriptions import Lag, lag_of
from myqueue.fetcher import BackgroundErrors, ChangeCondition, Fetcher
from myqueue.lease_renewer import FIRST_LEASE_S, LeaseRenewer
from myqueue.member_identity import new_member
from myqueue.message import Message
from myqueue.poll_interval import DEFAULT_MAX_POLL_INTERVAL_S, PollInterval
from myqueue.protocol import routes
from myqueue.protocol.errors import InvalidRequest, MyQueueError, OffsetOutOfRange, StaleLease
from myqueue.protocol.limits import MAX_FETCH_BYTES
from myqueue.rebalance_listener import RebalanceCallback, RebalanceListener
from myqueue.routing import RoutingCache
from myqueue.simple_api import SimpleApi, Start
from myqueue.subscription_state import SubscriptionState
from myqueue.transport import DEFAULT_RETRY, DEFAULT_TIMEOUTS, RetryPolicy, Timeouts, Transport

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger("myqueue")

CLOSE_S = 5.0  # for the last commit


class Consumer:
    """A named position in a topic. Consumers with the same name, in any process, split the topic's partitions.

    A partition is leased to one of them at a time. Messages are fetched ahead in the background and handed out in the
    order of their partition. What was handed out counts as handled when the next is asked for; with `commit="auto"`
    the cursor follows every second, so that a process that dies has some messages delivered again, and none is lost.
    """

    def __init__(
        self,
        url: str,
        topic: str,
        name: str | None = None,
        partition: int | None = None,
        start: Start = "latest",
        *,
        commit: Literal["auto", "manual"] = "auto",
        on_gap: Literal["skip", "error"] = "skip",
        on_assign: RebalanceCallback | None = None,
        on_revoke: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
        max_poll_interval_s: float = DEFAULT_MAX_POLL_INTERVAL_S,
        client_id: str | None = None,
        prefetch_bytes: int = 16 << 20,
        fetch_bytes: int = 4 << 20,
        retry: RetryPolicy = DEFAULT_RETRY,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
    ) -> None:
        """`start` counts only when the name is new. `on_gap`: what to do when retention has passed by. `client_id`
        tells people which process reads; by default the script's name and the process id.

        `on_assign`, `on_revoke` and `on_lost` get a list of TopicPartition, inside a call that asks for messages: when
        partitions have come; when they are about to go, and may still be committed; when they are gone (if not given,
        on_revoke). After `max_poll_interval_s` without such a call the member loses its partitions, and the next call
        raises MaxPollIntervalExceeded.
        """
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
        self.skipped = 0  # messages that retention had deleted before they were read
        self._auto_commit = commit == "auto"
        self._gap_is_error = on_gap == "error"
        self._transport = Transport(url, timeouts=timeouts, retry=retry)
        self._api = SimpleApi(self._transport)
        self._prefetch_bytes = prefetch_bytes
        self._fetch_bytes = fetch_bytes
        self._lock = threading.Lock()
        self._changed = ChangeCondition(self._lock)
        has_callbacks = any(callback is not None for callback in (on_assign, on_revoke, on_lost))
        self._subscription = SubscriptionState(auto_commit=self._auto_commit, has_callbacks=has_callbacks)
        self._listener = RebalanceListener(
            topic, self._subscription, self._lock, on_assign=on_assign, on_revoke=on_revoke, on_lost=on_lost
        )
        self._poll_interval = PollInterval(max_poll_interval_s)
        self._errors = BackgroundErrors(retry.deadline_s)
        self._messages: Iterator[Message] = iter(())
        self._reader: int | None = None
        self._closed = False
        self._fetcher: Fetcher | None = None
        try:
            self.consumer_id: int = self._api.register_consumer(topic, self.name, partition, start)["consumer_id"]
        except BaseException:
            self._transport.close()
            raise
        self._lease_renewer = LeaseRenewer(
            self._transport,
            self.consumer_id,
            self._identity,
            self._subscription,
            self._errors,
            self._changed,
            auto_commit=self._auto_commit,
            poll_interval=self._poll_interval,
            leased=self._wake_fetcher,
        )
        self._listener.on_given_up = self._lease_renewer.wake

    # Reading

    def poll(self, timeout: float | None = None) -> Message | None:
        """The next message; None if none came within `timeout` seconds, or the consumer was closed meanwhile.

        Without a timeout it waits until there is one. `poll(0)` asks the cluster: None means that there is nothing to
        read right now. An error that lasts longer than the retry policy's deadline is raised.
        """
        message = next(self._messages, None)
        return self._next_message(timeout) if message is None else message

    def get_message(self) -> Message | None:
        """The next message, or None if there is none right now."""
        return self.poll(0)

    def __iter__(self) -> Iterator[Message]:
        """Waits for more until the consumer is closed."""
        while (message := self.poll()) is not None:
            yield message
            yield from self._messages

    def fetch_arrow(self, max_messages: int = 100_000, timeout: float | None = None) -> "pa.Table":
        """Messages as a table of partition, offset, timestamp, key, value and headers, in each partition's order.

        Waits until there is something, at most `timeout` seconds, and takes what is there then, up to `max_messages`.
        """
        if max_messages < 1:
            raise ValueError("max_messages must be 1 or more")
        chunks: list[Chunk] = []
        count = 0
        with self._polling():
            with self._lock:
                self._subscription.recall_in_flight()
            deadline = _deadline(timeout)
            while not chunks and self._ask_for_more(deadline):
                with self._lock:
                    while count < max_messages and not self._closed:
                        taken = self._subscription.take(time.monotonic())
                        if taken is None:
                            break
                        state, chunk = taken
                        if chunk.count > max_messages - count:
                            self._subscription.put_back(state, chunk.rest(max_messages - count))
                            chunk = chunk.start(max_messages - count)
                        self._subscription.hand_out(state, chunk, None)
                        chunks.append(chunk)
                        count += chunk.count
                    self._refill(sum(chunk.size for chunk in chunks))
        return table_of(chunks)

    # Positions

    def commit(self, what: Message | Iterable[Message] | Mapping[int, int] | None = None) -> dict[int, int]:
        """Moves the cursor, so that what lies before it is not delivered again; the cursors after that.

        Past everything that was handed out, past the given messages, or to the given `{partition: next offset}`. Raises
        StaleLease if another process has the partition by now: it will read those messages again.
        """
        if what is None:
            with self._lock:
                self._check_member()
                offsets = self._subscription.handled(include_in_flight=True)
        elif isinstance(what, Mapping):
            offsets = dict(what)
        else:
            offsets = {}
            for message in [what] if isinstance(what, Message) else what:
                offsets[message.partition] = max(offsets.get(message.partition, 0), message.offset + 1)
            self._check_handed_out(offsets)
        return self._lease_renewer.commit(offsets)

    def _check_handed_out(self, offsets: dict[int, int]) -> None:
        """A commit of messages that were read before a seek must not undo the seek."""
        with self._lock:
            self._check_member()
            positions = self._subscription.positions()
            has_read = self._subscription.known
        for partition, offset in offsets.items():
            if offset > positions.get(partition, -1 if has_read else offset):
                raise StaleLease(
                    f"partition {partition} was sought, or had by another member, since the message was read",
                    details={"partition_id": partition},
                )

    def _check_member(self) -> None:
        """Called with the lock held: what was read before the member had to leave is not its own to commit any more."""
        if (error := self._poll_interval.error(time.monotonic())) is not None:
            raise StaleLease(error.message)

    def seek(self, partition: int | None = None, *, to: int | Start) -> dict[int, int]:
        """Goes to an offset, `"earliest"`, `"latest"` or `{"timestamp": ms}`, also back, in one partition or in all.

        Counts for all processes of this name. The cursors after that.
        """
        where: Any = {"offset": to} if isinstance(to, int) else to if isinstance(to, str) else dict(to)
        chosen = self.partition if partition is None else partition
        if chosen is None and isinstance(where, dict) and "offset" in where:
            raise InvalidRequest("an offset belongs to a partition: say which")
        body = {"to": where} | ({} if chosen is None else {"partition_id": chosen})
        with self._lock:
            self._subscription.seeking += 1
        try:
            answer = self._transport.call(routes.SEEK, path={"consumer_id": self.consumer_id}, body=body).body
            with self._lock:
                for cursor in answer["cursors"]:
                    self._subscription.seek(cursor["partition_id"], cursor["offset"], cursor["generation"])
                self._wake_fetcher()
        finally:
            with self._lock:
                self._subscription.seeking -= 1
        return {cursor["partition_id"]: cursor["offset"] for cursor in answer["cursors"]}

    def position(self) -> dict[int, int]:
        """The next offset to hand out, of each partition that this process has on lease."""
        with self._lock:
            return self._subscription.positions()

    def size(self) -> int:
        """Messages that were not handed out yet, to any process of this name as far as it has committed."""
        with self._lease_renewer.committing:
            size: int = self._api.size(self.topic, self.consumer_id)["size"]
            with self._lock:
                ahead = sum(self._subscription.positions().values()) - sum(
                    state.committed for state in self._subscription
                )
        return max(0, size - ahead)

    def lag(self) -> Lag:
        return lag_of(self._transport.call(routes.LAG, path={"consumer_id": self.consumer_id}).body)

    # Ending

    def close(self) -> None:
        """Commits what was handed out (with `commit="auto"`), gives the partitions back, and ends iterations.

        From another thread than the one that reads, messages in flight are not committed: they may be half processed.
        """
        self._close(include_in_flight=self._reader == threading.get_ident())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(include_in_flight=error is None and self._reader == threading.get_ident())

    def _close(self, *, include_in_flight: bool) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            fetcher = self._fetcher
            if fetcher is not None:
                fetcher.stop()
            self._subscription.stop()
            if not include_in_flight:
                self._subscription.forget_in_flight()
            last_call = self._listener.last_call()
            self._changed.notify_all()
        try:
            if last_call is not None:
                self._listener.run(last_call)
        finally:
            self._end(fetcher, include_in_flight=include_in_flight)

    def _end(self, fetcher: Fetcher | None, *, include_in_flight: bool) -> None:
        if fetcher is not None:
            self._lease_renewer.stop()
            fetcher.join()
            if self._auto_commit:
                try:
                    self._lease_renewer.commit_handled(include_in_flight=include_in_flight, deadline_s=CLOSE_S)
                except MyQueueError as error:
                    logger.warning("%s: the last messages will be delivered again: %s", self.name, error)
            self._lease_renewer.leave()
        self._transport.close()

    # Waiting for messages

    def _next_message(self, timeout: float | None) -> Message | None:
        with self._polling():
            deadline = _deadline(timeout)
            while self._ask_for_more(deadline):
                message = self._first_of_next()
                if message is not None:
                    return message
        return None

    @contextmanager
    def _polling(self) -> Iterator[None]:
        """The application's call that asks for messages: it counts as a sign of life for as long as it lasts."""
        self._listener.check()
        self._begin_reading()
        with self._lock:
            error = self._poll_interval.enter(time.monotonic())
            if error is not None:
                self._messages = iter(())
                self._lease_renewer.wake()
        if error is not None:
            self._listener.run_due()
            raise error
        try:
            yield
        finally:
            with self._lock:
                self._poll_interval.leave(time.monotonic())

    def _first_of_next(self) -> Message | None:
        """None if a rebalance took the partition that was ready."""
        with self._lock:
            taken = None if self._closed else self._subscription.take(time.monotonic())
            if taken is None:
                return None
            state, chunk = taken
            messages = Messages(self.topic, chunk)
            self._subscription.hand_out(state, chunk, messages)
            self._messages = messages.iterator
            self._refill(chunk.size)
        return next(messages.iterator, None)

    def _begin_reading(self) -> None:
        """Leases are taken from the first read on: an object that is only asked for its lag takes none."""
        self._reader = threading.get_ident()
        if self._fetcher is not None or self._closed:
            return
        routing = RoutingCache(self._transport, self.topic)
        with self._lock:
            if self._fetcher is not None or self._closed:
                return
            self._fetcher = Fetcher(
                self._transport.url,
                routing,
                self._subscription,
                self._errors,
                self._lock,
                self._changed,
                prefetch_bytes=self._prefetch_bytes,
                fetch_bytes=self._fetch_bytes,
                on_gap=self._gap,
            )
            self._lease_renewer.start()

    def _ask_for_more(self, deadline: float | None) -> bool:
        """Marks messages in flight as handled, and waits for more; raises errors that lasted too long.

        Without a deadline it asks the cluster whether there is something. False if there is nothing, or it is closed.
        """
        while True:
            with self._lock:
                self._finish_in_flight()
            self._listener.run_due()
            has_more = self._await_more(deadline)
            with self._lock:
                if not self._subscription.is_rebalance_due() or self._closed:
                    return has_more

    def _finish_in_flight(self) -> None:
        """Called with the lock held."""
        if self._subscription.finish_in_flight():
            self._lease_renewer.wake()

    def _await_more(self, deadline: float | None) -> bool:
        """Returns early when callbacks are due."""
        with self._lock:
            if deadline is not None:
                return self._await(self._is_ready, deadline)
            retry_deadline = time.monotonic() + self._transport.retry.deadline_s
            self._await(lambda: self._subscription.known, retry_deadline)
            if self._closed or self._is_ready() or self._subscription.is_rebalance_due():
                return not self._closed
            none_held = len(self._subscription) == 0
        if none_held and not self._all_held_by_others():
            with self._lock:
                self._await(lambda: len(self._subscription) > 0, time.monotonic() + 2 * FIRST_LEASE_S)
        listed = self._api.list_partitions(self.topic)["partitions"]
        ends = {entry["partition_id"]: entry["end_offset"] for entry in listed}
        with self._lock:
            self._await(lambda: self._is_ready() or self._fetched_all(ends), retry_deadline)
            return self._is_ready()

    def _is_ready(self) -> bool:
        return self._subscription.ready(time.monotonic())

    def _all_held_by_others(self) -> bool:
        return all(partition.member not in (None, self.member) for partition in self.lag().partitions.values())

    def _fetched_all(self, ends: dict[int, int]) -> bool:
        return all(state.revoking or state.fetched >= ends.get(state.partition, 0) for state in self._subscription)

    def _await(self, condition: Callable[[], bool], deadline: float) -> bool:
        """Whether the condition came true before the deadline, and before `close`; raises gaps and overdue errors."""

        def checked() -> bool:
            self._finish_in_flight()
            for state in self._subscription:
                if state.gap is not None and not state.chunks:
                    gap, state.gap = state.gap, None
                    self._wake_fetcher()
                    raise gap
            return self._subscription.is_rebalance_due() or condition()

        return self._fetcher is not None and self._fetcher.wait_for(checked, deadline)

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

    def _wake_fetcher(self) -> None:
        """Called with the lock held."""
        if self._fetcher is not None:
            self._fetcher.wake()


def _deadline(timeout: float | None) -> float | None:
    """None for a timeout of 0: such a poll asks the cluster instead of waiting."""
    if timeout is None:
        return math.inf
    return time.monotonic() + timeout if timeout > 0 else None
