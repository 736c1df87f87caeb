"""The batcher: every message once, in its partition's order, whatever is retried, hurried or added meanwhile."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from myqueue.batcher import MESSAGE_OVERHEAD, Batch, Batcher, Lane
from myqueue.delivery import Decision

BATCH_BYTES = 200


def new_batcher(partitions: int, clock: float = 0.0) -> Batcher:
    return Batcher(
        "t",
        partitions,
        batch_bytes=BATCH_BYTES,
        linger_s=1.0,
        delivery_timeout_s=60.0,
        clock=lambda: clock,
        wake=lambda: None,
        hurry=lambda _: None,
    )


@given(st.lists(st.binary(max_size=300), max_size=200), st.integers(0, BATCH_BYTES))
def test_pieces_are_the_whole_in_order_and_fit(values: list[bytes], room: int) -> None:
    pieces = list(new_batcher(1).pieces(values, list(map(len, values)), room))
    assert [value for piece, _ in pieces for value in piece] == values
    for number, (piece, size) in enumerate(pieces):
        assert size == sum(map(len, piece)) + MESSAGE_OVERHEAD * len(piece)
        assert piece
        assert size <= BATCH_BYTES or len(piece) == 1
        if number == 0 and room >= BATCH_BYTES // 2 and max(map(len, values)) < 50:
            assert size <= room


def test_many_values_fill_the_batches() -> None:
    """What a call left over is joined by the next one's first messages."""
    batcher = new_batcher(1)
    for _ in range(10):
        values = [b"x" * 9] * 10
        for piece, size in batcher.pieces(values, [9] * 10, batcher.room(None)):
            batcher.add_many(piece, None, 1, size)
    counts = []
    while (batch := batcher.take(100.0)) is not None:
        counts.append(batch.count)
        batcher.settle(batch)
    assert counts == [6] * 16 + [4]


class Batching(RuleBasedStateMachine):
    """A model: each partition's log must be what was sent to it, in order."""

    @initialize(partitions=st.integers(1, 4))
    def start(self, partitions: int) -> None:
        self.now = 0.0
        self.batcher = Batcher(
            "t",
            partitions,
            batch_bytes=BATCH_BYTES,
            linger_s=1.0,
            delivery_timeout_s=60.0,
            clock=lambda: self.now,
            wake=lambda: None,
            hurry=lambda _: None,
        )
        self.partitions = partitions
        self.sent = 0
        self.expected: dict[bytes, tuple[Decision, int]] = {}
        self.to_partition: dict[bytes, int] = {}
        self.in_hand: list[Batch] = []
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
        delivery = self.batcher.add(value, key, where, 1, headers, len(value) + MESSAGE_OVERHEAD)
        self.expected[value] = (delivery._decision, delivery._index)
        if where is not None:
            self.to_partition[value] = where

    @rule(sizes=st.lists(st.integers(0, 100), min_size=1, max_size=30))
    def send_many(self, sizes: list[int]) -> None:
        values = [self._value(size) for size in sizes]
        for piece, size in self.batcher.pieces(values, list(map(len, values)), self.batcher.room(None)):
            batch, first, count = self.batcher.add_many(piece, None, 1, size)
            assert count == len(piece)
            for number, value in enumerate(piece):
                self.expected[value] = (batch, first + number)

    @rule(wait=st.floats(0, 2))
    def time_passes(self, wait: float) -> None:
        self.now += wait

    @rule()
    def take(self) -> None:
        due = self.batcher.next_due()
        batch = self.batcher.take(self.now)
        assert (batch is not None) == (due is not None and due <= self.now)
        if batch is not None:
            assert all(batch.lane is not other.lane for other in self.in_hand)
            self.in_hand.append(batch)

    @rule(which=st.integers(0, 10), pause=st.floats(0, 2))
    def attempt_fails(self, which: int, pause: float) -> None:
        if self.in_hand:
            self.batcher.retry(self.in_hand.pop(which % len(self.in_hand)), self.now + pause)

    @rule(which=st.integers(0, 10))
    def attempt_succeeds(self, which: int) -> None:
        if self.in_hand:
            self._store(self.in_hand.pop(which % len(self.in_hand)))

    def _store(self, batch: Batch) -> None:
        for column in (batch.keys, batch.headers, batch.timestamps):
            assert column is None or len(column) == len(batch.values) == batch.count
        batch.stored(batch.partition, len(self.logs[batch.partition]))
        self.logs[batch.partition] += batch.values
        self.batcher.settle(batch)

    @invariant()
    def sizes_add_up(self) -> None:
        if hasattr(self, "batcher"):
            assert self.batcher.buffered == sum(batch.size for batch in self.batcher.undecided)

    def teardown(self) -> None:
        if not hasattr(self, "batcher"):
            return
        for batch in self.in_hand:
            self._store(batch)
        self.batcher.hurried = True
        while (last := self.batcher.take(self.now + 100)) is not None:
            self._store(last)
        assert not self.batcher.undecided
        assert self.batcher.buffered == 0
        assert sorted(value for log in self.logs for value in log) == sorted(self.expected)
        for partition, log in enumerate(self.logs):
            assert log == sorted(log, key=lambda value: value[:10])
            for offset, value in enumerate(log):
                decision, index = self.expected[value]
                assert (decision.partition, decision.base_offset + index) == (partition, offset)
                assert self.to_partition.get(value, partition) == partition


TestBatching = Batching.TestCase
TestBatching.settings = settings(max_examples=40, stateful_step_count=40)


def fill(batcher: Batcher, partition: int) -> None:
    batcher.add(b"x" * BATCH_BYTES, None, partition, 1, None, BATCH_BYTES)


def test_a_stuck_partition_does_not_collect_everything() -> None:
    batcher = new_batcher(3)
    for _ in range(5):
        fill(batcher, 1)
    decisions = [batcher.add(b"x", None, None, 1, None, BATCH_BYTES)._decision for _ in range(6)]
    assert [decision.partition for decision in decisions] == [2, 0, 2, 0, 2, 0]


def test_what_is_abandoned_is_everything() -> None:
    batcher = new_batcher(2)
    for _ in range(3):
        fill(batcher, 0)
    fill(batcher, 1)
    assert batcher.take(10.0) is not None
    assert len(batcher.abandon()) == 4
    assert (batcher.buffered, batcher.next_due()) == (0, None)


def test_a_lane_with_an_open_batch_lingers() -> None:
    lane = Lane(0)
    lane.open = Batch("t", lambda _: None, lane, due=5.0, deadline=60.0)
    assert (lane.due(hurried=False), lane.due(hurried=True)) == (5.0, 0.0)
