"""The accumulator: how messages become batches, when a batch leaves, and where messages without a key go."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from myqueue.accumulator import Accumulator
from myqueue.message_columns import MESSAGE_OVERHEAD
from myqueue.partition_queue import Batch, PartitionQueue
from myqueue.producer_identity import Sequences
from myqueue.send_buffer import SendBuffer

BATCH_BYTES = 200


def new_accumulator(partitions: int, clock: Callable[[], float] = lambda: 0.0, linger_s: float = 1.0) -> Accumulator:
    return Accumulator(
        "t",
        partitions,
        Sequences(3, 0),
        batch_bytes=BATCH_BYTES,
        linger_s=linger_s,
        delivery_timeout_s=60.0,
        clock=clock,
        buffer=SendBuffer(1 << 20),
    )


def finish(accumulator: Accumulator, batch: Batch) -> None:
    accumulator.stored(batch, 0)
    while (decided := accumulator.next_decided(batch.queue)) is not None:
        accumulator.complete(decided)


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
        finish(accumulator, batch)
    assert counts == [6] * 16 + [4]


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
    assert (accumulator._buffer.used, accumulator.next_due()) == (0, None)


def test_a_queue_with_an_open_batch_lingers() -> None:
    queue = PartitionQueue(0, Sequences(3, 0))
    queue.open = Batch("t", lambda _: None, queue, due=5.0, deadline=60.0)
    assert (queue.due(flushing=False), queue.due(flushing=True)) == (5.0, 0.0)


def add(accumulator: Accumulator, partition: int | None = None, size: int = 50) -> Batch:
    result = accumulator.add(b"x", None, partition, 1, None, size)._result
    assert isinstance(result, Batch)
    return result


def test_without_linger_a_batch_leaves_when_nothing_is_in_flight_and_collects_while_something_is() -> None:
    accumulator = new_accumulator(1, linger_s=0.0)
    first = add(accumulator)
    assert accumulator.take(0.0) is first
    collecting = [add(accumulator) for _ in range(3)]
    assert len(set(collecting)) == 1
    assert accumulator.take(0.0) is None
    assert accumulator.next_due() is None
    finish(accumulator, first)
    assert accumulator.take(0.0) is collecting[0]
    assert collecting[0].count == 3


def test_full_batches_leave_while_others_are_in_flight_up_to_the_window() -> None:
    accumulator = new_accumulator(1, linger_s=0.0)
    first = add(accumulator)
    assert accumulator.take(0.0) is first
    batches = [add(accumulator, size=BATCH_BYTES) for _ in range(10)]
    assert accumulator.take(0.0) is None  # the first one of an epoch goes alone
    finish(accumulator, first)
    for batch in batches[:8]:
        assert accumulator.take(0.0) is batch
    assert accumulator.take(0.0) is None
    accumulator.stored(batches[1], 7)  # it does not count as long as the first one is not decided
    assert accumulator.next_decided(batches[0].queue) is None
    assert accumulator.take(0.0) is None
    finish(accumulator, batches[0])
    assert accumulator.take(0.0) is batches[8]
    assert accumulator.take(0.0) is batches[9]
    sequences = [batch.stamp.sequence for batch in batches if batch.stamp is not None]
    assert sequences == list(range(1, 11))


def test_nothing_is_sent_behind_a_batch_that_failed_until_it_is_stored() -> None:
    accumulator = new_accumulator(1, linger_s=0.0)
    first = add(accumulator, size=BATCH_BYTES)
    assert accumulator.take(0.0) is first
    finish(accumulator, first)
    batches = [add(accumulator, size=BATCH_BYTES) for _ in range(4)]
    assert [accumulator.take(0.0) for _ in range(2)] == batches[:2]
    accumulator.retry(batches[0], 5.0)
    assert accumulator.take(1.0) is None
    assert accumulator.next_due() == 5.0
    accumulator.retry(batches[1], 0.0)
    assert accumulator.take(1.0) is None
    assert accumulator.take(5.0) is batches[0]
    assert accumulator.take(5.0) is None
    finish(accumulator, batches[0])
    assert [accumulator.take(5.0) for _ in range(3)] == batches[1:]
    assert [batch.alone for batch in batches] == [True, True, False, False]


def test_unkeyed_messages_stay_while_their_partition_collects_and_move_on_otherwise() -> None:
    now = 0.0
    accumulator = new_accumulator(3, lambda: now, linger_s=0.0)
    partitions = []
    for _ in range(3):  # nothing is in flight: each goes to the next partition
        batch = add(accumulator)
        partitions.append(batch.partition)
        assert accumulator.take(now) is batch
        finish(accumulator, batch)
    assert sorted(partitions) == [0, 1, 2]
    sent = add(accumulator, size=10)
    assert accumulator.take(now) is sent
    assert {add(accumulator, size=10).queue for _ in range(5)} == {sent.queue}
    finish(accumulator, sent)
    second = accumulator.take(now)
    assert second is not None
    assert second.queue is sent.queue
    now = 1.0  # long enough at one partition
    assert add(accumulator, size=10).queue is not sent.queue
