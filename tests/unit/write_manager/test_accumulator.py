"""Which messages share a batch, and the outcome of each of them."""

import uuid
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from myqueue.protocol import batch as wire
from myqueue.protocol.batch import Message
from myqueue.protocol.dedup_records import decode_dedup_records
from myqueue.protocol.errors import (
    DiskFull,
    IdempotencyConflict,
    InternalError,
    MyQueueError,
    NoLeader,
    NotLeader,
    Unavailable,
)
from write_manager import accumulator
from write_manager.accumulator import AppendOutcome, PartitionQueue, PendingMessage, ProduceRequest, StickyBatch
from write_manager.metadata_cache import CachedPartition

TOPIC = uuid.uuid4()


class Line:
    """A partition's queue, and everything that was answered."""

    def __init__(self) -> None:
        self.queue = PartitionQueue(TOPIC, CachedPartition(3, 1, 1, (1,), ()))
        self.answers: dict[str, list[int | MyQueueError]] = {}

    def add(self, name: str, *values: bytes, received_s: float = 0.0) -> None:
        def done(outcomes: list[AppendOutcome]) -> None:
            assert name not in self.answers, "answered twice"
            assert {partition_id for partition_id, _ in outcomes} == {3}
            self.answers[name] = [result for _, result in outcomes]

        request = ProduceRequest(len(values), done, producer_id=7, received_s=received_s)
        for position, value in enumerate(values):
            identity = f"{name}/{position}".encode().ljust(16)[:16]
            pending = PendingMessage(Message(value), 3, 1, len(value), identity)
            pending.request, pending.position = request, position
            self.queue.waiting.append(pending)

    def next_values(self) -> list[bytes]:
        data = self.queue.next_batch()
        header, body, rest = wire.split(data)
        assert (header.topic_id, header.partition) == (TOPIC, 3)
        messages = wire.messages_of(wire.validate(header, body))
        records = decode_dedup_records(rest, header.count)
        assert {record.producer_id for record in records} == {7}
        assert [record.key for record in records] == [pending.identity for pending in self.queue.in_flight]
        return [message.value for message in messages]

    def one_answer(self, name: str) -> int | MyQueueError:
        [result] = self.answers[name]
        return result


CONFLICT = -IdempotencyConflict.error_code


def all_appended(queue: PartitionQueue) -> list[int]:
    return [0] * len(queue.in_flight)


def test_what_waits_goes_together_in_order() -> None:
    line = Line()
    line.add("a", b"1")
    line.add("b", b"2", b"3")
    assert line.next_values() == [b"1", b"2", b"3"]
    line.add("c", b"4")
    line.queue.complete([10, 11, 4])
    assert line.answers == {"a": [10], "b": [11, 4]}
    assert line.next_values() == [b"4"]


@given(st.lists(st.integers(1, accumulator.MAX_BYTES), min_size=1, max_size=30))
def test_batches_are_as_large_as_they_may_be(sizes: list[int]) -> None:
    line = Line()
    line.add("a", *(bytes(size) for size in sizes))
    batches = []
    while line.queue.waiting:
        line.queue.next_batch()
        batches.append([pending.size_bytes for pending in line.queue.in_flight])
        line.queue.complete(all_appended(line.queue))
    assert [size for batch in batches for size in batch] == sizes
    assert all(sum(batch) <= accumulator.MAX_BYTES for batch in batches)
    assert all(sum(a) + b[0] > accumulator.MAX_BYTES for a, b in pairwise(batches))


def test_a_batch_has_a_limited_number_of_messages() -> None:
    line = Line()
    line.add("a", *(b"x" for _ in range(accumulator.MAX_MESSAGES + 1)))
    assert len(line.next_values()) == accumulator.MAX_MESSAGES
    line.queue.complete(all_appended(line.queue))
    assert len(line.next_values()) == 1


def test_a_refused_message_does_not_harm_the_others() -> None:
    line = Line()
    line.add("a", b"1")
    line.add("b", b"2")
    line.next_values()
    line.queue.complete([CONFLICT, 5])
    refused = line.one_answer("a")
    assert isinstance(refused, IdempotencyConflict)
    assert refused.outcome == "not_written"
    assert line.one_answer("b") == 5


@pytest.mark.parametrize("error", [NotLeader(), Unavailable(outcome="unknown")])
def test_what_is_tried_again_keeps_its_place_and_knows_its_outcome(error: MyQueueError) -> None:
    line = Line()
    line.add("a", b"1", b"2", received_s=1.0)
    line.next_values()
    line.add("b", b"3", received_s=2.0)
    line.queue.retry(error)
    assert line.next_values() == [b"1", b"2", b"3"]
    line.queue.retry(NotLeader())
    line.queue.expire(1.0)
    for result in line.answers.pop("a"):
        assert isinstance(result, NoLeader)
        assert result.outcome == error.outcome
    assert line.next_values() == [b"3"]


def test_a_refused_batch_refuses_each_message_by_itself() -> None:
    line = Line()
    line.add("a", b"1")
    line.next_values()
    line.queue.retry(Unavailable(outcome="unknown"))
    line.add("b", b"2")
    line.next_values()
    line.queue.fail(DiskFull())
    a, b = line.one_answer("a"), line.one_answer("b")
    assert isinstance(a, DiskFull)
    assert isinstance(b, DiskFull)
    assert a is not b
    assert (a.outcome, b.outcome) == ("unknown", "not_written")


def test_an_answer_for_another_number_of_messages_is_no_answer() -> None:
    line = Line()
    line.add("a", b"1", b"2")
    line.next_values()
    line.queue.complete([1])
    for result in line.answers["a"]:
        assert isinstance(result, InternalError)
        assert result.outcome == "unknown"


def test_an_unknown_error_is_no_answer_and_harms_no_other() -> None:
    line = Line()
    line.add("a", b"1")
    line.add("b", b"2")
    line.next_values()
    line.queue.complete([-1, 5])
    assert isinstance(line.one_answer("a"), InternalError)
    assert line.one_answer("b") == 5


def test_a_sticky_batch_is_done_when_its_last_message_is_answered() -> None:
    done: list[StickyBatch] = []
    batch = StickyBatch(2, done.append)
    line = Line()
    line.add("a", b"1")
    line.add("b", b"2")
    for pending in line.queue.waiting:
        pending.sticky_batch = batch
    line.next_values()
    line.queue.complete([1, CONFLICT])
    assert done == [batch]


@given(st.data())
def test_every_message_is_answered_once_whatever_happens(data: st.DataObject) -> None:
    line = Line()
    names: Iterator[int] = iter(range(10_000))
    added = []
    now_s = 0.0
    for _ in range(data.draw(st.integers(1, 25))):
        step = data.draw(st.sampled_from(["add", "send", "settle", "again", "refuse", "give up", "wait"]))
        if step == "add":
            added.append(str(next(names)))
            line.add(added[-1], *(b"x" for _ in range(data.draw(st.integers(1, 3)))), received_s=now_s)
        elif step == "send" and line.queue.waiting and not line.queue.in_flight:
            line.queue.next_batch()
        elif step == "settle" and line.queue.in_flight:
            line.queue.complete(all_appended(line.queue))
        elif step == "again" and line.queue.in_flight:
            line.queue.retry(Unavailable(outcome="unknown"))
        elif step == "refuse" and line.queue.in_flight:
            line.queue.fail(DiskFull())
        elif step == "give up" and not line.queue.in_flight:
            line.queue.expire(now_s - 1)
        now_s += step == "wait"
    line.queue.retry(NotLeader())
    line.queue.expire(now_s)
    assert sorted(line.answers) == sorted(added)
