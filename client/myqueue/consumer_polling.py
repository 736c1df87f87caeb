"""The application's calls that ask for messages: they wait, run the callbacks of rebalances, and are a sign of life."""

import time
from collections.abc import Awaitable, Callable
from typing import Self

from myqueue.background_errors import BackgroundErrors
from myqueue.consumer_waits import Waits, deadline_of
from myqueue.fetcher import ChangeCondition, Fetcher
from myqueue.lease_renewer import FIRST_LEASE_S
from myqueue.poll_interval import PollInterval
from myqueue.protocol.errors import StaleLease
from myqueue.rebalance_listener import RebalanceListener
from myqueue.subscription_state import InFlight, SubscriptionState


class Polling:
    """`async with` it around a call: for as long as that lasts, the application does not stay away."""

    def __init__(
        self,
        waits: Waits,
        subscription: SubscriptionState,
        listener: RebalanceListener,
        interval: PollInterval,
        errors: BackgroundErrors,
        changed: ChangeCondition,
        *,
        retry_deadline_s: float,
        wake_renewer: Callable[[], None],
        all_held_by_others: Callable[[], Awaitable[bool]],
        end_offsets: Callable[[], Awaitable[dict[int, int]]],
    ) -> None:
        """`wake_renewer` is called with the lock held. The last two ask the cluster: whether other members have all
        partitions, and where the partitions end."""
        self.fetcher: Fetcher | None = None  # from the first read on
        self._waits = waits
        self._subscription = subscription
        self._listener = listener
        self._interval = interval
        self._errors = errors
        self._changed = changed
        self._retry_deadline_s = retry_deadline_s
        self._wake_renewer = wake_renewer
        self._all_held_by_others = all_held_by_others
        self._end_offsets = end_offsets

    async def __aenter__(self) -> Self:
        """Raises MaxPollIntervalExceeded once, after `on_lost`, and joins again."""
        self._listener.check()
        with self._changed:
            error = self._interval.enter(time.monotonic())
            if error is not None:
                self._wake_renewer()
        if error is not None:
            await self._listener.run_due()
            raise error
        return self

    async def __aexit__(self, *_: object) -> None:
        with self._changed:
            self._interval.leave(time.monotonic())

    async def next_chunks(self, max_messages: int, timeout: float | None) -> list[InFlight]:
        """Waits until there is something, and takes what is there then: nothing is awaited after it was taken."""
        async with self:
            with self._changed:
                self._subscription.recall_in_flight()
            deadline = deadline_of(timeout)
            handed: list[InFlight] = []
            while not handed and await self.ask_for_more(deadline):
                with self._changed:
                    handed = self._hand_out(max_messages)
        return handed

    def _hand_out(self, max_messages: int) -> list[InFlight]:
        """Called with the lock held."""
        handed: list[InFlight] = []
        left = max_messages
        if self.fetcher is None or self.fetcher.is_stopping:
            return handed
        while left > 0 and (taken := self._subscription.take(time.monotonic())) is not None:
            state, chunk = taken
            if chunk.count > left:
                self._subscription.put_back(state, chunk.rest(left))
                chunk = chunk.start(left)
            handed.append(self._subscription.hand_out(state, chunk, None))
            left -= chunk.count
        self.fetcher.refill(sum(in_flight.chunk.size for in_flight in handed))
        return handed

    async def ask_for_more(self, deadline: float | None) -> bool:
        """Marks messages in flight as handled, and waits for more; raises errors that lasted too long.

        Without a deadline it asks the cluster whether there is something. False if there is nothing, or it is closed.
        """
        while True:
            with self._changed:
                self._errors.raise_commit_error()
                self._finish_in_flight()
            await self._listener.run_due()
            has_more = await self._await_more(deadline)
            with self._changed:
                if not self._subscription.is_rebalance_due() or self._is_closed():
                    return has_more

    def check_member(self) -> None:
        """Called with the lock held: what was read before the member had to leave is not its own to commit any more."""
        if (error := self._interval.error(time.monotonic())) is not None:
            raise StaleLease(error.message)

    def _finish_in_flight(self) -> None:
        """Called with the lock held."""
        if self._subscription.finish_in_flight():
            self._wake_renewer()

    async def _await_more(self, deadline: float | None) -> bool:
        """Returns early when callbacks are due."""
        if deadline is not None:
            return await self._until(self._is_ready, deadline)
        retry_deadline = time.monotonic() + self._retry_deadline_s
        await self._until(lambda: self._subscription.known, retry_deadline)
        with self._changed:
            if self._is_closed() or self._is_ready() or self._subscription.is_rebalance_due():
                return not self._is_closed()
            none_held = len(self._subscription) == 0
        if none_held and not await self._all_held_by_others():
            await self._until(lambda: len(self._subscription) > 0, time.monotonic() + 2 * FIRST_LEASE_S)
        ends = await self._end_offsets()
        await self._until(lambda: self._is_ready() or self._subscription.fetched_all(ends), retry_deadline)
        with self._changed:
            return not self._is_closed() and self._is_ready()

    def _is_closed(self) -> bool:
        return self.fetcher is None or self.fetcher.is_stopping

    def _is_ready(self) -> bool:
        return self._subscription.ready(time.monotonic())

    async def _until(self, condition: Callable[[], bool], deadline: float) -> bool:
        """Whether the condition came true, or callbacks became due, before the deadline and before `close`.

        Raises gaps and overdue errors.
        """

        def checked() -> bool:
            self._finish_in_flight()
            for state in self._subscription:
                if state.gap is not None and not state.chunks:
                    gap, state.gap = state.gap, None
                    if self.fetcher is not None:
                        self.fetcher.wake()
                    raise gap
            return condition() or self._subscription.is_rebalance_due()

        if self.fetcher is None:
            return False
        return await self._waits.wait_for(self.fetcher, self._changed, checked, deadline)
