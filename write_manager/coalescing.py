"""Messages that came one at a time share batches: which of them go next, and what each is answered. No IO, no clock.

A partition has at most one batch under way; what comes meanwhile is the next one. Every message has a mark of its own,
so whatever is tried again may be put together anew.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple
from uuid import UUID

from myqueue.protocol.batch import Message
from myqueue.protocol.dedup_records import DedupRecord, encode_dedup_records
from myqueue.protocol.errors import BY_CODE, InternalError, MyQueueError, NoLeader, Outcome
from myqueue.protocol.internal import AppendAnswer, AppendResult
from write_manager.encoding import encode

MAX_MESSAGES = 4096
MAX_BYTES = 1 << 20


class Settled(NamedTuple):
    partition_id: int
    result: int | MyQueueError  # the message's offset, or why it has none


class Request:
    """Messages that came together and are answered together."""

    __slots__ = ("_answers", "_done", "_open")

    def __init__(self, count: int, done: Callable[[list[Settled]], None]) -> None:
        self._open = count
        self._done = done
        self._answers: dict[int, Settled] = {}

    def settle(self, position: int, settled: Settled) -> None:
        self._answers[position] = settled
        self._open -= 1
        if self._open == 0:
            self._done([self._answers[place] for place in range(len(self._answers))])


class Turn:
    """Messages that went to one partition because it was its turn."""

    __slots__ = ("_done", "_open", "count")

    def __init__(self, count: int, done: Callable[["Turn"], None]) -> None:
        self.count = self._open = count
        self._done = done

    def settle(self) -> None:
        self._open -= 1
        if self._open == 0:
            self._done(self)


@dataclass(slots=True, eq=False)
class Waiting:
    """One message on its way."""

    message: Message
    producer_id: int
    crc: int
    identity: bytes
    bytes: int
    request: Request
    position: int  # in the request
    request_id: str | None = None
    came_s: float = 0.0
    outcome: Outcome = "not_written"  # of the attempts so far
    turn: Turn | None = None  # for one that may go to any partition

    def settle(self, partition_id: int, result: int | MyQueueError) -> None:
        if self.turn is not None:
            self.turn.settle()
        self.request.settle(self.position, Settled(partition_id, result))


class Lane:
    """What waits for one partition, first come first served."""

    __slots__ = ("partition_id", "queue", "topic_id", "under_way")

    def __init__(self, topic_id: UUID, partition_id: int) -> None:
        self.topic_id = topic_id
        self.partition_id = partition_id
        self.queue: deque[Waiting] = deque()
        self.under_way: Sequence[Waiting] = ()

    @property
    def oldest_s(self) -> float:
        """When the first message of the batch under way came."""
        return min(waiting.came_s for waiting in self.under_way)

    def next_batch(self) -> bytes:
        """The next batch with its marks; it is under way from now on. There must be messages, and none under way."""
        count, size = 0, 0
        for waiting in islice(self.queue, MAX_MESSAGES):
            size += waiting.bytes
            if count and size > MAX_BYTES:
                break
            count += 1
        taken = self.under_way = [self.queue.popleft() for _ in range(count)]
        batch = encode(self.topic_id, self.partition_id, [waiting.message for waiting in taken])
        return batch + encode_dedup_records(
            DedupRecord(place, waiting.producer_id, waiting.crc, waiting.identity)
            for place, waiting in enumerate(taken)
        )

    def settle(self, answer: AppendAnswer) -> None:
        taken, self.under_way = self.under_way, ()
        results = answer["results"]
        if len(results) != len(taken):
            for waiting in taken:
                defect = InternalError("the broker answered for another number of messages", outcome="unknown")
                waiting.settle(self.partition_id, defect)
            return
        for waiting, result in zip(taken, results, strict=True):
            waiting.settle(self.partition_id, _result(result))

    def try_again(self, error: MyQueueError) -> None:
        """Back to the head of the line, in the same order."""
        taken, self.under_way = self.under_way, ()
        if error.outcome == "unknown":
            for waiting in taken:
                waiting.outcome = "unknown"
        self.queue.extendleft(reversed(taken))

    def refuse(self, error: MyQueueError) -> None:
        """Trying again cannot help. Each message gets an error of its own: requests are answered one by one."""
        taken, self.under_way = self.under_way, ()
        for waiting in taken:
            outcome = "unknown" if waiting.outcome == "unknown" else error.outcome
            own = type(error)(
                error.message, outcome=outcome, retry_after_s=error.retry_after_s, details=dict(error.details)
            )
            waiting.settle(self.partition_id, own)

    def give_up(self, came_before_s: float) -> None:
        """Whoever has waited too long for a leader is told so."""
        while self.queue and self.queue[0].came_s <= came_before_s:
            waiting = self.queue.popleft()
            waiting.settle(self.partition_id, NoLeader(outcome=waiting.outcome, retry_after_s=1))


def _result(result: AppendResult) -> int | MyQueueError:
    if "offset" in result:
        return result["offset"]
    refusal = BY_CODE.get(result.get("error_code", 0))
    if refusal is None:
        return InternalError("the broker answered neither with an offset nor with an error", outcome="unknown")
    return refusal(outcome="not_written")
