"""The batches of one partition: which one may be sent next, and what the answers mean for those behind it. Pure.

A leader stores a producer's batch only behind all earlier sequences of its epoch, and a newer epoch that it has stored
refuses every older one. A batch that overtakes an earlier one waits at the leader for a while; then its answer is
SequenceGap: not written. The log recognises a repetition of a producer's last `WINDOW` batches. On this rest:

- Stamps are given in the order of the queue. From the oldest batch that is not decided on, at most `WINDOW` are
  stamped, so that a repetition is always recognised.
- First attempts overlap; a batch that is sent again goes alone, when all before it are decided. Nothing new is sent
  behind one that waits for that. So what fails is sent again in order, under the stamps it had.
- The first batch of an epoch goes alone: no other is in flight while the log may not know the epoch.
- Batches of two epochs of a partition are never in flight together, except those of which it is known that they
  cannot be stored: an older epoch's batch would be refused, or end up in front of or behind the wrong ones.
- A batch that certainly was not and will not be written leaves a gap that no batch behind it can pass. They are all
  known not to be written, whatever their own attempts say, and get new stamps: under a new epoch, because an old
  attempt that is still on its way must not fit in again. If none behind it was stamped, the next batch takes its
  sequence instead.
- A batch that failed with an unknown outcome leaves the ones behind it as they are. If it was written, so will they be.
  If not, the first of them gets SequenceGap when it goes alone, and the rule above holds for it; unless an earlier
  attempt of its own may still arrive, behind the late arrival of its predecessor: then it fails as unknown, too.
- Batches are completed in the queue's order, also when a later one is decided first.
"""

from collections import deque
from collections.abc import Callable
from enum import Enum

import pyarrow as pa

from myqueue.delivery import BatchResult
from myqueue.producer_identity import Sequences, Stamp
from myqueue.protocol.errors import MyQueueError

Headers = tuple[tuple[str, bytes | None], ...]

WINDOW = 8  # batches of a producer that a partition's log remembers


class BatchState(Enum):
    NEW = "new"  # not sent under a stamp
    SENDING = "sending"
    WAITING = "waiting"  # to be sent again, under the same stamp
    DECIDED = "decided"


class Batch(BatchResult):
    """Messages for one partition. Filled while it is open; encoded and stamped before its first attempt."""

    __slots__ = (
        "alone",
        "attempt",
        "attempts",
        "bulks",
        "columns",
        "deadline",
        "due",
        "encoded",
        "failures",
        "headers",
        "keys",
        "last_error",
        "maybe_written",
        "outcome",
        "queue",
        "retry_at",
        "size",
        "stamp",
        "state",
        "timestamps",
        "values",
    )

    def __init__(
        self,
        topic: str,
        skip_linger: Callable[[BatchResult], None] | None,
        queue: "PartitionQueue",
        due: float,
        deadline: float,
    ) -> None:
        super().__init__(topic, skip_linger)
        self.queue = queue
        self.partition = queue.partition
        self.due = due
        self.deadline = deadline
        self.size = 0
        self.values: list[bytes] = []
        self.timestamps: list[int] = []
        self.keys: list[bytes | None] | None = None  # while no message has one
        self.headers: list[Headers | None] | None = None
        self.columns: list[tuple[int, pa.RecordBatch]] = []  # messages that stand behind so many of the values
        self.bulks: list[tuple[int, int]] = []  # messages of one `send_many`: index of the first one, count
        self.encoded: tuple[int, bytes] | None = None  # CRC and body
        self.stamp: Stamp | None = None
        self.state = BatchState.NEW
        self.outcome: int | MyQueueError | None = None  # base offset or error, when it is decided
        self.attempt = 0  # an answer counts only if it is one to the last attempt
        self.alone = False  # no batch before it was undecided when this attempt began
        self.retry_at = 0.0
        self.attempts = 0  # requests
        self.failures = 0  # of attempts, and of their preparation
        self.maybe_written = False  # under its present stamp
        self.last_error: MyQueueError | None = None

    @property
    def maybe_sent(self) -> bool:
        """Whether an attempt was carried out, or may be in flight."""
        return self.maybe_written or (self.attempts > 0 and self.state is BatchState.SENDING)

    def drop_messages(self) -> None:
        """Frees the messages of a completed batch: the caller may keep its deliveries for long."""
        self.values, self.timestamps, self.keys, self.headers, self.encoded = [], [], None, None, None
        self.columns = []


class PartitionQueue:
    __slots__ = ("_most_in_flight", "_sequences", "batches", "completing", "open", "partition")

    def __init__(self, partition: int, sequences: Sequences, most_in_flight: int = WINDOW) -> None:
        self.partition = partition
        self.open: Batch | None = None
        self.batches: deque[Batch] = deque()  # closed ones, until they are completed
        self.completing = False  # a thread is completing the batches that are decided
        self._sequences = sequences
        self._most_in_flight = min(WINDOW, most_in_flight)

    @property
    def backlog(self) -> int:
        return len(self.batches)

    @property
    def collects(self) -> bool:
        """Whether an open batch waits for the answer to another one, which is expected soon."""
        states = [batch.state for batch in self.batches]
        return BatchState.SENDING in states and BatchState.WAITING not in states

    def close_open(self) -> None:
        assert self.open is not None
        self.batches.append(self.open)
        self.open = None

    def due(self, flushing: bool) -> float | None:
        """When the next batch may be sent; None while that depends on the answers to others."""
        found = self._next()
        if found is not None:
            return found.retry_at if found.state is BatchState.WAITING else 0.0
        if self.open is None or any(batch.state is not BatchState.DECIDED for batch in self.batches):
            return None
        return 0.0 if flushing else self.open.due

    def take(self) -> Batch:
        """The batch that is due, stamped unless it needs a new epoch first (`stamp`)."""
        batch = self._next()
        if batch is None:
            self.close_open()
            batch = self.batches[-1]
        batch.alone = not any(before.state is BatchState.SENDING for before in self._before(batch))
        batch.state = BatchState.SENDING
        batch.attempt += 1
        if batch.stamp is None:
            self.stamp(batch)
        return batch

    def stamp(self, batch: Batch) -> None:
        stamp = self._sequences.stamp(self.partition, continuing=not batch.alone)
        if stamp is not None:
            self._sequences.advance(self.partition, stamp, batch.count)
            batch.stamp = stamp

    def stored(self, batch: Batch, base_offset: int) -> None:
        batch.state, batch.outcome = BatchState.DECIDED, base_offset

    def retry(self, batch: Batch, at: float) -> None:
        batch.state, batch.retry_at = BatchState.WAITING, at

    def retry_under_new_epoch(self, batch: Batch, at: float) -> None:
        """The batch was not written and its stamp cannot be used any more. All attempts under it have ended."""
        assert batch.stamp is not None
        assert not batch.maybe_written
        self._sequences.require_new_epoch(self.partition, batch.stamp)
        self._remove_stamps([batch, *self._stamped_behind(batch)])
        self.retry(batch, at)

    def failed(self, batch: Batch, error: MyQueueError, *, log_disagrees: bool) -> None:
        """`log_disagrees`: the log knows the stamp, or its predecessors, otherwise."""
        batch.state, batch.outcome = BatchState.DECIDED, error
        if batch.stamp is None:
            return
        if batch.maybe_written:
            self._sequences.require_new_epoch(self.partition, batch.stamp)
        elif log_disagrees or not self._sequences.release(self.partition, batch.stamp, batch.count):
            self._sequences.require_new_epoch(self.partition, batch.stamp)
            self._remove_stamps(self._stamped_behind(batch))

    def _next(self) -> Batch | None:
        """The closed batch to send next, now or at its `retry_at`."""
        in_flight = 0
        for index, batch in enumerate(self.batches):
            if batch.state is BatchState.SENDING:
                in_flight += 1
                if batch.stamp is None or batch.stamp.sequence == 0:
                    return None
            elif batch.state is not BatchState.DECIDED:
                if in_flight == 0:
                    return batch
                may_follow = (
                    batch.state is BatchState.NEW
                    and index < WINDOW
                    and in_flight < self._most_in_flight
                    and self._sequences.stamp(self.partition, continuing=True) is not None
                )
                return batch if may_follow else None
        return None

    def _before(self, batch: Batch) -> list[Batch]:
        return list(self.batches)[: self.batches.index(batch)]

    def _stamped_behind(self, batch: Batch) -> list[Batch]:
        behind = list(self.batches)[self.batches.index(batch) + 1 :]
        return [other for other in behind if other.stamp is not None and other.state is not BatchState.DECIDED]

    @staticmethod
    def _remove_stamps(batches: list[Batch]) -> None:
        for batch in batches:
            # An attempt in flight counts no more: answers do so only while a batch is SENDING, and to the last attempt.
            batch.stamp, batch.maybe_written, batch.state = None, False, BatchState.NEW
