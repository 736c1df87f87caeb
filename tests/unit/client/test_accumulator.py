"""The accumulator: every message once, in its partition's order, whatever is retried, flushed or added meanwhile."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from myqueue.accumulator import MESSAGE_OVERHEAD, Accumulator, Batch, PartitionQueue
from myqueue.delivery import BatchResult

BATCH_BYTES = 200


def new_accumulator(partitions: int, clock: float = 0.0) -> Accumulator:
    return Accumulator(
        "t",
        partitions,
        batch_bytes=BATCH_BYTES,
        linger_s=1.0,
        delivery_timeout_s=60.0,
        clock=lambda: clock,
        wake=lambda: None,
        skip_linger=lambda _: None,
    )


@given(st.lists(st.binary(max_size=300), max_size=200), st.integers(0, BATCH_BYTES))
def test_split_values_are_whole_in_order_and_fit(values: list[bytes], free_bytes: int) -> None:
    split = list(new_accumulator(1).split(values, list(map(len, values)), free_bytes))
    assert [value for piece, _ in split for value in piece] == values
    for number, (piece, size) in enumerate(split):
        assert size == sum(map(len, piece)) + MESSAGE_OVERHEAD * len(piece)
        assert piece
        assert size <= BATCH_BYTES or len(piece) == 1
        if number == 0 and free_bytes >= BATCH_BYTES // 2 and max(map(len, values)) < 50:
            assert size <= free_bytes


def test_many_values_fill_the_batches() -> None:
    """What a call left over is joined by the next one's first messages."""
    accumulator = new_accumulator(1)
    for _ in range(10):
        values = [b"x" * 9] * 10
        for piece, size in accumulator.split(values, [9] * 10, accumulator.free_bytes(None)):
            accumulator.add_many(piece, None, 1, size)
    counts = []
    while (batch := accumulator.take(100.0)) is not None:
        counts.append(batch.count)
        accumulator.complete(batch)
    assert counts == [6] * 16 + [4]


class Batching(RuleBasedStateMachine):
    """A model: each partition's log must be what was sent to it, in order."""

    @initialize(partitions=st.integers(1, 4))
    def start(self, partitions: int) -> None:
        self.now = 0.0
        self.accumulator = Accumulator(
            "t",
            partitions,
            batch_bytes=BATCH_BYTES,
            linger_s=1.0,
            delivery_timeout_s=60.0,
            clock=lambda: self.now,
            wake=lambda: None,
            skip_linger=lambda _: None,
        )
        self.partitions = partitions
        self.sent = 0
        self.expected: dict[bytes, tuple[BatchResult, int]] = {}
        self.to_partition: dict[bytes, int] = {}
        self.sending: list[Batch] = []
        self.logs: list[list[bytes]] = [[] for _ in range(partitions)]

    def _value(self, size: int) -> bytes:
        self.sent += 1
        return f"{self.sent:010d}".encode() + b"." * size

    @rule(
        size=st.integers(0, 250),
        key=st.none() | st.binary(min_size=1, max_size=2),
        partition=st.none() | st.integers(0, 3),
    )
    def send(self, size: int, key: bytes | None, partition: int | None) -> None:
        value = self._value(size)
        where = None if partition is None else partition % self.partitions
        headers = (("h", b"v"),) if size % 5 == 0 else None
        delivery = self.accumulator.add(value, key, where, 1, headers, len(value) + MESSAGE_OVERHEAD)
        self.expected[value] = (delivery._result, delivery._index)
        if where is not None:
            self.to_partition[value] = where

    @rule(sizes=st.lists(st.integers(0, 100), min_size=1, max_size=30))
    def send_many(self, sizes: list[int]) -> None:
        values = [self._value(size) for size in sizes]
        for piece, size in self.accumulator.split(values, list(map(len, values)), self.accumulator.free_bytes(None)):
            batch, first, count = self.accumulator.add_many(piece, None, 1, size)
            assert count == len(piece)
            for number, value in enumerate(piece):
                self.expected[value] = (batch, first + number)

    @rule(wait=st.floats(0, 2))
    def time_passes(self, wait: float) -> None:
        self.now += wait

    @rule()
    def take(self) -> None:
        due = self.accumulator.next_due()
        batch = self.accumulator.take(self.now)
        assert (batch is not None) == (due is not None and due <= self.now)
        if batch is not None:
            assert all(batch.queue is not other.queue for other in self.sending)
            self.sending.append(batch)

    @rule(which=st.integers(0, 10), pause=st.floats(0, 2))
    def attempt_fails(self, which: int, pause: float) -> None:
        if self.sending:
            self.accumulator.retry(self.sending.pop(which % len(self.sending)), self.now + pause)

    @rule(which=st.integers(0, 10))
    def attempt_succeeds(self, which: int) -> None:
        if self.sending:
            self._store(self.sending.pop(which % len(self.sending)))

    def _store(self, batch: Batch) -> None:
        for column in (batch.keys, batch.headers, batch.timestamps):
            assert column is None or len(column) == len(batch.values) == batch.count
        batch.stored(batch.partition, len(self.logs[batch.partition]))
        self.logs[batch.partition] += batch.values
        self.accumulator.complete(batch)

    @invariant()
    def sizes_add_up(self) -> None:
        if hasattr(self, "accumulator"):
            assert self.accumulator.buffered == sum(batch.size for batch in self.accumulator.incomplete)

    def teardown(self) -> None:
        if not hasattr(self, "accumulator"):
            return
        for batch in self.sending:
            self._store(batch)
        self.accumulator.flushing = True
        while (last := self.accumulator.take(self.now + 100)) is not None:
            self._store(last)
        assert not self.accumulator.incomplete
        assert self.accumulator.buffered == 0
        assert sorted(value for log in self.logs for value in log) == sorted(self.expected)
        for partition, log in enumerate(self.logs):
            assert log == sorted(log, key=lambda value: value[:10])
            for offset, value in enumerate(log):
                result, index = self.expected[value]
                assert (result.partition, result.base_offset + index) == (partition, offset)
                assert self.to_partition.get(value, partition) == partition


TestBatching = Batching.TestCase
TestBatching.settings = settings(max_examples=40, stateful_step_count=40)


def fill(accumulator: Accumulator, partition: int) -> None:
    accumulator.add(b"x" * BATCH_BYTES, None, partition, 1, None, BATCH_BYTES)


def test_a_stuck_partition_does_not_collect_everything() -> None:
    accumulator = new_accumulator(3)
    for _ in range(5):
        fill(accumulator, 1)
    decisions = [accumulator.add(b"x", None, None, 1, None, BATCH_BYTES)._result for _ in range(6)]
    assert [result.partition for result in decisions] == [2, 0, 2, 0, 2, 0]


def test_abandon_returns_every_batch() -> None:
    accumulator = new_accumulator(2)
    for _ in range(3):
        fill(accumulator, 0)
    fill(accumulator, 1)
    assert accumulator.take(10.0) is not None
    assert len(accumulator.abandon()) == 4
    assert (accumulator.buffered, accumulator.next_due()) == (0, None)


def test_a_queue_with_an_open_batch_lingers() -> None:
    queue = PartitionQueue(0)
    queue.open = Batch("t", lambda _: None, queue, due=5.0, deadline=60.0)
    assert (queue.due(flushing=False), queue.due(flushing=True)) == (5.0, 0.0)
