"""Fetching of a consumer: long polls of all its partitions, driven by the thread that waits for messages."""

import logging
import math
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from myqueue import data_plane
from myqueue.fetch_connection import FetchConnection
from myqueue.fetch_requests import FETCH_S, FetchRequest, FetchRequests, Result
from myqueue.protocol.errors import (
    Forbidden,
    GrantInvalid,
    MyQueueError,
    OffsetOutOfRange,
    TopicNotFound,
)
from myqueue.routing import RETRY_EVERY_S, ReplicaSelector, RoutingCache, RoutingTable
from myqueue.subscription_state import PartitionState, SubscriptionState
from myqueue.transport import RetryPolicy

logger = logging.getLogger("myqueue")

LEASES, COMMITS = -1, -2  # keys of background errors, beside the partitions
MAX_IN_FLIGHT = 16
WAIT_S = 2.0  # of the long poll
SHORT_WAIT_S = 0.1  # where partitions take turns
TAKE_OVER_S = 0.01  # the background thread drives when the application has not waited for so long
_LARGE_BYTES = 64 << 10
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


class ChangeCondition(threading.Condition):
    """The condition of a subscription's lock. A notification also ends a wait for responses."""

    def __init__(self, lock: threading.Lock) -> None:
        super().__init__(lock)
        self.on_notify: Callable[[], None] = lambda: None

    def notify_all(self) -> None:
        super().notify_all()
        self.on_notify()


class _Blocked(NamedTuple):
    """A partition that is not fetched before the background thread has done what may take long."""

    state: PartitionState
    table: RoutingTable | None  # of the fetch that failed
    error: MyQueueError | None  # why; None: there is no connection, or the grant has expired


class Fetcher:
    """Long polls of all partitions over one selector, which is driven by one thread at a time.

    The application's thread drives it while it waits for messages, so that it receives them itself. When it stays away
    for a while, the background thread does: that fetches ahead. Calls that may take long (the routing, connecting) are
    left to the background thread.
    """

    def __init__(
        self,
        url: str,
        routing: RoutingCache,
        subscription: SubscriptionState,
        errors: BackgroundErrors,
        lock: threading.Lock,
        changed: ChangeCondition,
        *,
        prefetch_bytes: int,
        fetch_bytes: int,
        on_gap: Callable[[int, OffsetOutOfRange], MyQueueError | None],
    ) -> None:
        """`lock` guards the subscription; `changed` is its condition. `on_gap` gets the number of messages that are
        gone; an error that it returns is raised to the application."""
        self._url = url
        self._routing = routing
        self._subscription = subscription
        self._errors = errors
        self._lock = lock
        self._changed = changed
        self._prefetch_bytes = prefetch_bytes
        self._on_gap = on_gap
        self._selectors: dict[int, ReplicaSelector] = {}
        self._table = routing.table()
        self._renew_at = self._table.renew_at
        self._stopping = False

        self._requests = FetchRequests(fetch_bytes)  # used by the driving thread
        self._is_driven = False
        self._is_interrupted = False
        self._waiting_since: float | None = None  # the application's thread
        self._left_at = 0.0
        self._opened: list[FetchConnection] = []
        self._blocked: deque[_Blocked] = deque()
        self._background = threading.Condition(lock)
        self._is_asleep = False  # the background thread, until it is notified
        self._thread: threading.Thread | None = None
        changed.on_notify = self._interrupt

    # `wake`, `refill`, `wait_for` and `stop` are called with the lock held, `join` without it.

    def wake(self) -> None:
        """The subscription has changed: cancels fetches that are no longer wanted, and starts new ones."""
        self._errors.keep_only(state.partition for state in self._subscription)
        if self._thread is None and not self._stopping and len(self._subscription):
            self._thread = threading.Thread(target=self._run, name="myqueue-fetch", daemon=True)
            self._thread.start()
        self._interrupt()

    def refill(self, taken_bytes: int) -> None:
        """So much was taken from the buffer: fetches more if there is room for it."""
        share = self._share()
        if self._stopping:
            return
        if any(not state.fetching and state.buffered < share for state in self._subscription):
            if self._is_driven:
                self._interrupt()
            elif taken_bytes >= _LARGE_BYTES:
                self._drive(0.0)

    def wait_for(self, condition: Callable[[], bool], deadline: float) -> bool:
        """Whether the condition came true before the deadline and before `stop`; raises overdue background errors."""
        try:
            while not self._stopping:
                now = time.monotonic()
                if condition():
                    return True
                if (error := self._errors.overdue(now)) is not None:
                    raise error
                if now >= deadline:
                    return False
                if self._waiting_since is None:
                    self._waiting_since = now
                overdue_at = self._errors.next_overdue()
                until = deadline if overdue_at is None else min(deadline, overdue_at)
                if not self._is_driven:
                    self._drive(until)
                else:
                    self._interrupt()  # the background thread stops driving
                    self._changed.wait(min(_LONGEST_WAIT_S, max(0.0, until - now)))
            return False
        finally:
            if self._waiting_since is not None:
                self._waiting_since = None
                self._left_at = time.monotonic()
                if self._is_asleep:
                    self._background.notify()

    def stop(self) -> None:
        self._stopping = True
        self._background.notify()
        self._interrupt()

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join(1.0)
        with self._lock:
            for connection in self._opened:
                connection.close()
            if not self._is_driven:  # else the driving thread closes them
                self._requests.close()

    # Driving: the lock is held, but not while requests are sent and responses are awaited and decoded.

    def _interrupt(self) -> None:
        if self._is_driven and not self._is_interrupted:
            self._is_interrupted = True
            self._requests.interrupt()

    def _drive(self, until: float, *, in_background: bool = False) -> None:
        """Starts fetches that are due, waits for responses, at most until then, and takes them."""
        self._is_driven = True
        try:
            self._cancel_unwanted()
            started = self._start_fetches()
            retry_at = self._subscription.next_retry(time.monotonic())
            until = until if retry_at is None else min(until, retry_at)
            if in_background and self._has_work():
                until = 0.0
            self._lock.release()
            try:
                failed = self._requests.send(started)
                results = failed or self._requests.receive(until)
            finally:
                self._lock.acquire()
            if sum(map(self._finish, results)) >= _LARGE_BYTES:
                self._start_more()
        except BaseException:
            # A KeyboardInterrupt may come anywhere: in a response, or before a request is in flight.
            self._requests.discard_all()
            for state in self._subscription:
                state.fetching = any(blocked.state is state for blocked in self._blocked)
            raise
        finally:
            self._is_driven = self._is_interrupted = False
            if self._stopping:
                self._requests.close()

    def _start_more(self) -> None:
        """There is likely to be more: the broker works on it while the application handles what is here."""
        started = self._start_fetches()
        self._lock.release()
        try:
            failed = self._requests.send(started)
        finally:
            self._lock.acquire()
        for result in failed:
            self._finish(result)

    def _cancel_unwanted(self) -> None:
        for request in list(self._requests.in_flight.values()):
            if not self._subscription.is_current(request.state, request.offset):
                self._cancel(request)

    def _cancel(self, request: FetchRequest) -> None:
        request.state.fetching = False
        self._requests.cancel(request)

    def _start_fetches(self) -> list[FetchRequest]:
        """Those that have a connection and are to be sent; others are left to the background thread."""
        for opened in self._opened:
            self._requests.add(opened)
        self._opened.clear()
        started: list[FetchRequest] = []
        in_flight = self._requests.in_flight
        now, share, table = time.monotonic(), self._share(), self._table
        wait_s = WAIT_S if len(self._subscription) <= MAX_IN_FLIGHT else SHORT_WAIT_S
        while len(in_flight) + len(self._blocked) < MAX_IN_FLIGHT and not self._stopping:
            state = self._subscription.next_to_fetch(now, share)
            if state is None:
                break
            try:
                broker_id = self._selector_of(state.partition).choose(table, state.partition, now)
            except MyQueueError as error:
                self._blocked.append(_Blocked(state, table, error))
                continue
            connection = self._requests.take_idle() if now < table.expires_at else None
            if connection is None:
                self._blocked.append(_Blocked(state, None, None))
                continue
            deadline = now + wait_s + FETCH_S
            request = FetchRequest(state, state.fetched, table, broker_id, wait_s, connection, deadline)
            in_flight[connection] = request
            started.append(request)
        if self._has_work():
            self._background.notify()
        return started

    def _finish(self, result: Result) -> int:
        """The bytes that were fetched."""
        request, outcome = result
        state, offset = request.state, request.offset
        self._requests.end(request)
        state.fetching = False
        if isinstance(outcome, OffsetOutOfRange):
            self._gap(state, offset, outcome)
        elif isinstance(outcome, MyQueueError):
            if self._subscription.is_current(state, offset):
                state.fetching = True
                self._blocked.append(_Blocked(state, request.table, outcome))
                self._background.notify()
        else:
            state.failures = 0
            self._errors.clear(state.partition)
            self._subscription.put(state, offset, outcome)
            return sum(chunk.size for chunk in outcome)
        return 0

    def _gap(self, state: PartitionState, offset: int, error: OffsetOutOfRange) -> None:
        beginning = error.details.get("beginning_offset")
        if not isinstance(beginning, int) or beginning <= offset:
            state.retry_at = time.monotonic() + _RETRY.longest_pause_s
            return
        self._errors.clear(state.partition)
        gone = self._subscription.skip_to(state, offset, beginning)
        if gone:
            state.gap = self._on_gap(gone, error)

    def _share(self) -> int:
        return self._prefetch_bytes // max(1, len(self._subscription))

    def _selector_of(self, partition: int) -> ReplicaSelector:
        return self._selectors.setdefault(partition, ReplicaSelector())

    # The background thread

    def _run(self) -> None:
        with self._lock:
            while not self._stopping:
                try:
                    self._work()
                except Exception as error:
                    # The thread must survive a defect; the application gets it as an error.
                    logger.exception("fetching")
                    self._errors.fatal = MyQueueError(f"defect while fetching: {error!r}")
                    self._changed.notify_all()
                    self._background.wait(_RETRY.longest_pause_s)

    def _has_work(self) -> bool:
        return bool(self._blocked) or time.monotonic() >= self._renew_at

    def _work(self) -> None:
        now = time.monotonic()
        if self._blocked:
            self._unblock(self._blocked.popleft())
        elif now >= self._renew_at:
            self._renew(now)
        elif self._waiting_since is not None or self._is_driven:
            # The application waits. While its waits are short, a timer costs less than a notification after each.
            waits_s = now - (self._waiting_since or now)
            self._sleep(None if waits_s >= TAKE_OVER_S else TAKE_OVER_S)
        elif now < self._left_at + TAKE_OVER_S:
            self._sleep(self._left_at + TAKE_OVER_S - now)
        else:
            self._drive(math.inf, in_background=True)
            self._changed.notify_all()

    def _sleep(self, timeout_s: float | None) -> None:
        self._is_asleep = timeout_s is None
        self._background.wait(timeout_s)
        self._is_asleep = False

    def _unblock(self, blocked: _Blocked) -> None:
        state, table, error = blocked
        connection: FetchConnection | None = None
        has_connection = bool(self._requests.idle or self._opened)
        self._lock.release()
        try:
            if error is None:
                table = self._routing.table()
                if not has_connection:
                    connection = FetchConnection(self._url)
                    connection.open(data_plane.CONNECT_S)
        except MyQueueError as failed:
            error = failed
        finally:
            self._lock.acquire()
        if error is not None:
            self._failed(state, table, error)
        elif table is not None:
            self._use(table)
        if connection is not None and error is None:
            self._opened.append(connection)
        state.fetching = False
        self._interrupt()

    def _renew(self, now: float) -> None:
        self._lock.release()
        table: RoutingTable | None = None
        fatal: MyQueueError | None = None
        try:
            table = self._routing.table()
        except TopicNotFound as gone:
            fatal = gone
        except MyQueueError as error:
            logger.debug("the grant is not renewed: %s", error)
        finally:
            self._lock.acquire()
        if fatal is not None:
            self._errors.fatal = fatal
        if table is not None:
            self._use(table)
        self._renew_at = max(self._renew_at, now + RETRY_EVERY_S)

    def _use(self, table: RoutingTable) -> None:
        self._table = table
        self._renew_at = table.renew_at

    def _failed(self, state: PartitionState, table: RoutingTable | None, error: MyQueueError) -> None:
        """The lock is held, but not while the routing is renewed."""
        logger.debug("fetch of partition %d failed: %s", state.partition, error)
        fatal: MyQueueError | None = error if isinstance(error, Forbidden) else None
        if table is None:
            if isinstance(error, TopicNotFound):
                fatal = error
        else:
            if not isinstance(error, GrantInvalid):
                self._selector_of(state.partition).failed(table, state.partition, time.monotonic())
            self._lock.release()
            newer: RoutingTable | None = None
            try:
                newer = self._routing.refreshed(table)
            except TopicNotFound as gone:
                fatal = gone
            except MyQueueError as unanswered:
                logger.debug("routing is not renewed: %s", unanswered)
            finally:
                self._lock.acquire()
            if newer is not None:
                self._use(newer)
        state.failures += 1
        now = time.monotonic()
        quick = isinstance(error, GrantInvalid) and state.failures == 1
        pause_s = 0.0 if quick else _RETRY.pause_s(state.failures, None, random.random())  # noqa: S311
        state.retry_at = now + pause_s
        self._errors.record(state.partition, error, now)
        if fatal is not None:
            self._errors.fatal = fatal
        self._changed.notify_all()
