"""Which fetches a consumer starts, and what follows from their results. No threads; the caller locks."""

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from myqueue.background_errors import BackgroundErrors
from myqueue.fetch_connection import FetchConnection
from myqueue.fetch_requests import FETCH_S, FetchRequest, FetchRequests, Result
from myqueue.protocol.errors import MyQueueError, OffsetOutOfRange
from myqueue.routing import ReplicaSelector, RoutingTable
from myqueue.subscription_state import PartitionState, SubscriptionState
from myqueue.transport import RetryPolicy

MAX_IN_FLIGHT = 16
WAIT_S = 2.0  # of the long poll
SHORT_WAIT_S = 0.1  # where partitions take turns
RETRY = RetryPolicy(first_pause_s=0.05, longest_pause_s=0.5)


class Blocked(NamedTuple):
    """A partition that is not fetched before the background thread has done what may take long."""

    state: PartitionState
    table: RoutingTable | None  # of the fetch that failed
    error: MyQueueError | None  # why; None: there is no connection, or the grant has expired


class FetchScheduler:
    def __init__(
        self,
        requests: FetchRequests,
        subscription: SubscriptionState,
        errors: BackgroundErrors,
        table: RoutingTable,
        *,
        prefetch_bytes: int,
        on_gap: Callable[[int, OffsetOutOfRange], MyQueueError | None],
    ) -> None:
        self.blocked: deque[Blocked] = deque()
        self.opened: list[FetchConnection] = []  # for the next fetches
        self.table = table
        self.stopping = False
        self._requests = requests
        self._subscription = subscription
        self._errors = errors
        self.prefetch_bytes = prefetch_bytes
        self._on_gap = on_gap
        self._selectors: dict[int, ReplicaSelector] = {}

    def has_room(self) -> bool:
        """Whether a partition that is not being fetched may be."""
        share = self._share()
        return any(not state.fetching and state.buffered < share for state in self._subscription)

    def forget(self) -> None:
        self._requests.discard_all()
        for state in self._subscription:
            state.fetching = any(blocked.state is state for blocked in self.blocked)

    def cancel_unwanted(self) -> None:
        for request in list(self._requests.in_flight.values()):
            if not self._subscription.is_current(request.state, request.offset):
                self._cancel(request)

    def _cancel(self, request: FetchRequest) -> None:
        request.state.fetching = False
        self._requests.cancel(request)

    def start(self) -> list[FetchRequest]:
        """Those that have a connection and are to be sent; others are left to the background thread."""
        for opened in self.opened:
            self._requests.add(opened)
        self.opened.clear()
        started: list[FetchRequest] = []
        in_flight = self._requests.in_flight
        now, share, table = time.monotonic(), self._share(), self.table
        wait_s = WAIT_S if len(self._subscription) <= MAX_IN_FLIGHT else SHORT_WAIT_S
        while len(in_flight) + len(self.blocked) < MAX_IN_FLIGHT and not self.stopping:
            state = self._subscription.next_to_fetch(now, share)
            if state is None:
                break
            try:
                broker_id = self.selector_of(state.partition).choose(table, state.partition, now)
            except MyQueueError as error:
                self.blocked.append(Blocked(state, table, error))
                continue
            connection = self._requests.take_idle() if now < table.expires_at else None
            if connection is None:
                self.blocked.append(Blocked(state, None, None))
                continue
            deadline = now + wait_s + FETCH_S
            request = FetchRequest(state, state.fetched, table, broker_id, wait_s, connection, deadline)
            in_flight[connection] = request
            started.append(request)
        return started

    def finish(self, result: Result) -> int:
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
                self.blocked.append(Blocked(state, request.table, outcome))
        else:
            state.failures = 0
            self._errors.clear(state.partition)
            self._subscription.put(state, offset, outcome)
            return sum(chunk.size for chunk in outcome)
        return 0

    def _gap(self, state: PartitionState, offset: int, error: OffsetOutOfRange) -> None:
        beginning = error.details.get("beginning_offset")
        if not isinstance(beginning, int) or beginning <= offset:
            state.retry_at = time.monotonic() + RETRY.longest_pause_s
            return
        self._errors.clear(state.partition)
        gone = self._subscription.skip_to(state, offset, beginning)
        if gone:
            state.gap = self._on_gap(gone, error)

    def _share(self) -> int:
        return self.prefetch_bytes // max(1, len(self._subscription))

    def selector_of(self, partition: int) -> ReplicaSelector:
        return self._selectors.setdefault(partition, ReplicaSelector())
