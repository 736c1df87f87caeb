"""Batches written by hand are what Arrow would have written."""

import uuid

from hypothesis import given
from hypothesis import strategies as st

from myqueue.protocol import batch as wire
from myqueue.protocol.batch import Message
from myqueue.protocol.small_batch import FEW, encode_few
from write_manager.accumulator import encode_batch

TOPIC = uuid.uuid4()

plain = st.builds(
    Message,
    value=st.binary(max_size=40),
    key=st.none() | st.binary(max_size=20),
    timestamp=st.integers(0, (1 << 63) - 1),
)
with_headers = st.builds(
    Message,
    value=st.binary(max_size=10),
    headers=st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3).map(tuple),
)


@given(st.lists(plain, min_size=1, max_size=40) | st.lists(with_headers, min_size=1, max_size=5))
def test_every_batch_reads_back_and_validates(messages: list[Message]) -> None:
    header, body, rest = wire.split(encode_batch(TOPIC, 5, messages))
    assert (header.topic_id, header.partition, header.count, bytes(rest)) == (TOPIC, 5, len(messages), b"")
    assert wire.messages_of(wire.validate(header, body)) == messages


@given(st.lists(plain, min_size=1, max_size=20))
def test_plain_batches_are_byte_for_byte_those_of_arrow(messages: list[Message]) -> None:
    assert encode_batch(TOPIC, 5, messages) == wire.encode(TOPIC, 5, messages)


def test_many_messages_take_the_general_way() -> None:
    messages = [Message(b"x" * number) for number in range(FEW + 1)]
    assert encode_batch(TOPIC, 5, messages) == wire.encode(TOPIC, 5, messages)


def test_few_messages_take_the_fast_way_with_this_version_of_arrow() -> None:
    assert FEW > 1


@given(st.lists(plain.filter(lambda message: message.key is None), min_size=1, max_size=20))
def test_messages_without_keys_need_none(messages: list[Message]) -> None:
    values, timestamps = [message.value for message in messages], [message.timestamp for message in messages]
    assert encode_few(None, values, timestamps) == wire.encode_body(messages)
