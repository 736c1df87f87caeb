"""Sealed pieces: what comes out is what went in, in order, or nothing."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.peers.mac_framing import OVERHEAD_BYTES, PIECE_BYTES, BadMac, MacReader, MacWriter

KEY = b"k" * 32
MAX = 6 << 20
MAX_STEPS = 20_000  # megabytes byte by byte take seconds and prove no more
SIZES = st.sampled_from(
    [0, 1, 100, 5_000, 65_511, 65_512, 65_513, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 600_000]
)


def framed(*messages: list[bytes], key: bytes = KEY) -> list[bytes]:
    """All pieces, each as it goes over the wire."""
    writer = MacWriter(key)
    return [b"".join(piece) for parts in messages for piece in writer.pieces(parts, sum(map(len, parts)))]


def opened(data: bytes, steps: list[int] | None = None, max_bytes: int = MAX, key: bytes = KEY) -> list[bytes]:
    """Fed in steps of these sizes, in turn."""
    opener = MacReader(key, max_bytes)
    messages: list[bytes] = []
    at = turn = 0
    least = len(data) // MAX_STEPS + 1
    while at < len(data):
        room = opener.buffer()
        assert len(room)
        step = min(len(room), len(data) - at, max(least, steps[turn % len(steps)]) if steps else len(data))
        room[:step] = data[at : at + step]
        messages += map(bytes, opener.advance(step))
        at += step
        turn += 1
    return messages


def filled(size: int, number: int) -> bytes:
    return bytes([number % 251 + 1]) * size


@settings(max_examples=60)
@given(st.lists(st.lists(SIZES, min_size=1, max_size=3), max_size=4), st.lists(st.integers(1, 300_000), max_size=5))
def test_messages_come_out_as_they_went_in(shapes: list[list[int]], steps: list[int]) -> None:
    messages = [[filled(size, n + m) for m, size in enumerate(shape)] for n, shape in enumerate(shapes)]
    data = b"".join(framed(*messages))
    assert opened(data, steps) == [b"".join(parts) for parts in messages]


def test_byte_by_byte() -> None:
    assert opened(b"".join(framed([b"one"], [], [b"two", b"three"])), [1]) == [b"one", b"", b"twothree"]


def test_no_piece_is_longer_than_allowed() -> None:
    pieces = framed([bytes(1_000_000)])
    assert max(map(len, pieces)) == PIECE_BYTES + OVERHEAD_BYTES
    assert len(pieces) == 4


@given(st.integers(0, 2 * OVERHEAD_BYTES + 8), st.integers(1, 255))
def test_a_changed_byte_is_found(position: int, change: int) -> None:
    data = bytearray(b"".join(framed([b"first"], [b"next"])))
    data[position] ^= change
    first = position < OVERHEAD_BYTES + 5
    try:
        got = opened(bytes(data))
    except BadMac:
        return
    # A length that grew waits for bytes that never come; nothing was handed on.
    assert got in ([], [b"first"])
    assert not (first and got)


def test_repeated_left_out_and_swapped_pieces_are_found() -> None:
    one, two, three = framed([b"one"], [b"two"], [b"three"])
    for data in (one + one, one + three, two + one, one + two + two):
        with pytest.raises(BadMac):
            opened(data)


def test_pieces_of_another_connection_are_found() -> None:
    with pytest.raises(BadMac):
        opened(framed([b"one"], key=b"x" * 32)[0])


def test_pieces_of_one_message_cannot_be_left_out() -> None:
    pieces = framed([bytes(1_000_000)])
    with pytest.raises(BadMac):
        opened(pieces[0] + pieces[2])
    with pytest.raises(BadMac):
        opened(pieces[0] + pieces[-1])


def test_pieces_that_do_not_add_up_are_refused_even_with_a_right_mac() -> None:
    writer = MacWriter(KEY)
    begun = b"".join(writer._with_mac(10, 5, [bytes(10)]))
    for length, follows in ((3, 4), (6, 0), (4, 0)):
        with pytest.raises(BadMac, match="go on"):
            opened(begun + b"".join(writer._with_mac(length, follows, [bytes(length)])))


def test_too_long_is_refused_before_it_has_come() -> None:
    with pytest.raises(BadMac, match="too long"):
        opened((PIECE_BYTES + 1).to_bytes(4, "big") + bytes(20))
    with pytest.raises(BadMac, match="too long"):
        opened((100).to_bytes(4, "big") + MAX.to_bytes(4, "big") + bytes(16))
    with pytest.raises(BadMac, match="too long"):
        opened(framed([b"x"])[0], max_bytes=0)


def test_an_empty_piece_does_not_go_on_for_ever() -> None:
    with pytest.raises(BadMac, match="empty"):
        opened(bytes(4) + (5).to_bytes(4, "big") + bytes(16))
