"""Messages that may go to any partition: those that wait go together to the partition whose turn it is.

The cost of an append hardly depends on how many messages it carries, so sixteen clients that wait for their answers
should make one batch, not sixteen. A turn begins when the one before it is answered, and a little later if that helps:
whoever was just answered will most likely send the next message at once. A lone client never waits.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from write_manager.coalescing import Turn, Waiting
from write_manager.directory import Partition, Topic

PATIENCE_S = 0.05  # a partition in trouble must not keep the others from their turns
MAX_GATHER_S = 0.005


@dataclass(slots=True, eq=False)
class _Pool:
    topic: Topic
    queue: list[Waiting] = field(default_factory=list)
    expected: int = 1  # with this many the next turn begins
    turn: Turn | None = None  # under way
    began_s: float = 0.0
    timer: asyncio.TimerHandle | None = None
    leaving: bool = False  # the next turn begins as soon as everything else at hand is done


class Turns:
    def __init__(self, put: Callable[[UUID, Partition, Waiting], None]) -> None:
        self._put = put
        self._pools: dict[UUID, _Pool] = {}

    def add(self, topic: Topic, waiting: Waiting) -> None:
        pool = self._pools.get(topic.topic_id)
        if pool is None:
            pool = self._pools[topic.topic_id] = _Pool(topic)
        pool.queue.append(waiting)
        if pool.turn is None and len(pool.queue) >= pool.expected:
            self._leave(pool)

    def _leave(self, pool: _Pool) -> None:
        if not pool.leaving:
            pool.leaving = True
            asyncio.get_running_loop().call_soon(self._begin, pool)

    def _begin(self, pool: _Pool) -> None:
        pool.leaving = False
        if pool.timer is not None:
            pool.timer.cancel()
        loop = asyncio.get_running_loop()
        queue, pool.queue = pool.queue, []
        topic = pool.topic
        partition = topic.partition(topic.turns.choose(topic.partition_ids))
        turn = pool.turn = Turn(len(queue), lambda turn: self._answered(pool, turn))
        pool.began_s = loop.time()
        pool.timer = loop.call_later(PATIENCE_S, self._give_up, pool, turn)
        for waiting in queue:
            waiting.turn = turn
            self._put(topic.topic_id, partition, waiting)

    def _answered(self, pool: _Pool, turn: Turn) -> None:
        if pool.turn is not turn:
            return
        loop = asyncio.get_running_loop()
        pool.expected = turn.count + len(pool.queue)
        if pool.expected > 1:
            gather_s = min((loop.time() - pool.began_s) / 2, MAX_GATHER_S)
            self._over(pool)
            pool.timer = loop.call_later(gather_s, self._gathered, pool)
        else:
            self._over(pool)
            del self._pools[pool.topic.topic_id]

    def _give_up(self, pool: _Pool, turn: Turn) -> None:
        if pool.turn is turn:
            self._over(pool)
            self._gathered(pool)

    def _over(self, pool: _Pool) -> None:
        pool.turn = None
        if pool.timer is not None:
            pool.timer.cancel()

    def _gathered(self, pool: _Pool) -> None:
        if pool.queue:
            self._leave(pool)
        else:
            del self._pools[pool.topic.topic_id]
