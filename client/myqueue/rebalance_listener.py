"""The application's callbacks of a rebalance: which of them is due, and calling it.

They are called inside the application's call that asks for messages, so that nothing is handed out meanwhile. A
partition is released after its callback has returned or failed.
"""

import inspect
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple

from myqueue.argument_checks import WrongType
from myqueue.message import TopicPartition
from myqueue.subscription_state import PartitionState, SubscriptionState

RebalanceCallback = Callable[[list[TopicPartition]], object]
AsyncRebalanceCallback = Callable[[list[TopicPartition]], Awaitable[object] | object]


def check_not_coroutine(**callbacks: RebalanceCallback | None) -> None:
    for name, callback in callbacks.items():
        if inspect.iscoroutinefunction(callback):
            raise WrongType(f"{name} is a coroutine function, which a Consumer cannot await: use AsyncConsumer")


class RebalanceCall(NamedTuple):
    callback: AsyncRebalanceCallback
    partitions: list[TopicPartition]
    revoked: Sequence[PartitionState]


class RebalanceListener:
    def __init__(
        self,
        topic: str,
        subscription: SubscriptionState,
        lock: threading.Lock,
        *,
        on_assign: AsyncRebalanceCallback | None,
        on_revoke: AsyncRebalanceCallback | None,
        on_lost: AsyncRebalanceCallback | None,
        on_given_up: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_given_up` is called with the lock held: partitions may be released."""
        self._topic = topic
        self._subscription = subscription
        self._lock = lock  # of the subscription
        self._on_assign = on_assign
        self._on_revoke = on_revoke
        self._on_lost = on_lost or on_revoke
        self._is_running = False
        self._on_given_up = on_given_up

    def check(self) -> None:
        if self._is_running:
            raise RuntimeError("a callback of a rebalance must not ask for messages")

    # Without the lock

    async def run_due(self) -> None:
        """Suspends only if a callback does."""
        while (call := self._take_call()) is not None:
            await self.run(call)

    async def run(self, call: RebalanceCall) -> None:
        self._is_running = True
        try:
            result = call.callback(call.partitions)
            if inspect.isawaitable(result):
                await result
        finally:
            self._finish(call)

    def _take_call(self) -> RebalanceCall | None:
        with self._lock:
            return self.next_call()

    def _finish(self, call: RebalanceCall) -> None:
        self._is_running = False
        with self._lock:
            self._subscription.give_up(call.revoked)
            self._on_given_up()

    # With the lock held

    def next_call(self) -> RebalanceCall | None:
        """What is lost first, then what is revoked, then what is new. None: messages may be handed out."""
        subscription = self._subscription
        while subscription.is_rebalance_due():
            if lost := subscription.take_lost():
                if self._on_lost is not None:
                    return self._call(self._on_lost, lost)
            elif revoked := subscription.take_revoked():
                if self._on_revoke is not None:
                    return self._call(self._on_revoke, [state.partition for state in revoked], revoked)
                subscription.give_up(revoked)
            elif (assigned := subscription.take_assigned()) and self._on_assign is not None:
                return self._call(self._on_assign, assigned)
        return None

    def last_call(self) -> RebalanceCall | None:
        """When the consumer is closed: all that the application has is revoked. Its commits may be on their way."""
        announced = [state for state in self._subscription if state.announced]
        if self._on_revoke is None or not announced:
            return None
        for state in announced:
            state.announced = False
        return self._call(self._on_revoke, [state.partition for state in announced])

    def _call(
        self, callback: AsyncRebalanceCallback, partitions: list[int], revoked: Sequence[PartitionState] = ()
    ) -> RebalanceCall:
        return RebalanceCall(callback, [TopicPartition(self._topic, each) for each in sorted(partitions)], revoked)


async def run_all(calls: Iterable[tuple[RebalanceListener, RebalanceCall]]) -> None:
    """Of several topics: each is called, also after one has raised."""
    failed: list[Exception] = []
    for listener, call in calls:
        try:
            await listener.run(call)
        except Exception as error:  # noqa: BLE001 # the application's: raised below
            failed.append(error)
    for other in failed[1:]:
        failed[0].add_note(f"and: {other!r}")
    if failed:
        raise failed[0]
