"""Batches: what goes in comes out, and nothing broken gets through."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from myqueue.protocol import batch as wire
from myqueue.protocol.batch import HEADER_BYTES, Header, Message
from myqueue.protocol.errors import InvalidRequest, MyQueueError, TooLarge

TOPIC = UUID("12345678-1234-5678-1234-567812345678")

messages = st.builds(
    Message,
    value=st.binary(max_size=200),
    key=st.none() | st.binary(max_size=50),
    timestamp=st.integers(min_value=0, max_value=2**62),
    headers=st.lists(st.tuples(st.text(max_size=10), st.none() | st.binary(max_size=10)), max_size=3).map(tuple),
)


@given(st.lists(messages, min_size=1, max_size=20), st.integers(0, 65535))
def test_what_goes_in_comes_out(sent: list[Message], partition: int) -> None:
    data = wire.encode(TOPIC, partition, sent)
    header, body, rest = wire.split(data + b"next")
    assert bytes(rest) == b"next"
    assert (header.topic_id, header.partition, header.count) == (TOPIC, partition, len(sent))
    assert wire.messages_of(wire.validate(header, body)) == sent


@given(
    st.builds(
        Header,
        topic_id=st.uuids(),
        partition=st.integers(0, 2**16 - 1),
        count=st.integers(0, 2**32 - 1),
        body_size=st.integers(0, 2**32 - 1),
        body_crc=st.integers(0, 2**32 - 1),
        base_offset=st.integers(0, 2**63 - 1),
        append_time=st.integers(0, 2**63 - 1),
        producer_id=st.integers(0, 2**32 - 1),
        producer_epoch=st.integers(0, 2**16 - 1),
        sequence=st.integers(0, 2**32 - 1),
        codec=st.integers(0, 255),
    )
)
def test_a_header_is_64_bytes_and_survives_the_wire(header: Header) -> None:
    packed = header.pack()
    assert len(packed) == HEADER_BYTES == 64
    assert wire.decode_header(packed) == header


@given(st.data())
def test_any_changed_bit_is_found(data: st.DataObject) -> None:
    good = wire.encode(TOPIC, 3, [Message(b"value", b"key", 17), Message(b"", None, 18)])
    place = data.draw(st.integers(0, len(good) * 8 - 1))
    broken = bytearray(good)
    broken[place // 8] ^= 1 << (place % 8)
    with pytest.raises(MyQueueError):
        wire.validate(*wire.split(bytes(broken))[:2])


@given(st.binary(max_size=300))
def test_noise_is_refused(noise: bytes) -> None:
    with pytest.raises(MyQueueError):
        wire.validate(*wire.split(noise)[:2])


@given(st.binary(min_size=0, max_size=300))
def test_a_body_of_noise_with_right_checksums_is_refused(noise: bytes) -> None:
    header = wire.header_for(TOPIC, 0, noise, 1)
    with pytest.raises(InvalidRequest):
        wire.validate(header, noise)


def test_a_count_that_lies_is_refused() -> None:
    body = wire.encode_body([Message(b"one")])
    with pytest.raises(InvalidRequest, match="holds 1 messages, its header says 2"):
        wire.validate(wire.header_for(TOPIC, 0, body, 2), body)


def test_a_message_over_the_limit_is_refused() -> None:
    body = wire.encode_body([Message(b"x" * (1 << 20) + b"x")])
    with pytest.raises(TooLarge, match="message value has 1048577 bytes"):
        wire.validate(wire.header_for(TOPIC, 0, body, 1), body)
