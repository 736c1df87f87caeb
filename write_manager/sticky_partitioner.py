"""The sticky partitioner: messages that may go to any partition go together to one, then to the next one.

The cost of an append hardly depends on how many messages it carries, so sixteen clients that wait for their answers
should make one batch, not sixteen. A sticky batch leaves when the one before it is answered, and a little later if
that helps (`linger.py`).
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from write_manager.accumulator import PendingMessage, StickyBatch
from write_manager.linger import Linger
from write_manager.metadata_cache import CachedPartition, CachedTopic

BATCH_TIMEOUT_S = 0.05  # a failing partition must not delay the batches for the others


@dataclass(slots=True, eq=False)
class _TopicQueue:
    topic: CachedTopic
    waiting: list[PendingMessage] = field(default_factory=list)
    in_flight: StickyBatch | None = None
    sent_s: float = 0.0
    timeout: asyncio.TimerHandle | None = None
    linger: Linger | None = None  # while the next batch waits for those just answered


class StickyPartitioner:
    def __init__(self, put: Callable[[UUID, CachedPartition, PendingMessage], None]) -> None:
        self._put = put
        self._topics: dict[UUID, _TopicQueue] = {}

    def add(self, topic: CachedTopic, pending: PendingMessage) -> None:
        queue = self._topics.get(topic.topic_id)
        if queue is None:
            queue = self._topics[topic.topic_id] = _TopicQueue(topic)
            queue.waiting.append(pending)
            self._leave(queue)
            return
        queue.waiting.append(pending)
        if queue.linger is not None:
            queue.linger.arrived()

    def _leave(self, queue: _TopicQueue) -> None:
        """After all callbacks that are due now: messages that arrive at the same time go together."""
        asyncio.get_running_loop().call_soon(self._send, queue)

    def _send(self, queue: _TopicQueue) -> None:
        loop = asyncio.get_running_loop()
        waiting, queue.waiting = queue.waiting, []
        topic = queue.topic
        partition = topic.next_partition()
        batch = queue.in_flight = StickyBatch(len(waiting), lambda batch: self._answered(queue, batch))
        queue.sent_s = loop.time()
        queue.timeout = loop.call_later(BATCH_TIMEOUT_S, self._timed_out, queue, batch)
        for pending in waiting:
            pending.sticky_batch = batch
            self._put(topic.topic_id, partition, pending)

    def _answered(self, queue: _TopicQueue, batch: StickyBatch) -> None:
        if queue.in_flight is not batch:
            return
        self._end(queue)
        expected = batch.count + len(queue.waiting)
        if expected > 1:
            queue.linger = Linger(lambda: len(queue.waiting), lambda: self._lingered(queue))
            queue.linger.begin(expected, asyncio.get_running_loop().time() - queue.sent_s)
        else:
            self._next(queue)

    def _lingered(self, queue: _TopicQueue) -> None:
        queue.linger = None
        self._next(queue)

    def _timed_out(self, queue: _TopicQueue, batch: StickyBatch) -> None:
        if queue.in_flight is batch:
            self._end(queue)
            self._next(queue)

    def _end(self, queue: _TopicQueue) -> None:
        queue.in_flight = None
        if queue.timeout is not None:
            queue.timeout.cancel()

    def _next(self, queue: _TopicQueue) -> None:
        if queue.waiting:
            self._leave(queue)
        else:
            del self._topics[queue.topic.topic_id]
