"""Batches: what goes in comes out, and nothing broken gets through."""

from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from myqueue.protocol import batch as wire
from myqueue.protocol.batch import CODEC_LZ4, CODEC_NONE, CODEC_ZSTD, HEADER_BYTES, Header, Message
from myqueue.protocol.errors import InvalidRequest, MyQueueError, TooLarge, UnsupportedCompression

TOPIC = UUID("12345678-1234-5678-1234-567812345678")

messages = st.builds(
    Message,
    value=st.binary(max_size=200),
    key=st.none() | st.binary(max_size=50),
    timestamp=st.integers(min_value=0, max_value=2**62),
    headers=st.lists(st.tuples(st.text(max_size=10), st.none() | st.binary(max_size=10)), max_size=3).map(tuple),
)


codecs = st.sampled_from((CODEC_NONE, CODEC_LZ4, CODEC_ZSTD))


@settings(deadline=None)
@given(st.lists(messages, min_size=1, max_size=20), st.integers(0, 65535), codecs)
def test_what_goes_in_comes_out(sent: list[Message], partition: int, codec: int) -> None:
    data = wire.encode(TOPIC, partition, sent, codec)
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


def _refusal(body: bytes, codec: int, count: int = 2) -> MyQueueError:
    with pytest.raises(MyQueueError) as refused:
        wire.validate(wire.header_for(TOPIC, 0, body, count, codec), body)
    return refused.value


def test_a_codec_nobody_knows_is_named() -> None:
    body = wire.encode_body([Message(b"one")])
    assert isinstance(_refusal(body, 3, 1), UnsupportedCompression)


@pytest.mark.parametrize("said", [CODEC_NONE, CODEC_LZ4, CODEC_ZSTD])
@pytest.mark.parametrize("used", [CODEC_NONE, CODEC_LZ4, CODEC_ZSTD])
def test_header_and_body_agree_on_the_codec(said: int, used: int) -> None:
    body = wire.encode_body([Message(b"one"), Message(b"two")], used)
    if said != used:
        refused = _refusal(body, said)
        assert isinstance(refused, InvalidRequest)
        assert "different codecs" in refused.message


@pytest.mark.parametrize("codec", [CODEC_LZ4, CODEC_ZSTD])
def test_a_batch_that_would_grow_too_large_is_refused_before_it_does(codec: int) -> None:
    body = wire.encode_body([Message(bytes(1 << 20))] * 33, codec)
    assert len(body) < 1 << 20
    before = pa.total_allocated_bytes()
    refused = _refusal(body, codec, 33)
    assert isinstance(refused, TooLarge)
    assert "uncompressed" in refused.message
    assert pa.total_allocated_bytes() - before < 1 << 20


@settings(max_examples=400)
@given(st.data())
def test_a_body_that_was_tampered_with_ends_in_one_of_our_errors(data: st.DataObject) -> None:
    """Checksums are right, so only the walk and Arrow's own checks stand between these bytes and a crash."""
    codec = data.draw(codecs)
    body = bytearray(wire.encode_body([Message(b"value" * 9, b"key", 17, (("h", b"v"),)), Message(b"")], codec))
    for _ in range(data.draw(st.integers(1, 4))):
        width = data.draw(st.sampled_from((1, 2, 4, 8)))
        place = data.draw(st.integers(0, len(body) - width))
        number = data.draw(st.sampled_from((0, 1, 7, -1, 1 << 62, 1 << 31, 65535)) | st.integers(-300, 300))
        body[place : place + width] = (number & (1 << 8 * width) - 1).to_bytes(width, "little")
    body = body[: data.draw(st.just(len(body)) | st.integers(0, len(body)))]
    before = pa.total_allocated_bytes()
    try:
        batch = wire.validate(wire.header_for(TOPIC, 0, bytes(body), 2, codec), bytes(body))
    except (InvalidRequest, TooLarge, UnsupportedCompression):
        assert pa.total_allocated_bytes() - before <= 33 << 20
    else:
        assert len(wire.messages_of(batch)) == 2


@settings(deadline=None)
@given(st.lists(st.tuples(st.lists(messages, min_size=1, max_size=3), codecs), max_size=5), st.integers(1, 200))
def test_batches_one_after_the_other(sent: list[tuple[list[Message], int]], cut: int) -> None:
    data = b"".join(wire.encode(TOPIC, 0, some, codec) for some, codec in sent)
    assert [wire.messages_of(wire.validate(header, body)) for header, body in wire.batches_in(data)] == [
        some for some, _ in sent
    ]
    if len(data) > cut and sent:
        with pytest.raises(InvalidRequest):
            list(wire.batches_in(data[: len(data) - min(cut, 63)]))


@pytest.mark.parametrize("hidden", [False, True])
def test_compression_told_in_an_older_way_is_refused(hidden: bool) -> None:
    """Arrow also takes it from the metadata of a message of version 4, where no claim would show it."""
    batch = wire.decode_body(wire.encode_body([Message(bytes(1000))] * 100))
    sink = pa.BufferOutputStream()
    old = pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V4, compression="zstd" if hidden else None)
    with pa.ipc.new_stream(sink, wire.SCHEMA, options=old) as stream:
        stream.write_batch(batch, custom_metadata={"ARROW:experimental_compression": "zstd"} if hidden else None)
    data = sink.getvalue().to_pybytes()
    body = data[8 + int.from_bytes(data[4:8], "little") : -8]
    for codec in (CODEC_NONE, CODEC_ZSTD):
        refused = _refusal(body, codec, 100)
        assert isinstance(refused, InvalidRequest)
        assert "version 5" in refused.message


def test_headers_have_limits() -> None:
    most = tuple(("k", b"v") for _ in range(100))
    long_key = (("é" * 200, b""), ("é" * 200, None))
    much = (("k", bytes(1 << 20)),)
    for headers, sort in (
        (most, None),
        (long_key, None),
        ((*most, ("k", b"v")), InvalidRequest),
        ((("é" * 201, b""),), InvalidRequest),
        (much[:1], TooLarge),
        ((("k", bytes(600_000)), ("l", bytes(600_000))), TooLarge),
    ):
        messages = [Message(b"", headers=(("a", bytes(900_000)),)), Message(b"x"), Message(b"", None, 0, headers)]
        body = wire.encode_body(messages, CODEC_ZSTD)
        if sort is None:
            header = wire.header_for(TOPIC, 0, body, 3, CODEC_ZSTD)
            assert wire.messages_of(wire.validate(header, body)) == messages
        else:
            assert type(_refusal(body, CODEC_ZSTD, 3)) is sort, headers[0]
