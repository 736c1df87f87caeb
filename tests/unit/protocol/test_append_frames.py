"""Frames of the append connection: what goes in comes out, however it is cut; anything else is refused."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from myqueue.protocol import append_frames
from myqueue.protocol.append_frames import AppendedOffsets, AppendFrame, FrameError, FrameReader
from myqueue.protocol.errors import DiskFull, IdempotencyConflict, NotLeader

NUMBERS = st.integers(0, (1 << 32) - 1)
OFFSETS = st.integers(0, (1 << 62))


def one_frame(data: bytes, max_bytes: int = 1 << 20) -> AppendFrame:
    [frame] = FrameReader(max_bytes).feed(data)
    return frame


@given(st.lists(st.tuples(NUMBERS, st.text(max_size=60) | st.none(), st.binary(max_size=300)), max_size=8), st.data())
def test_requests_come_out_as_they_went_in(requests: list[tuple[int, str | None, bytes]], data: st.DataObject) -> None:
    sent = b"".join(b"".join(append_frames.encode_request(*request)) for request in requests)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=5)))
    reader = FrameReader(append_frames.MAX_REQUEST_BYTES)
    frames = []
    for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
        frames += reader.feed(sent[start:end])
    assert [(number, *append_frames.decode_request(content)) for number, content in frames] == [
        (number, request_id or None, batch) for number, request_id, batch in requests
    ]


@given(st.text(min_size=60, max_size=300))
def test_a_long_request_id_is_cut_and_stays_text(request_id: str) -> None:
    frame = one_frame(b"".join(append_frames.encode_request(1, request_id, b"batch")))
    found, batch = append_frames.decode_request(frame.content)
    assert found is not None
    assert (request_id.startswith(found), batch) == (True, b"batch")


@given(NUMBERS, OFFSETS, OFFSETS, st.integers(0, 5000))
def test_new_messages_are_answered_in_a_few_bytes(number: int, end_offset: int, base: int, count: int) -> None:
    encoded = append_frames.encode_answer(number, AppendedOffsets(end_offset, range(base, base + count)))
    assert len(encoded) < 32
    frame = one_frame(encoded)
    assert frame.number == number
    assert append_frames.decode_answer(frame.content) == AppendedOffsets(end_offset, range(base, base + count))


@given(OFFSETS, st.lists(OFFSETS | st.just(-IdempotencyConflict.error_code), max_size=50))
def test_other_messages_are_answered_one_by_one(end_offset: int, offsets: list[int]) -> None:
    frame = one_frame(append_frames.encode_answer(1, AppendedOffsets(end_offset, offsets)))
    assert append_frames.decode_answer(frame.content) == AppendedOffsets(end_offset, offsets)


@pytest.mark.parametrize("error", [NotLeader(details={"leader": 3}), DiskFull(outcome="not_written")])
def test_errors_keep_their_class_and_details(error: NotLeader | DiskFull) -> None:
    found = append_frames.decode_answer(one_frame(append_frames.encode_answer(1, error)).content)
    assert isinstance(found, type(error))
    assert (found.outcome, found.details) == (error.outcome, error.details)


@pytest.mark.parametrize("size", [0, 4, 101, 0xFFFFFFFF])
def test_a_frame_of_a_wrong_size_is_refused_before_it_is_read(size: int) -> None:
    with pytest.raises(FrameError):
        FrameReader(100).feed(struct.pack("<II", size, 1))


@pytest.mark.parametrize(
    "content",
    [b"\x00", b"\x00" + bytes(19), b"\x00" + bytes(21), b"\x01", b"\x01" + bytes(9), b"\x02{", b"\x03", b"\xff"],
)
def test_an_answer_that_is_none_is_refused(content: bytes) -> None:
    with pytest.raises(FrameError):
        append_frames.decode_answer(content)


@pytest.mark.parametrize("content", [b"\x05abc", b"\x01\xff"])
def test_a_request_that_is_none_is_refused(content: bytes) -> None:
    with pytest.raises(FrameError):
        append_frames.decode_request(content)
