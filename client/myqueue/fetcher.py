"""The threads of a consumer that fetch ahead: each waits at a broker for one partition at a time."""

import logging
import random
import threading
import time
from collections.abc import Callable

from myqueue import data_plane
from myqueue.decoding import Chunk, chunks_in
from myqueue.holdings import Holding, Holdings
from myqueue.protocol.errors import (
    Forbidden,
    GrantInvalid,
    MyQueueError,
    NoLeader,
    OffsetOutOfRange,
    TopicNotFound,
)
from myqueue.retry import RetryPolicy
from myqueue.routing import Routing, RoutingTable
from myqueue.sources import Source
from myqueue.troubles import Troubles
from myqueue.wire import Wire

logger = logging.getLogger("myqueue")

MAX_THREADS = 16
FETCH_S = 3.0  # for an answer, on top of what the broker was asked to wait
WAIT_S = 2.0
SHORT_WAIT_S = 0.1  # where a thread has several partitions to look after
_RETRY = RetryPolicy(first_pause_s=0.05, longest_pause_s=0.5)


class Fetchers:
    """`lock` guards the holdings; `changed`, its condition, is notified of everything that arrives."""

    def __init__(
        self,
        url: str,
        routing: Routing,
        holdings: Holdings,
        troubles: Troubles,
        lock: threading.Lock,
        changed: threading.Condition,
        *,
        prefetch_bytes: int,
        fetch_bytes: int,
        on_gap: Callable[[int, OffsetOutOfRange], MyQueueError | None],
    ) -> None:
        """`on_gap` is told how many messages are gone; what it returns is raised to the reader."""
        self._url = url
        self._routing = routing
        self._holdings = holdings
        self._troubles = troubles
        self._changed = changed
        self._prefetch_bytes = prefetch_bytes
        self._fetch_bytes = fetch_bytes
        self._on_gap = on_gap
        self._wanted = threading.Condition(lock)
        self._sources: dict[int, Source] = {}
        self._threads: list[threading.Thread] = []
        self._wires: list[Wire] = []
        self._under_way: dict[Wire, tuple[Holding, int]] = {}  # with the offset
        self._stopping = False

    # Called with the lock held

    def wake(self) -> None:
        """There may be more to fetch, or room for it, or something else to fetch than before."""
        self._troubles.forget_others(holding.partition for holding in self._holdings)
        for wire, (holding, offset) in self._under_way.items():
            if not self._holdings.wants(holding, offset):
                wire.cancel()
        while len(self._threads) < min(MAX_THREADS, len(self._holdings)) and not self._stopping:
            wire = Wire(self._url)
            thread = threading.Thread(
                target=self._run, args=(wire,), name=f"myqueue-fetch-{len(self._threads)}", daemon=True
            )
            self._wires.append(wire)
            self._threads.append(thread)
            thread.start()
        self._wanted.notify_all()

    def stop(self) -> None:
        self._stopping = True
        self._wanted.notify_all()

    # Called without it

    def join(self) -> None:
        for wire in self._wires:
            wire.interrupt()
        for thread in self._threads:
            thread.join(1.0)

    def _run(self, wire: Wire) -> None:
        while (holding := self._next(wire)) is not None:
            try:
                self._fetch(wire, holding)
            except Exception as error:
                # The thread must outlive a defect; the reader is told.
                logger.exception("fetching partition %d", holding.partition)
                with self._changed:
                    self._troubles.fatal = MyQueueError(f"defect while fetching: {error!r}")
            with self._changed:
                holding.fetching = False
                del self._under_way[wire]
                self._changed.notify_all()
        wire.close()

    def _next(self, wire: Wire) -> Holding | None:
        with self._changed:
            while not self._stopping:
                now = time.monotonic()
                share = self._prefetch_bytes // max(1, len(self._holdings))
                holding = self._holdings.next_to_fetch(now, share)
                if holding is not None:
                    self._under_way[wire] = (holding, holding.fetched)
                    return holding
                retry_at = self._holdings.next_retry(now)
                self._wanted.wait(None if retry_at is None else retry_at - now)
            return None

    def _fetch(self, wire: Wire, holding: Holding) -> None:
        partition, offset = holding.partition, self._under_way[wire][1]
        source = self._sources.setdefault(partition, Source())
        table: RoutingTable | None = None
        try:
            table = self._routing.table()
            broker_id = source.choose(table, partition, time.monotonic())
            chunks = self._fetched(wire, table, broker_id, partition, offset)
        except OffsetOutOfRange as error:
            self._gap(holding, offset, error)
        except MyQueueError as error:
            with self._changed:
                wanted = not self._stopping and self._holdings.wants(holding, offset)
            if wanted:  # else it was cancelled
                self._failed(holding, source, table, error)
        else:
            with self._changed:
                holding.failures = 0
                self._troubles.over(partition)
                self._holdings.put(holding, offset, chunks)

    def _fetched(
        self, wire: Wire, table: RoutingTable, broker_id: int | None, partition: int, offset: int
    ) -> list[Chunk]:
        if broker_id is None:
            raise NoLeader()
        shared = len(self._holdings) > len(self._threads)
        fetched = data_plane.fetch(
            wire,
            table,
            broker_id,
            partition,
            offset,
            max_bytes=self._fetch_bytes,
            wait_s=SHORT_WAIT_S if shared else WAIT_S,
            read_s=FETCH_S,
        )
        return list(chunks_in(fetched.data, partition, offset))

    def _gap(self, holding: Holding, offset: int, error: OffsetOutOfRange) -> None:
        beginning = error.details.get("beginning_offset")
        with self._changed:
            if not isinstance(beginning, int) or beginning <= offset:
                holding.retry_at = time.monotonic() + _RETRY.longest_pause_s
                return
            self._troubles.over(holding.partition)
            gone = self._holdings.skip_to(holding, offset, beginning)
            if gone:
                holding.gap = self._on_gap(gone, error)

    def _failed(self, holding: Holding, source: Source, table: RoutingTable | None, error: MyQueueError) -> None:
        logger.debug("fetch of partition %d failed: %s", holding.partition, error)
        fatal: MyQueueError | None = error if isinstance(error, Forbidden) else None
        if table is None:
            if isinstance(error, TopicNotFound):
                fatal = error
        else:
            if not isinstance(error, GrantInvalid):
                source.failed(table, holding.partition, time.monotonic())
            try:
                self._routing.renewed(table)
            except TopicNotFound as gone:
                fatal = gone
            except MyQueueError as unanswered:
                logger.debug("routing is not renewed: %s", unanswered)
        with self._changed:
            holding.failures += 1
            now = time.monotonic()
            quick = isinstance(error, GrantInvalid) and holding.failures == 1
            pause_s = 0.0 if quick else _RETRY.pause_s(holding.failures, None, random.random())  # noqa: S311
            holding.retry_at = now + pause_s
            self._troubles.begin(holding.partition, error, now)
            if fatal is not None:
                self._troubles.fatal = fatal
