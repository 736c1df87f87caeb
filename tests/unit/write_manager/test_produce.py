"""What counts as the size of a message: at least what it takes in a batch."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from myqueue.protocol.batch import Message
from myqueue.protocol.errors import TooLarge
from myqueue.protocol.limits import MAX_BATCH_BYTES, MAX_KEY_BYTES, MAX_MESSAGE_BYTES
from write_manager.accumulator import PartitionQueue, ProduceRequest, pending_message
from write_manager.metadata_cache import CachedPartition

FIXED_BYTES = 1024  # of a batch, whatever is in it

messages = st.builds(
    Message,
    value=st.binary(max_size=30),
    key=st.none() | st.binary(max_size=20),
    headers=st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=8)), max_size=4).map(tuple),
)


def queue_of(given: list[Message]) -> PartitionQueue:
    queue = PartitionQueue(uuid.uuid4(), CachedPartition(0, 1, 1, (1,), ()))
    request = ProduceRequest(len(given), lambda _: None)
    for position, message in enumerate(given):
        pending = pending_message(message, 0)
        pending.identity, pending.request, pending.position = bytes(16), request, position
        queue.waiting.append(pending)
    return queue


@given(st.lists(messages, min_size=1, max_size=60))
def test_a_batch_is_never_larger_than_its_messages_count_for(given: list[Message]) -> None:
    queue = queue_of(given)
    encoded = len(queue.next_batch())
    assert encoded <= FIXED_BYTES + sum(pending.size_bytes for pending in queue.in_flight)


def test_headers_of_many_bytes_make_small_batches() -> None:
    heavy = Message(b"", None, 0, tuple(("\U0001f600" * 200, None) for _ in range(100)))
    assert len(queue_of([heavy] * 60).next_batch()) < MAX_BATCH_BYTES


@pytest.mark.parametrize(
    "message",
    [
        Message(bytes(MAX_MESSAGE_BYTES + 1)),
        Message(b"", bytes(MAX_KEY_BYTES + 1)),
        Message(b"", None, 0, (("h", bytes(MAX_MESSAGE_BYTES)),)),
    ],
)
def test_what_is_too_large(message: Message) -> None:
    with pytest.raises(TooLarge):
        pending_message(message, None)
