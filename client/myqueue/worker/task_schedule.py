"""Which message may be handled now, which waits, and how far a partition may be committed. No threads, IO or clock.

Messages of a lane are handled one after the other; a lane is a key of a partition, by default. In every partition

    committed <= committable <= next offset

`committable` is the lowest offset that is in hand: read, and neither handled nor in the dead-letter topic.
"""

import heapq
from collections import deque
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Literal

from myqueue.message import Message

Order = Literal["key", "partition", "none"]
ORDERS: tuple[Order, ...] = ("key", "partition", "none")

_Lane = tuple[int, bytes | int | None]  # partition; its key, its offset if it stands alone, None for the partition
REFILL = 0.5  # of its share is in use when a partition that was full reads again
_OVERHEAD_BYTES = 500  # of a message in hand, beside its contents


class MessageTask:
    """A message in hand."""

    __slots__ = ("attempts", "dropped", "error", "lane", "message", "running", "size")

    def __init__(self, message: Message, lane: _Lane) -> None:
        self.message = message
        self.lane = lane
        self.size = len(message.value) + len(message.key or b"") + _OVERHEAD_BYTES
        self.size += sum(len(key) + len(value or b"") for key, value in message.headers)
        self.attempts = 0  # that have begun
        self.error: Exception | None = None  # of the last attempt; the message belongs into the dead-letter topic
        self.running = False
        self.dropped = False  # its partition was revoked: the result does not count


@dataclass(slots=True)
class _PartitionTasks:
    committed: int
    next_offset: int
    begun: int  # the offset behind the last message that has begun
    in_hand: dict[int, MessageTask] = field(default_factory=dict)  # by offset, ascending
    size: int = 0  # bytes in hand

    @property
    def committable(self) -> int:
        return next(iter(self.in_hand), self.next_offset)


@dataclass(frozen=True, slots=True)
class HandLimits:
    """What may be in hand. Partitions have equal shares; one that has nothing in hand may always read a message."""

    messages: int
    size: int
    uncommitted: int  # offsets of a partition that are read and not committable

    def used(self, tasks: _PartitionTasks, partitions: int) -> float:
        """How much of its share a partition uses, where there are so many; 1 or more: it is full."""
        return max(
            len(tasks.in_hand) / max(1, self.messages // partitions),
            tasks.size / max(1, self.size // partitions),
            (tasks.next_offset - tasks.committable) / self.uncommitted,
        )


class TaskSchedule:
    def __init__(self, order: Order, limits: HandLimits) -> None:
        self.running = 0
        self.full: set[int] = set()  # partitions that may read no more until others are done
        self._order = order
        self._limits = limits
        self._partitions: dict[int, _PartitionTasks] = {}
        # The first task of a lane runs, is ready, or waits for its retry; the others wait for the first. The task of a
        # revoked partition that still runs stays in its lane, so that no other of its key begins before it ends.
        self._lanes: dict[_Lane, deque[MessageTask]] = {}
        self._ready: deque[MessageTask] = deque()
        self._retries: list[tuple[float, int, MessageTask]] = []  # a heap: when it is due, a number that breaks ties
        self._numbers = count()

    @property
    def in_hand(self) -> int:
        return sum(len(tasks.in_hand) for tasks in self._partitions.values())

    # Partitions

    @property
    def partitions(self) -> list[int]:
        return list(self._partitions)

    def add(self, message: Message) -> None:
        """A message that was read. Offsets of a partition ascend; one that does not was read again, after a seek."""
        tasks = self._partitions.get(message.partition)
        if tasks is not None and message.offset < tasks.next_offset:
            self.revoke(message.partition)
            tasks = None
        if tasks is None:
            tasks = self._partitions[message.partition] = _PartitionTasks(
                message.offset, message.offset, message.offset
            )
        task = MessageTask(message, self._lane_of(message))
        tasks.in_hand[message.offset] = task
        tasks.size += task.size
        tasks.next_offset = message.offset + 1
        lane = self._lanes.setdefault(task.lane, deque())
        lane.append(task)
        if len(lane) == 1:
            self._ready.append(task)

    def revoke(self, partition: int) -> None:
        """Drops the partition's messages: they are delivered again, here or elsewhere. Results of those that run do
        not count any more."""
        tasks = self._partitions.pop(partition, None)
        if tasks is None:
            return
        for task in tasks.in_hand.values():
            task.dropped = True
            lane = self._lanes.get(task.lane)
            if lane is not None:
                self._drop_waiting(task.lane, lane)
        self._ready = deque(task for task in self._ready if not task.dropped)
        self._retries = [retry for retry in self._retries if not retry[2].dropped]
        heapq.heapify(self._retries)

    def begin_revoke(self, partitions: Iterable[int]) -> None:
        """The partitions are about to go: drops their messages behind the last one that has begun, so that those before
        it can be finished, and nothing that was handled comes again."""
        for partition in partitions:
            tasks = self._partitions.get(partition)
            if tasks is None:
                continue
            for offset in [offset for offset in tasks.in_hand if offset >= tasks.begun]:
                task = tasks.in_hand.pop(offset)
                task.dropped = True
                tasks.size -= task.size
                lane = self._lanes[task.lane]
                lane.remove(task)
                if not lane:
                    del self._lanes[task.lane]
            tasks.next_offset = tasks.begun
        self._ready = deque(task for task in self._ready if not task.dropped)

    def is_busy(self, partitions: Container[int], until: float) -> bool:
        """Whether a task of these partitions runs, is ready, or is retried before `until`."""
        return (
            any(task.message.partition in partitions for task in self._ready)
            or any(at <= until and task.message.partition in partitions for at, _, task in self._retries)
            or any(
                task.running
                for partition, tasks in self._partitions.items()
                if partition in partitions
                for task in tasks.in_hand.values()
            )
        )

    def find_full(self, assigned: int) -> set[int]:
        """Partitions that may read no more until others are done, where so many are assigned.

        One that was full reads again when half of its share is free: that a message comes for each that is done would
        cost a change of what is read each time.
        """
        shares = max(1, assigned)
        self.full = {
            partition
            for partition, tasks in self._partitions.items()
            if self._limits.used(tasks, shares) >= (REFILL if partition in self.full else 1.0)
        }
        return self.full

    def uncommitted(self) -> dict[int, int]:
        """How far each partition may be committed, where that is further than it is."""
        return {
            partition: tasks.committable
            for partition, tasks in self._partitions.items()
            if tasks.committable > tasks.committed
        }

    def recommit(self) -> None:
        """A commit may have failed that was not waited for: all that is done is uncommitted."""
        for tasks in self._partitions.values():
            tasks.committed = 0

    def committed(self, offsets: dict[int, int]) -> None:
        for partition, offset in offsets.items():
            tasks = self._partitions.get(partition)
            if tasks is not None:
                tasks.committed = max(tasks.committed, offset)

    # Tasks

    def take(self, now: float) -> MessageTask | None:
        """The task to run now: retries that are due first, then in the order in which they became ready."""
        if self._retries and self._retries[0][0] <= now:
            task = heapq.heappop(self._retries)[2]
        elif self._ready:
            task = self._ready.popleft()
        else:
            return None
        task.running = True
        self.running += 1
        tasks = self._partitions[task.message.partition]
        tasks.begun = max(tasks.begun, task.message.offset + 1)
        return task

    def next_retry(self) -> float | None:
        """When the next retry is due."""
        return self._retries[0][0] if self._retries else None

    def finish(self, task: MessageTask) -> bool:
        """The task is done: its message is handled, or in the dead-letter topic. Whether that counts."""
        self._end_run(task)
        self._leave_lane(task)
        if task.dropped:
            return False
        tasks = self._partitions[task.message.partition]
        del tasks.in_hand[task.message.offset]
        tasks.size -= task.size
        return True

    def retry(self, task: MessageTask, at: float) -> bool:
        """The task is to run again, at that time or later. Whether it will."""
        self._end_run(task)
        if task.dropped:
            self._leave_lane(task)
            return False
        heapq.heappush(self._retries, (at, next(self._numbers), task))
        return True

    def _end_run(self, task: MessageTask) -> None:
        assert task.running, "only what was taken can end"
        task.running = False
        self.running -= 1

    def _leave_lane(self, task: MessageTask) -> None:
        """The next one of its lane is ready."""
        lane = self._lanes[task.lane]
        lane.popleft()
        if lane:
            self._ready.append(lane[0])
        else:
            del self._lanes[task.lane]

    def _drop_waiting(self, name: _Lane, lane: deque[MessageTask]) -> None:
        """Keeps the first one of a lane if it runs."""
        if lane[0].running:
            while len(lane) > 1:
                lane.pop()
        else:
            del self._lanes[name]

    def _lane_of(self, message: Message) -> _Lane:
        if self._order == "partition":
            return message.partition, None
        if self._order == "none" or message.key is None:
            return message.partition, message.offset
        return message.partition, message.key
