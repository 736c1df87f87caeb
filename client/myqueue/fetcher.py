"""Fetching of a consumer: long polls of all its partitions, by the thread that waits for messages or in background."""

import asyncio
import logging
import random
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, Literal

from myqueue import data_plane
from myqueue.async_routing import AsyncRouting
from myqueue.background_errors import BackgroundErrors
from myqueue.fetch_connection import FetchConnection
from myqueue.fetch_requests import FetchRequest, FetchRequests, Result
from myqueue.fetch_scheduler import RETRY, Blocked, FetchScheduler
from myqueue.io_thread import IoThread
from myqueue.protocol.errors import (
    Forbidden,
    GrantInvalid,
    MyQueueError,
    OffsetOutOfRange,
    TopicNotFound,
)
from myqueue.routing import RETRY_EVERY_S, RoutingTable
from myqueue.subscription_state import PartitionState, SubscriptionState

logger = logging.getLogger("myqueue")

TAKE_OVER_S = 0.01  # the background thread fetches when the application has not waited for so long
_LARGE_BYTES = 64 << 10
_LONGEST_WAIT_S = 3600.0


class ChangeCondition(threading.Condition):
    """The condition of a subscription's lock. A notification also ends a wait for responses."""

    def __init__(self, lock: threading.Lock) -> None:
        super().__init__(lock)
        self.watchers: set[Callable[[], None]] = set()  # called with the lock held

    def notify_all(self) -> None:
        super().notify_all()
        for watcher in list(self.watchers):
            watcher()


class Fetcher:
    """Long polls of all partitions. One thread at a time owns their connections: sends, receives and closes.

    An application's thread that waits for messages is the owner, so that it receives them itself. When it stays away
    for a while, or waits in an event loop, the background thread is: that fetches ahead. Calls that may take long (the
    routing, connecting) are tasks of the background thread.
    """

    def __init__(
        self,
        io: IoThread,
        routing: AsyncRouting,
        table: RoutingTable,
        subscription: SubscriptionState,
        errors: BackgroundErrors,
        lock: threading.Lock,
        changed: ChangeCondition,
        *,
        prefetch_bytes: int,
        fetch_bytes: int,
        in_background: bool,
        on_gap: Callable[[int, OffsetOutOfRange], MyQueueError | None],
    ) -> None:
        """`lock` guards the subscription; `changed` is its condition. With `in_background` no thread calls `wait_for`.
        `on_gap` gets the number of messages that are gone; an error that it returns is raised to the application."""
        self._io = io
        self._routing = routing
        self._subscription = subscription
        self.errors = errors
        self._lock = lock
        self._changed = changed
        self._in_background = in_background
        self._renew_at = table.renew_at
        self._stopping = False

        self._requests = FetchRequests(fetch_bytes, with_selector=not in_background)  # used by the owner
        self._scheduler = FetchScheduler(
            self._requests, subscription, errors, table, prefetch_bytes=prefetch_bytes, on_gap=on_gap
        )
        self._owner: Literal["application", "background"] | None = None
        self._is_interrupted = False
        self._waiting_since: float | None = None  # the application's thread
        self._left_at = 0.0
        self._is_poked = False
        self._is_asleep = True  # no timer will find out that the application has left

        self._tasks: set[asyncio.Task[None]] = set()  # these three are used in the background thread only
        self._timer: asyncio.TimerHandle | None = None
        self._watched: dict[FetchConnection, int] = {}
        changed.watchers.add(self._interrupt)

    @property
    def is_stopping(self) -> bool:
        return self._stopping

    # `wake`, `refill`, `set_prefetch`, `wait_for` and `stop` are called with the lock held.

    def set_prefetch(self, prefetch_bytes: int) -> None:
        self._scheduler.prefetch_bytes = prefetch_bytes

    def wake(self) -> None:
        """The subscription has changed: cancels fetches that are no longer wanted, and starts new ones."""
        self.errors.keep_only(state.partition for state in self._subscription)
        self._interrupt()
        if self._owner != "application":
            self._poke()

    def refill(self, taken_bytes: int) -> None:
        """So much was taken from the buffer: fetches more if there is room for it."""
        if not self._stopping and self._scheduler.has_room():
            if self._owner == "application":
                self._interrupt()
            elif self._owner == "background" or self._in_background:
                self._poke()
            elif taken_bytes >= _LARGE_BYTES:
                self._drive(0.0)

    def wait_for(self, condition: Callable[[], bool], deadline: float) -> bool:
        """Whether the condition came true before the deadline and before `stop`; raises overdue background errors."""
        try:
            while not self._stopping:
                now = time.monotonic()
                if condition():
                    return True
                if (error := self.errors.overdue(now)) is not None:
                    raise error
                if now >= deadline:
                    return False
                if self._waiting_since is None:
                    self._waiting_since = now
                overdue_at = self.errors.next_overdue()
                until = deadline if overdue_at is None else min(deadline, overdue_at)
                if self._owner is None:
                    self._drive(until)
                else:
                    if self._owner == "background":
                        self._poke()  # it gives the connections up
                    self._changed.wait(min(_LONGEST_WAIT_S, max(0.0, until - now)))
            return False
        finally:
            if self._waiting_since is not None:
                self._waiting_since = None
                self._left_at = time.monotonic()
                if self._is_asleep:
                    self._poke()

    def stop(self) -> None:
        self._stopping = self._scheduler.stopping = True
        self._interrupt()

    async def close(self) -> None:
        """After `stop`, in the background thread, without the lock."""
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        with self._lock:
            self._changed.watchers.discard(self._interrupt)
            if self._timer is not None:
                self._timer.cancel()
            for connection in self._scheduler.opened:
                connection.close()
            if self._owner != "application":  # else that thread closes them
                self._unwatch()
                self._requests.close()

    # In the application's thread: the lock is held, but not while requests are sent and responses are awaited.

    def _interrupt(self) -> None:
        if self._owner == "application" and not self._is_interrupted:
            self._is_interrupted = True
            self._requests.interrupt()

    def _drive(self, until: float) -> None:
        """Starts fetches that are due, waits for responses, at most until then, and takes them."""
        self._owner = "application"
        try:
            self._scheduler.cancel_unwanted()
            started = self._start()
            retry_at = self._subscription.next_retry(time.monotonic())
            until = until if retry_at is None else min(until, retry_at)
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
            self._scheduler.forget()
            raise
        finally:
            self._owner = None
            self._is_interrupted = False
            if self._stopping:
                self._requests.close()

    def _start_more(self) -> None:
        """There is likely to be more: the broker works on it while the application handles what is here."""
        started = self._start()
        self._lock.release()
        try:
            failed = self._requests.send(started)
        finally:
            self._lock.acquire()
        for result in failed:
            self._finish(result)

    # In either thread

    def _start(self) -> list[FetchRequest]:
        started = self._scheduler.start()
        if self._scheduler.blocked:
            self._poke()
        return started

    def _finish(self, result: Result) -> int:
        """The bytes that were fetched."""
        fetched = self._scheduler.finish(result)
        if self._scheduler.blocked:
            self._poke()
        return fetched

    # The background thread

    def _poke(self) -> None:
        """From any thread, with the lock held: there is something to do."""
        if not self._is_poked and not self._stopping:
            self._is_poked = True
            self._io.call_soon(self._poked)

    def _poked(self) -> None:
        with self._lock:
            self._is_poked = False
            self._turn()

    def _timed(self) -> None:
        with self._lock:
            self._turn()

    def _became_readable(self, connection: FetchConnection) -> None:
        if self._owner != "background":  # which only this thread changes
            return
        try:
            results = self._requests.receive_ready([connection])
        except Exception as error:
            # The thread must survive a defect; the application gets it as an error.
            logger.exception("fetching")
            with self._lock:
                self._scheduler.forget()
                self._watch()
                self._defect(error)
            return
        if not results and connection.fileno() >= 0:
            return  # a piece of a large response
        with self._lock:
            self._watch()
            for result in results:
                self._finish(result)
            self._changed.notify_all()
            self._turn()

    def _turn(self) -> None:
        if self._stopping:
            self._unwatch()
            return
        now = time.monotonic()
        self._start_tasks(now)
        if self._waiting_since is None and self._may_take_over(now):
            self._fetch_ahead()
        if self._waiting_since is not None:
            # While the application's waits are short, a timer costs less than a notification after each.
            self._give_up()
            waits_s = now - self._waiting_since
            self._schedule(None if waits_s >= TAKE_OVER_S else now + TAKE_OVER_S)
        elif self._owner == "background":
            retry_at = self._subscription.next_retry(time.monotonic())
            first_deadline = self._requests.first_deadline()
            self._schedule(first_deadline if retry_at is None else min(first_deadline, retry_at))
        else:
            self._schedule(max(now, self._left_at) + TAKE_OVER_S)

    def _may_take_over(self, now: float) -> bool:
        if self._owner is None:
            return self._in_background or now >= self._left_at + TAKE_OVER_S
        return self._owner == "background"

    def _schedule(self, at: float | None) -> None:
        """The next turn, if nothing happens before. None: the application waits, and tells when it leaves."""
        self._is_asleep = at is None
        at = self._renew_at if at is None else min(at, self._renew_at)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._io.loop.call_later(max(0.0, at - time.monotonic()), self._timed)

    def _fetch_ahead(self) -> None:
        self._owner = "background"
        try:
            while True:
                self._scheduler.cancel_unwanted()
                started = self._start()
                self._lock.release()
                try:
                    results = self._requests.send(started) + self._requests.receive_ready(())
                finally:
                    self._lock.acquire()
                self._watch()
                for result in results:
                    self._finish(result)
                if results:
                    self._changed.notify_all()
                if not results or self._stopping or self._waiting_since is not None:
                    return
        except Exception as error:
            # The thread must survive a defect; the application gets it as an error.
            logger.exception("fetching")
            self._scheduler.forget()
            self._defect(error)
        finally:
            self._watch()

    def _watch(self) -> None:
        """Follows what the owner has opened and closed since. Closed sockets must go before their number is reused."""
        loop, open_now = self._io.loop, {connection: connection.fileno() for connection in self._requests.connections()}
        for connection, number in list(self._watched.items()):
            if open_now.get(connection) != number:
                loop.remove_reader(number)
                del self._watched[connection]
        for connection, number in open_now.items():
            if number >= 0 and connection not in self._watched:
                loop.add_reader(number, self._became_readable, connection)
                self._watched[connection] = number

    def _unwatch(self) -> None:
        for number in self._watched.values():
            self._io.loop.remove_reader(number)
        self._watched.clear()

    def _give_up(self) -> None:
        """Leaves the connections to the application."""
        if self._owner == "background":
            self._unwatch()
            self._owner = None
            self._changed.notify_all()

    def _start_tasks(self, now: float) -> None:
        while self._scheduler.blocked:
            self._start_task(self._unblock(self._scheduler.blocked.popleft()))
        if now >= self._renew_at:
            self._renew_at = now + RETRY_EVERY_S  # the next attempt, unless this one brings a new table
            self._start_task(self._renew())

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._io.loop.create_task(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:
            logger.exception("fetching")
            with self._lock:
                self._defect(error)

    def _defect(self, error: Exception) -> None:
        self.errors.fatal = MyQueueError(f"defect while fetching from {self._io.url}: {error!r}")
        self._changed.notify_all()

    async def _unblock(self, blocked: Blocked) -> None:
        state, table, error = blocked
        connection: FetchConnection | None = None
        try:
            if error is None:
                table = await self._routing.table()
                if not (self._requests.idle or self._scheduler.opened):
                    connection = FetchConnection(self._io.url)
                    await connection.open(data_plane.CONNECT_S)
        except MyQueueError as failed:
            error = failed
        if error is not None:
            await self._failed(state, table, error)
        with self._lock:
            if error is None and table is not None:
                self._use(table)
                if connection is not None:
                    self._scheduler.opened.append(connection)
            state.fetching = False
            self._interrupt()
            self._turn()

    async def _renew(self) -> None:
        table: RoutingTable | None = None
        fatal: MyQueueError | None = None
        try:
            table = await self._routing.refreshed(self._scheduler.table)
        except TopicNotFound as gone:
            fatal = gone
        except MyQueueError as error:
            logger.debug("the grant is not renewed: %s", error)
        with self._lock:
            if fatal is not None:
                self.errors.fatal = fatal
                self._changed.notify_all()
            if table is not None:
                self._use(table)
            self._turn()

    def _use(self, table: RoutingTable) -> None:
        self._scheduler.table = table
        self._renew_at = table.renew_at

    async def _failed(self, state: PartitionState, table: RoutingTable | None, error: MyQueueError) -> None:
        logger.debug("fetch of partition %d failed: %s", state.partition, error)
        fatal: MyQueueError | None = error if isinstance(error, Forbidden) else None
        newer: RoutingTable | None = None
        if table is None:
            if isinstance(error, TopicNotFound):
                fatal = error
        else:
            if not isinstance(error, GrantInvalid):
                with self._lock:
                    self._scheduler.selector_of(state.partition).failed(table, state.partition, time.monotonic())
            try:
                newer = await self._routing.refreshed(table)
            except TopicNotFound as gone:
                fatal = gone
            except MyQueueError as unanswered:
                logger.debug("routing is not renewed: %s", unanswered)
        with self._lock:
            if newer is not None:
                self._use(newer)
            state.failures += 1
            now = time.monotonic()
            quick = isinstance(error, GrantInvalid) and state.failures == 1
            pause_s = 0.0 if quick else RETRY.pause_s(state.failures, None, random.random())  # noqa: S311
            state.retry_at = now + pause_s
            self.errors.record(state.partition, error, now)
            if fatal is not None:
                self.errors.fatal = fatal
            self._changed.notify_all()
