"""The sticky partitioner: messages that may go to any partition go together to one, then to the next one.

The cost of an append hardly depends on how many messages it carries, so sixteen clients that wait for their answers
should make one batch, not sixteen. A sticky batch leaves when the one before it is answered, and a little later if
that helps: a client that was just answered most likely sends its next message at once. A lone client never waits.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from write_manager.accumulator import PendingMessage, StickyBatch
from write_manager.metadata_cache import CachedPartition, CachedTopic

BATCH_TIMEOUT_S = 0.05  # a failing partition must not delay the batches for the others
MAX_LINGER_S = 0.005


@dataclass(slots=True, eq=False)
class _TopicQueue:
    topic: CachedTopic
    waiting: list[PendingMessage] = field(default_factory=list)
    expected: int = 1  # with this many messages the next batch leaves
    in_flight: StickyBatch | None = None
    sent_s: float = 0.0
    timer: asyncio.TimerHandle | None = None
    leaving: bool = False  # the next batch leaves after all callbacks that are due now


class StickyPartitioner:
    def __init__(self, put: Callable[[UUID, CachedPartition, PendingMessage], None]) -> None:
        self._put = put
        self._topics: dict[UUID, _TopicQueue] = {}

    def add(self, topic: CachedTopic, pending: PendingMessage) -> None:
        queue = self._topics.get(topic.topic_id)
        if queue is None:
            queue = self._topics[topic.topic_id] = _TopicQueue(topic)
        queue.waiting.append(pending)
        if queue.in_flight is None and len(queue.waiting) >= queue.expected:
            self._leave(queue)

    def _leave(self, queue: _TopicQueue) -> None:
        if not queue.leaving:
            queue.leaving = True
            asyncio.get_running_loop().call_soon(self._send, queue)

    def _send(self, queue: _TopicQueue) -> None:
        queue.leaving = False
        if queue.timer is not None:
            queue.timer.cancel()
        loop = asyncio.get_running_loop()
        waiting, queue.waiting = queue.waiting, []
        topic = queue.topic
        partition = topic.next_partition()
        batch = queue.in_flight = StickyBatch(len(waiting), lambda batch: self._answered(queue, batch))
        queue.sent_s = loop.time()
        queue.timer = loop.call_later(BATCH_TIMEOUT_S, self._timed_out, queue, batch)
        for pending in waiting:
            pending.sticky_batch = batch
            self._put(topic.topic_id, partition, pending)

    def _answered(self, queue: _TopicQueue, batch: StickyBatch) -> None:
        if queue.in_flight is not batch:
            return
        loop = asyncio.get_running_loop()
        queue.expected = batch.count + len(queue.waiting)
        self._end(queue)
        if queue.expected > 1:
            linger_s = min((loop.time() - queue.sent_s) / 2, MAX_LINGER_S)
            queue.timer = loop.call_later(linger_s, self._lingered, queue)
        else:
            del self._topics[queue.topic.topic_id]

    def _timed_out(self, queue: _TopicQueue, batch: StickyBatch) -> None:
        if queue.in_flight is batch:
            self._end(queue)
            self._lingered(queue)

    def _end(self, queue: _TopicQueue) -> None:
        queue.in_flight = None
        if queue.timer is not None:
            queue.timer.cancel()

    def _lingered(self, queue: _TopicQueue) -> None:
        if queue.waiting:
            self._leave(queue)
        else:
            del self._topics[queue.topic.topic_id]
