"""Batches of idempotent producers that have overtaken one sent before them wait at the leader for the missing one.

Bounded by time, by batches of a producer and by bytes of the broker; beyond that a batch ahead of its turn is refused.
"""

from typing import NamedTuple

from broker.raft.context import RaftContext
from broker.raft.dedupe import DedupeResult, PendingDedupe, Problem
from broker.raft.events import Propose

# Also the first batches of a producer, or of an epoch, may arrive in another order than they were sent.
_AHEAD = (Problem.GAP, Problem.UNKNOWN_PRODUCER)


def is_ahead(result: DedupeResult) -> bool:
    return result in _AHEAD


class _Waiting(NamedTuple):
    event: Propose
    due: int


class ReorderBuffer:
    """Of one leader; all batches wait equally long, so the oldest is due first."""

    __slots__ = ("_bytes", "_context", "_waiting")

    def __init__(self, context: RaftContext) -> None:
        self._context = context
        self._waiting: dict[int, list[_Waiting]] = {}  # by producer, in the order of arrival
        self._bytes = 0

    def add(self, event: Propose) -> int | None:
        """When it is given up; None: there is no room for it."""
        assert event.stamp is not None
        context, settings = self._context, self._context.settings
        waiting = self._waiting.get(event.stamp.producer_id, [])
        size = len(event.body)
        if len(waiting) >= settings.reorder_batches or context.reorder_bytes + size > settings.reorder_bytes_total:
            return None
        due = context.now + settings.reorder_ms
        waiting.append(_Waiting(event, due))
        self._waiting[event.stamp.producer_id] = waiting
        self._count(size)
        return due

    def take_next(self, producer_id: int, pending: PendingDedupe) -> Propose | None:
        """One that waits no longer, by what the log holds now."""
        for waiting in self._waiting.get(producer_id, ()):
            event = waiting.event
            if not is_ahead(pending.check(event.stamp, event.count, ())[0]):
                self._remove(producer_id, waiting)
                return event
        return None

    def take_due(self) -> list[Propose]:
        now = self._context.now
        due = [(name, waiting) for name, all_ in self._waiting.items() for waiting in all_ if waiting.due <= now]
        for producer_id, waiting in due:
            self._remove(producer_id, waiting)
        return [waiting.event for _, waiting in due]

    def next_due(self) -> int | None:
        return min((waiting[0].due for waiting in self._waiting.values()), default=None)

    def take_all(self) -> list[Propose]:
        events = [waiting.event for all_ in self._waiting.values() for waiting in all_]
        self._waiting.clear()
        self._count(-self._bytes)
        return events

    def _remove(self, producer_id: int, waiting: _Waiting) -> None:
        left = self._waiting[producer_id]
        left.remove(waiting)
        if not left:
            del self._waiting[producer_id]
        self._count(-len(waiting.event.body))

    def _count(self, size: int) -> None:
        self._bytes += size
        self._context.reorder_bytes += size
