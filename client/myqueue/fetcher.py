"""The threads of a consumer that fetch ahead: each long-polls a broker for one partition at a time."""

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable

from myqueue import data_plane
from myqueue.decoding import Chunk, chunks_in
from myqueue.http_connection import HttpConnection
from myqueue.protocol.errors import (
    Forbidden,
    GrantInvalid,
    MyQueueError,
    OffsetOutOfRange,
    TopicNotFound,
)
from myqueue.routing import ReplicaSelector, RoutingCache, RoutingTable
from myqueue.subscription_state import PartitionState, SubscriptionState
from myqueue.transport import RetryPolicy

logger = logging.getLogger("myqueue")

LEASES, COMMITS = -1, -2  # keys of background errors, beside the partitions
MAX_THREADS = 16
FETCH_S = 3.0  # for a response, on top of the long poll
WAIT_S = 2.0  # of the long poll
SHORT_WAIT_S = 0.1  # where a thread serves several partitions
_LONGEST_WAIT_S = 3600.0
_RETRY = RetryPolicy(first_pause_s=0.05, longest_pause_s=0.5)


class BackgroundErrors:
    """Errors of background threads: raised to the application once they last too long. Pure; the caller locks."""

    def __init__(self, grace_s: float) -> None:
        self.fatal: MyQueueError | None = None  # raised at once, and by every later call
        self._grace_s = grace_s
        self._since: dict[int, tuple[float, MyQueueError]] = {}

    def record(self, where: int, error: MyQueueError, now: float) -> None:
        since = self._since.get(where, (now, error))[0]
        self._since[where] = (since, error)

    def clear(self, where: int) -> None:
        self._since.pop(where, None)

    def keep_only(self, partitions: Iterable[int]) -> None:
        """Drops errors of partitions that this consumer no longer has."""
        kept = {LEASES, COMMITS, *partitions}
        self._since = {where: error for where, error in self._since.items() if where in kept}

    def overdue(self, now: float) -> MyQueueError | None:
        """An error that has lasted longer than the grace period. Each is returned once per grace period."""
        if self.fatal is not None:
            return self.fatal
        for where, (since, error) in self._since.items():
            if now - since >= self._grace_s:
                self._since[where] = (now, error)
                return error
        return None

    def next_overdue(self) -> float | None:
        """When the next error becomes overdue."""
        return min((since + self._grace_s for since, _ in self._since.values()), default=None)


class Fetchers:
    """`lock` guards the subscription; `changed`, a condition of it, is notified of every result."""

    def __init__(
        self,
        url: str,
        routing: RoutingCache,
        subscription: SubscriptionState,
        errors: BackgroundErrors,
        lock: threading.Lock,
        changed: threading.Condition,
        *,
        prefetch_bytes: int,
        fetch_bytes: int,
        on_gap: Callable[[int, OffsetOutOfRange], MyQueueError | None],
    ) -> None:
        """`on_gap` gets the number of messages that are gone; an error that it returns is raised to the application."""
        self._url = url
        self._routing = routing
        self._subscription = subscription
        self._errors = errors
        self._changed = changed
        self._prefetch_bytes = prefetch_bytes
        self._fetch_bytes = fetch_bytes
        self._on_gap = on_gap
        self._wanted = threading.Condition(lock)
        self._selectors: dict[int, ReplicaSelector] = {}
        self._threads: list[threading.Thread] = []
        self._connections: list[HttpConnection] = []
        self._in_flight: dict[HttpConnection, tuple[PartitionState, int]] = {}  # with the offset
        self._stopping = False

    # `wake`, `wait_for` and `stop` are called with the lock held, `join` without it.

    def wake(self) -> None:
        """Cancels fetches that are no longer wanted, and starts new ones."""
        self._errors.keep_only(state.partition for state in self._subscription)
        for connection, (state, offset) in self._in_flight.items():
            if not self._subscription.is_current(state, offset):
                connection.cancel()
        while len(self._threads) < min(MAX_THREADS, len(self._subscription)) and not self._stopping:
            connection = HttpConnection(self._url)
            thread = threading.Thread(
                target=self._run, args=(connection,), name=f"myqueue-fetch-{len(self._threads)}", daemon=True
            )
            self._connections.append(connection)
            self._threads.append(thread)
            thread.start()
        self._wanted.notify_all()

    def wait_for(self, condition: Callable[[], bool], deadline: float) -> bool:
        """Whether the condition came true before the deadline and before `stop`; raises overdue background errors."""
        while not self._stopping:
            now = time.monotonic()
            if condition():
                return True
            if (error := self._errors.overdue(now)) is not None:
                raise error
            if now >= deadline:
                return False
            overdue_at = self._errors.next_overdue()
            until = deadline if overdue_at is None else min(deadline, overdue_at)
            self._changed.wait(min(_LONGEST_WAIT_S, max(0.0, until - now)))
        return False

    def stop(self) -> None:
        self._stopping = True
        self._wanted.notify_all()

    def join(self) -> None:
        for connection in self._connections:
            connection.interrupt()
        for thread in self._threads:
            thread.join(1.0)

    def _run(self, connection: HttpConnection) -> None:
        while (state := self._next(connection)) is not None:
            try:
                self._fetch(connection, state)
            except Exception as error:
                # The thread must survive a defect; the application gets it as an error.
                logger.exception("fetching partition %d", state.partition)
                with self._changed:
                    self._errors.fatal = MyQueueError(f"defect while fetching: {error!r}")
            with self._changed:
                state.fetching = False
                del self._in_flight[connection]
                self._changed.notify_all()
        connection.close()

    def _next(self, connection: HttpConnection) -> PartitionState | None:
        with self._changed:
            while not self._stopping:
                now = time.monotonic()
                share = self._prefetch_bytes // max(1, len(self._subscription))
                state = self._subscription.next_to_fetch(now, share)
                if state is not None:
                    self._in_flight[connection] = (state, state.fetched)
                    return state
                retry_at = self._subscription.next_retry(now)
                self._wanted.wait(None if retry_at is None else retry_at - now)
            return None

    def _fetch(self, connection: HttpConnection, state: PartitionState) -> None:
        partition, offset = state.partition, self._in_flight[connection][1]
        selector = self._selectors.setdefault(partition, ReplicaSelector())
        table: RoutingTable | None = None
        try:
            table = self._routing.table()
            broker_id = selector.choose(table, partition, time.monotonic())
            chunks = self._fetched(connection, table, broker_id, partition, offset)
        except OffsetOutOfRange as error:
            self._gap(state, offset, error)
        except MyQueueError as error:
            with self._changed:
                wanted = not self._stopping and self._subscription.is_current(state, offset)
            if wanted:  # else the fetch was cancelled
                self._failed(state, selector, table, error)
        else:
            with self._changed:
                state.failures = 0
                self._errors.clear(partition)
                self._subscription.put(state, offset, chunks)

    def _fetched(
        self, connection: HttpConnection, table: RoutingTable, broker_id: int, partition: int, offset: int
    ) -> list[Chunk]:
        shared = len(self._subscription) > len(self._threads)
        fetched = data_plane.fetch(
            connection,
            table,
            broker_id,
            partition,
            offset,
            max_bytes=self._fetch_bytes,
            wait_s=SHORT_WAIT_S if shared else WAIT_S,
            read_s=FETCH_S,
        )
        return list(chunks_in(fetched.data, partition, offset))

    def _gap(self, state: PartitionState, offset: int, error: OffsetOutOfRange) -> None:
        beginning = error.details.get("beginning_offset")
        with self._changed:
            if not isinstance(beginning, int) or beginning <= offset:
                state.retry_at = time.monotonic() + _RETRY.longest_pause_s
                return
            self._errors.clear(state.partition)
            gone = self._subscription.skip_to(state, offset, beginning)
            if gone:
                state.gap = self._on_gap(gone, error)

    def _failed(
        self, state: PartitionState, selector: ReplicaSelector, table: RoutingTable | None, error: MyQueueError
    ) -> None:
        logger.debug("fetch of partition %d failed: %s", state.partition, error)
        fatal: MyQueueError | None = error if isinstance(error, Forbidden) else None
        if table is None:
            if isinstance(error, TopicNotFound):
                fatal = error
        else:
            if not isinstance(error, GrantInvalid):
                selector.failed(table, state.partition, time.monotonic())
            try:
                self._routing.refreshed(table)
            except TopicNotFound as gone:
                fatal = gone
            except MyQueueError as unanswered:
                logger.debug("routing is not renewed: %s", unanswered)
        with self._changed:
            state.failures += 1
            now = time.monotonic()
            quick = isinstance(error, GrantInvalid) and state.failures == 1
            pause_s = 0.0 if quick else _RETRY.pause_s(state.failures, None, random.random())  # noqa: S311
            state.retry_at = now + pause_s
            self._errors.record(state.partition, error, now)
            if fatal is not None:
                self._errors.fatal = fatal
