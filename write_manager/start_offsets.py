"""Where new consumers start: one question to the leaders for all that ask the same at the same time."""

import asyncio
from collections.abc import Sequence
from uuid import UUID

from myqueue.protocol.internal import Offsets
from myqueue.protocol.models import FromTimestamp, Start
from write_manager.directory import Topic
from write_manager.offsets import FreshOffsets, places

Question = tuple[UUID, tuple[int, ...], int | None]
Task = asyncio.Task[dict[int, Offsets]]


class StartOffsets:
    """On the event loop. Who comes while leaders are asked waits for the next question: an answer is never older than
    the request that gets it."""

    def __init__(self, offsets: FreshOffsets) -> None:
        self._offsets = offsets
        self._asking: dict[Question, Task] = {}
        self._next: dict[Question, Task] = {}

    async def places(self, topic: Topic, partition_ids: Sequence[int], start: Start) -> dict[int, int]:
        """The offset that a start stands for, in each of the partitions."""
        question = topic.topic_id, tuple(partition_ids), start.timestamp if isinstance(start, FromTimestamp) else None
        task = self._next.get(question)
        if task is None:
            task = asyncio.create_task(self._ask(question, topic, self._asking.get(question)))
            self._next[question] = task
        return places(start, await asyncio.shield(task))

    async def _ask(self, question: Question, topic: Topic, before: Task | None) -> dict[int, Offsets]:
        if before is not None:
            await asyncio.wait([before])
        task = self._asking[question] = self._next.pop(question)
        _, partition_ids, timestamp = question
        try:
            return await self._offsets.require(topic, partition_ids, timestamp)
        finally:
            if self._asking.get(question) is task:
                del self._asking[question]
