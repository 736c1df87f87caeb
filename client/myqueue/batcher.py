"""Which messages travel together, and which batch goes next. Decides only: no threads, no IO; the caller locks.

Each partition has a lane: batches leave it one at a time and in order, a failed attempt stays in front until it is
decided. Messages without a partition of their own fill one lane's batch, then go on with the lane that has the least
to do.
"""

from collections import deque
from collections.abc import Callable, Iterator

from myqueue.delivery import Decision, Delivery
from myqueue.protocol.errors import MyQueueError, PartitionNotFound
from myqueue.protocol.partitioner import partition_for
from myqueue.sequences import Stamp

Headers = tuple[tuple[str, bytes | None], ...]

# What a message costs in a batch besides its bytes: value, key and header offsets, the timestamp.
MESSAGE_OVERHEAD = 21
# A batch that has less than this part of its size left is full enough.
_WORTH_FILLING = 16


class Batch(Decision):
    """Messages for one partition. Filled while it is open; encoded and stamped when it is sent the first time."""

    __slots__ = (
        "attempts",
        "bulks",
        "deadline",
        "due",
        "encoded",
        "failures",
        "headers",
        "keys",
        "lane",
        "maybe_written",
        "size",
        "stamp",
        "timestamps",
        "trouble",
        "values",
    )

    def __init__(
        self, topic: str, hurry: Callable[[Decision], None], lane: "Lane", due: float, deadline: float
    ) -> None:
        super().__init__(topic, hurry)
        self.lane = lane
        self.partition = lane.partition
        self.due = due
        self.deadline = deadline
        self.size = 0
        self.values: list[bytes] = []
        self.timestamps: list[int] = []
        self.keys: list[bytes | None] | None = None  # while no message has one
        self.headers: list[Headers | None] | None = None
        self.bulks: list[tuple[int, int]] = []  # what came with one call: index of the first one, count
        self.encoded: tuple[int, bytes] | None = None  # CRC and body
        self.stamp: Stamp | None = None
        self.attempts = 0
        self.failures = 0  # of attempts, and of what has to come before one
        self.maybe_written = False
        self.trouble: MyQueueError | None = None  # why the last attempt failed

    @property
    def perhaps_sent(self) -> bool:
        """Whether it may have been carried out, or may be right now."""
        return self.maybe_written or (self.attempts > 0 and self.lane.in_hand)

    def drop_messages(self) -> None:
        """Decided: deliveries that somebody keeps must not keep the messages."""
        self.values, self.timestamps, self.keys, self.headers, self.encoded = [], [], None, None, None


class Lane:
    __slots__ = ("in_hand", "open", "partition", "retry_at", "sealed", "under_way")

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.open: Batch | None = None
        self.sealed: deque[Batch] = deque()
        self.under_way: Batch | None = None  # the first one, from its first attempt until it is decided
        self.in_hand = False  # somebody is sending it
        self.retry_at = 0.0

    @property
    def backlog(self) -> int:
        return len(self.sealed) + (self.under_way is not None)

    @property
    def idle(self) -> bool:
        return self.under_way is None and self.open is None and not self.sealed

    def due(self, hurried: bool) -> float:
        if self.under_way is not None:
            return self.retry_at
        if self.sealed or hurried:
            return 0.0
        return self.open.due if self.open is not None else 0.0


class Batcher:
    def __init__(
        self,
        topic: str,
        partitions: int,
        *,
        batch_bytes: int,
        linger_s: float,
        delivery_timeout_s: float,
        clock: Callable[[], float],
        wake: Callable[[], None],
        hurry: Callable[[Decision], None],
    ) -> None:
        """`wake` is called when there may be something to take earlier than anybody knew."""
        self.hurried = False  # nothing lingers: somebody waits for everything
        self.undecided: set[Batch] = set()
        self.buffered = 0  # bytes
        self._topic = topic
        self._batch_bytes = batch_bytes
        self._linger_s = linger_s
        self._delivery_timeout_s = delivery_timeout_s
        self._clock = clock
        self._wake = wake
        self._hurry = hurry
        self._lanes = [Lane(partition) for partition in range(partitions)]
        self._active: dict[int, Lane] = {}  # lanes with something to send that nobody is sending, longest waiting first
        self._turn = 0
        self._sticky = self._lanes[0]

    def add(
        self,
        value: bytes,
        key: bytes | None,
        partition: int | None,
        timestamp: int,
        headers: Headers | None,
        size: int,
    ) -> Delivery:
        lane = self._sticky if partition is None and key is None else self._lane_of(key, partition)
        batch = lane.open
        if batch is None or batch.size + size > self._batch_bytes:
            batch = self._next_batch(lane, size, partition is None and key is None)
        values = batch.values
        index = len(values)
        values.append(value)
        batch.timestamps.append(timestamp)
        if key is not None or batch.keys is not None:
            if batch.keys is None:
                batch.keys = [None] * index
            batch.keys.append(key)
        if headers is not None or batch.headers is not None:
            if batch.headers is None:
                batch.headers = [None] * index
            batch.headers.append(headers)
        batch.size += size
        self.buffered += size
        return Delivery(batch, index)

    def add_many(
        self, values: list[bytes], partition: int | None, timestamp: int, size: int
    ) -> tuple[Decision, int, int]:
        """Messages without keys or headers that fit into one batch together: the batch, index of the first, count."""
        lane = self._sticky if partition is None else self._lane_of(None, partition)
        batch = lane.open
        if batch is None or batch.size + size > self._batch_bytes:
            batch = self._next_batch(lane, size, partition is None)
        index, count = len(batch.values), len(values)
        batch.values += values
        batch.timestamps += [timestamp] * count
        if batch.keys is not None:
            batch.keys += [None] * count
        if batch.headers is not None:
            batch.headers += [None] * count
        batch.size += size
        self.buffered += size
        batch.bulks.append((index, count))
        return batch, index, count

    def room(self, partition: int | None) -> int:
        """Bytes that the next messages of `add_many` may have to join a batch that is open."""
        batch = (self._sticky if partition is None else self._lane_of(None, partition)).open
        return 0 if batch is None else max(0, self._batch_bytes - batch.size)

    def pieces(self, values: list[bytes], sizes: list[int], room: int = 0) -> Iterator[tuple[list[bytes], int]]:
        """The values in order, in parts that fit into a batch (but for a single one that is larger), with their sizes.

        The first part fits into `room`, if that is worth it. `sizes` are those of the values. Works with whole lists:
        nothing is done for each message.
        """
        average = max(1, sum(sizes) // max(1, len(sizes)) + MESSAGE_OVERHEAD)
        limit = room if room >= max(average, self._batch_bytes // _WORTH_FILLING) else self._batch_bytes
        start = 0
        while start < len(values):
            end = start + max(1, limit // average)
            part = sizes[start:end]
            size = sum(part) + len(part) * MESSAGE_OVERHEAD
            while size > limit and len(part) > 1:
                part = part[: len(part) * 7 // 8]
                size = sum(part) + len(part) * MESSAGE_OVERHEAD
            end = start + len(part)
            yield values[start:end], size
            start = end
            limit = self._batch_bytes

    def take(self, now: float) -> Batch | None:
        """The next batch to send; its lane stands still until `retry` or `settle`."""
        for lane in self._active.values():
            if lane.due(self.hurried) <= now:
                break
        else:
            return None
        del self._active[lane.partition]
        if lane.under_way is None:
            if not lane.sealed:
                self._seal(lane)
            lane.under_way = lane.sealed.popleft()
            lane.under_way.count = len(lane.under_way.values)
        lane.in_hand = True
        return lane.under_way

    def next_due(self) -> float | None:
        """When there will be something to take, if nothing else happens."""
        return min((lane.due(self.hurried) for lane in self._active.values()), default=None)

    def retry(self, batch: Batch, at: float) -> None:
        lane = batch.lane
        lane.retry_at = at
        lane.in_hand = False
        self._active[lane.partition] = lane

    def settle(self, batch: Batch) -> None:
        """It is decided: the lane goes on with the next one."""
        lane = batch.lane
        if lane.under_way is batch:
            lane.under_way = None
            lane.in_hand = False
            if not lane.idle:
                self._active[lane.partition] = lane
        if batch in self.undecided:
            self.undecided.remove(batch)
            self.buffered -= batch.size

    def hurry(self, batch: Batch) -> None:
        batch.due = 0.0

    def abandon(self) -> list[Batch]:
        """Every batch that is not decided, in order; the lanes are empty after that."""
        batches = [
            batch
            for lane in self._lanes
            for batch in (lane.under_way, *lane.sealed, lane.open)
            if batch is not None and batch in self.undecided
        ]
        for lane in self._lanes:
            lane.under_way, lane.open = None, None
            lane.sealed.clear()
        for batch in batches:
            batch.count = len(batch.values)
        self._active.clear()
        self.undecided.clear()
        self.buffered = 0
        return batches

    def _lane_of(self, key: bytes | None, partition: int | None) -> Lane:
        if partition is None:
            assert key is not None
            return self._lanes[partition_for(key, len(self._lanes))]
        if not 0 <= partition < len(self._lanes):
            raise PartitionNotFound(f"partition not found: the topic has partitions 0 to {len(self._lanes) - 1}")
        return self._lanes[partition]

    def _next_batch(self, lane: Lane, size: int, anywhere: bool) -> Batch:
        """An open batch with room: in this lane, or where there is the least to do."""
        if lane.open is not None:
            self._seal(lane)
        if anywhere:
            lane = self._sticky = self._least_busy()
            if lane.open is not None:
                if lane.open.size + size <= self._batch_bytes:
                    return lane.open
                self._seal(lane)
        now = self._clock()
        batch = Batch(self._topic, self._hurry, lane, now + self._linger_s, now + self._delivery_timeout_s)
        lane.open = batch
        self.undecided.add(batch)
        if not lane.in_hand:
            self._active.setdefault(lane.partition, lane)
        self._wake()
        return batch

    def _seal(self, lane: Lane) -> None:
        assert lane.open is not None
        lane.sealed.append(lane.open)
        lane.open = None

    def _least_busy(self) -> Lane:
        """In turn among those with the shortest backlog: a partition that is stuck does not collect everything."""
        lanes, start = self._lanes, self._turn + 1
        best = min(
            (lanes[(start + step) % len(lanes)] for step in range(len(lanes))),
            key=lambda lane: lane.backlog + (lane.open is not None),
        )
        self._turn = best.partition
        return best
