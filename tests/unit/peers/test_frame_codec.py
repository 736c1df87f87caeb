"""Frames come back as they were sent; anything else is a bad frame."""

import dataclasses
import struct
from typing import Any
from uuid import UUID

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.peers.frame_codec import MAX_FRAME_BYTES, PackedEntries, decode, encode, is_known
from broker.peers.handshake import OLDEST_VERSION
from broker.peers.msgpack_values import BadFrame
from broker.raft.configuration import GroupConfiguration, GroupId, MemberId
from broker.raft.dedupe import DedupeSnapshot, Producer, SeenBatch, pack_producers
from broker.raft.entry import Body, Kind, LogEntry, LogStart, Stamp
from broker.raft.messages import (
    Append,
    AppendRefused,
    AppendReply,
    Envelope,
    Frame,
    Heartbeat,
    HeartbeatReply,
    InstallSnapshot,
    Message,
    PreVote,
    PreVoteReply,
    ReadProbe,
    ReadReply,
    Row,
    RowKey,
    TimeoutNow,
    Vote,
    VoteReply,
)
from broker.raft.snapshot import Snapshot
from myqueue.protocol.dedup_records import DedupRecord

NUMBERS = st.integers(0, (1 << 64) - 1)
SMALL = st.integers(0, (1 << 32) - 1)
KEYS = st.binary(min_size=16, max_size=16)
GROUPS = st.builds(GroupId, st.uuids(), SMALL)
MEMBERS = st.builds(MemberId, SMALL, NUMBERS)
SOME_MEMBERS = st.lists(MEMBERS, max_size=5).map(tuple)
CONFIGURATIONS = st.builds(GroupConfiguration, SOME_MEMBERS, SOME_MEMBERS)
PRODUCERS = st.builds(
    Producer, NUMBERS, st.lists(st.builds(SeenBatch, SMALL, SMALL, SMALL, NUMBERS), min_size=1, max_size=3).map(tuple)
)
DEDUPES = st.builds(
    DedupeSnapshot,
    st.lists(st.binary(min_size=28, max_size=28), max_size=4).map(b"".join),
    st.lists(st.tuples(NUMBERS, PRODUCERS), max_size=3).map(pack_producers),
)
SNAPSHOTS = st.builds(Snapshot, NUMBERS, NUMBERS, NUMBERS, NUMBERS, CONFIGURATIONS, NUMBERS, DEDUPES)
BODIES: dict[Kind, st.SearchStrategy[Any]] = {
    Kind.MESSAGES: st.binary(max_size=200),
    Kind.NOOP: st.none(),
    Kind.CONFIGURATION: CONFIGURATIONS,
    Kind.TRUNCATE: st.builds(LogStart, NUMBERS, NUMBERS),
}
ROW_KEYS = st.builds(RowKey, GROUPS, NUMBERS)
ROWS = st.none() | st.builds(Row, NUMBERS, NUMBERS, NUMBERS)
ENVELOPE = (GroupId(UUID(int=1), 2), MemberId(3, 4), MemberId(5, 6))


@st.composite
def entries(draw: st.DrawFn, index: int) -> LogEntry:
    kind = draw(st.sampled_from(Kind))
    count = draw(st.integers(0, 5))
    positions = draw(st.sets(st.integers(0, count - 1))) if count else set()
    return LogEntry(
        index,
        draw(NUMBERS),
        kind,
        draw(NUMBERS),
        draw(NUMBERS),
        count,
        draw(st.none() | st.builds(Stamp, NUMBERS, NUMBERS, SMALL, SMALL)),
        tuple(DedupRecord(position, draw(SMALL), draw(SMALL), draw(KEYS)) for position in sorted(positions)),
        draw(BODIES[kind]),
    )


@st.composite
def appends(draw: st.DrawFn) -> Append:
    previous = draw(st.integers(0, (1 << 63) - 1))
    some = tuple(draw(entries(previous + 1 + n)) for n in range(draw(st.integers(0, 4))))
    return Append(draw(NUMBERS), previous, draw(NUMBERS), some, draw(NUMBERS))


MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.builds(PreVote, NUMBERS, NUMBERS, NUMBERS),
    st.builds(PreVoteReply, NUMBERS, st.booleans()),
    st.builds(Vote, NUMBERS, NUMBERS, NUMBERS, st.booleans()),
    st.builds(VoteReply, NUMBERS, st.booleans()),
    appends(),
    st.builds(AppendReply, NUMBERS, NUMBERS, st.none() | NUMBERS, NUMBERS, NUMBERS),
    st.builds(AppendRefused, NUMBERS),
    st.builds(InstallSnapshot, NUMBERS, SNAPSHOTS),
    st.builds(ReadProbe, NUMBERS, NUMBERS),
    st.builds(ReadReply, NUMBERS, NUMBERS),
    st.builds(TimeoutNow, NUMBERS),
)
FRAMES: st.SearchStrategy[Frame] = st.one_of(
    st.builds(Envelope, GROUPS, MEMBERS, MEMBERS, MESSAGES),
    st.builds(
        Heartbeat,
        *(NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS),
        st.lists(st.tuples(ROW_KEYS, ROWS), max_size=5).map(tuple),
    ),
    st.builds(
        HeartbeatReply,
        *(NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS),
        st.lists(st.tuples(ROW_KEYS, NUMBERS), max_size=5).map(tuple),
        st.booleans(),
        st.lists(ROW_KEYS, max_size=3).map(tuple),
    ),
)


def types_of(value: object) -> object:
    """Equality takes a tuple for a NamedTuple and True for 1; this does not."""
    if isinstance(value, tuple):
        return type(value), [types_of(item) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        return type(value), [types_of(getattr(value, name)) for name in value.__dataclass_fields__]
    return type(value)


@given(FRAMES)
def test_every_frame_comes_back_exactly(frame: Frame) -> None:
    data = bytearray(b"".join(encode(frame)))
    decoded = decode(memoryview(data))
    data[:] = bytes(len(data))  # the buffer is used again; the frame must not notice
    assert decoded == frame
    assert types_of(decoded) == types_of(frame)


def test_all_messages_are_covered() -> None:
    """A new message of the core needs a tag in the codec."""
    sent = {PreVote, PreVoteReply, Vote, VoteReply, Append, AppendReply, InstallSnapshot, ReadProbe, ReadReply}
    assert {*sent, TimeoutNow, AppendRefused} == set(Message.__args__)


@given(FRAMES, st.data())
def test_a_cut_off_frame_is_bad(frame: Frame, data: st.DataObject) -> None:
    encoded = b"".join(encode(frame))
    with pytest.raises(BadFrame):
        decode(encoded[: data.draw(st.integers(0, len(encoded) - 1))])


@given(FRAMES, st.binary(min_size=1, max_size=20))
def test_bytes_too_many_are_bad(frame: Frame, more: bytes) -> None:
    with pytest.raises(BadFrame):
        decode(b"".join(encode(frame)) + more)


def accepted_or_bad(data: bytes) -> None:
    """Damage that still makes a frame is found by the MAC; here nothing else may come out."""
    try:
        frame = decode(data)
    except BadFrame:
        return
    assert isinstance(frame, Envelope | Heartbeat | HeartbeatReply)


@given(FRAMES, st.data())
def test_a_changed_byte_gives_a_frame_or_a_bad_frame(frame: Frame, data: st.DataObject) -> None:
    encoded = bytearray(b"".join(encode(frame)))
    encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    accepted_or_bad(bytes(encoded))


@given(st.binary(max_size=300))
def test_garbage_is_bad(garbage: bytes) -> None:
    accepted_or_bad(garbage)
    accepted_or_bad(struct.pack(">I", len(garbage)) + garbage)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 40) | st.binary(max_size=20) | st.text(max_size=3) | st.floats(),
    lambda inner: st.lists(inner, max_size=9) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=20,
)


@given(st.integers(0, 12), st.lists(VALUES, max_size=13))
def test_wrong_types_are_bad(tag: int, values: list[object]) -> None:
    head = msgpack.packb([tag, *values])
    accepted_or_bad(struct.pack(">I", len(head)) + head)


@pytest.mark.parametrize("term", [True, -1, 1.0, None, "1", b"1", 1 << 63])
def test_only_a_number_is_a_number(term: object) -> None:
    head = msgpack.packb([11, bytes(16), 2, 3, 4, 5, 6, term])
    data = struct.pack(">I", len(head)) + head
    if term == 1 << 63:
        assert isinstance(decode(data), Envelope)
    else:
        with pytest.raises(BadFrame):
            decode(data)


@pytest.mark.parametrize("head", [b"\x91" * 100_000, b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\x81\x90\x01"])
def test_bombs_are_bad(head: bytes) -> None:
    with pytest.raises(BadFrame):
        decode(struct.pack(">I", len(head)) + head)


def test_too_large_is_bad_both_ways() -> None:
    with pytest.raises(BadFrame):
        decode(bytes(MAX_FRAME_BYTES + 1))
    with pytest.raises(BadFrame):
        encode(one_entry(Kind.MESSAGES, bytes(MAX_FRAME_BYTES)))


def one_entry(kind: Kind, body: Body) -> Envelope:
    return Envelope(*ENVELOPE, Append(7, 8, 6, (LogEntry(9, 7, kind, 10, 11, 1, None, (), body),), 5))


@given(st.lists(appends(), min_size=1, max_size=4))
def test_entries_are_packed_once_for_all_followers_and_never_mistaken(messages: list[Append]) -> None:
    packed = PackedEntries()
    for message in messages:
        for follower in (2, 3):
            copy = dataclasses.replace(message, entries=(*message.entries,))
            frame = Envelope(GroupId(UUID(int=1), 0), MemberId(1, 1), MemberId(follower, 1), copy)
            assert encode(frame, packed=packed) == encode(frame)
        if message.entries:
            assert packed.of(message.entries)[0] is packed.of((*message.entries,))[0]


def test_the_largest_batch_passes_and_is_not_copied_on_the_way_out() -> None:
    batch = bytes((4 << 20) + 64)
    frame = one_entry(Kind.MESSAGES, batch)
    pieces = encode(frame)
    assert any(piece is batch for piece in pieces)
    assert decode(b"".join(pieces)) == frame


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (Kind.MESSAGES, None),
        (Kind.NOOP, b"x"),
        (Kind.CONFIGURATION, b"x"),
        (Kind.CONFIGURATION, None),
        (Kind.TRUNCATE, GroupConfiguration()),
    ],
)
def test_an_entry_whose_body_does_not_fit_its_kind_is_not_sent(kind: Kind, body: Body) -> None:
    with pytest.raises(BadFrame):
        encode(one_entry(kind, body))


def test_entries_with_a_hole_are_bad() -> None:
    hole = tuple(LogEntry(index, 7, Kind.NOOP, 10, 11) for index in (9, 11))
    with pytest.raises(BadFrame, match="follow"):
        decode(b"".join(encode(Envelope(*ENVELOPE, Append(7, 8, 6, hole, 5)))))


def test_a_short_key_is_not_padded() -> None:
    entry = LogEntry(9, 7, Kind.MESSAGES, 10, 11, 1, None, (DedupRecord(0, 1, 2, b"short"),), b"")
    with pytest.raises(BadFrame):
        encode(Envelope(*ENVELOPE, Append(7, 8, 6, (entry,), 5)))


def test_the_bytes_on_the_wire_stay_the_same() -> None:
    """Brokers of two releases meet during an upgrade: other bytes need another version in the handshake."""
    address = "c410" + "00" * 15 + "01" + "02" + "0304" + "0506"
    reply = b"".join(encode(Envelope(*ENVELOPE, AppendReply(7, 8, None, 9, 10))))
    assert reply.hex() == "0000001e" + "9c08" + address + "0708c0090a"
    append = b"".join(encode(one_entry(Kind.MESSAGES, b"abc")))
    assert append.hex() == "00000029" + "9c02" + address + "07080605" + "91" + "99" + "0907000a0b01c0c40003" + "616263"
    heartbeat = b"".join(encode(Heartbeat(1, 2, 3, 4, 5, ((RowKey(ENVELOPE[0], 6), None),))))
    assert heartbeat.hex() == "0000001d" + "970001020304" + "05" + "91" + "93" + "c410" + "00" * 15 + "01" + "0206"
    answer = b"".join(
        encode(HeartbeatReply(1, 2, 3, 4, 5, ((RowKey(ENVELOPE[0], 6), 7),), True, (RowKey(ENVELOPE[0], 8),)))
    )
    refused, barred = ("c410" + "00" * 15 + "01" + rest for rest in ("020607", "0208"))
    assert answer.hex() == "00000035" + "990101020304" + "0591" + "94" + refused + "c3" + "91" + "93" + barred


@given(FRAMES)
def test_a_broker_of_the_oldest_version_gets_the_frames_that_it_knows(frame: Frame) -> None:
    if isinstance(frame, Envelope) and isinstance(frame.message, AppendRefused):
        assert not is_known(frame, OLDEST_VERSION)
        return
    assert is_known(frame, OLDEST_VERSION)
    old = decode(b"".join(encode(frame, OLDEST_VERSION)), OLDEST_VERSION)
    if isinstance(frame, HeartbeatReply):
        assert old == dataclasses.replace(frame, disk_low=False, barred=())
    else:
        assert old == frame


def test_the_bytes_of_the_oldest_version_stay_the_same() -> None:
    reply = HeartbeatReply(1, 2, 3, 4, 5, ((RowKey(ENVELOPE[0], 6), 7),), True, (RowKey(ENVELOPE[0], 8),))
    refused = "c410" + "00" * 15 + "01" + "020607"
    assert b"".join(encode(reply, OLDEST_VERSION)).hex() == "0000001e" + "970101020304" + "0591" + "94" + refused
    with pytest.raises(BadFrame):
        decode(b"".join(encode(reply, OLDEST_VERSION)))


def test_a_snapshot_for_the_oldest_version_has_the_bytes_that_its_brokers_send() -> None:
    dedupe = DedupeSnapshot(
        struct.pack("<16sIQ", b"k" * 16, 7, 8), pack_producers([(9, Producer(10, (SeenBatch(11, 12, 13, 14),)))])
    )
    snapshot = Snapshot(1, 2, 3, 4, GroupConfiguration((MemberId(5, 6),), ()), 7, dedupe)
    frame = Envelope(*ENVELOPE, InstallSnapshot(7, snapshot))
    address = "c410" + "00" * 15 + "01" + "02" + "0304" + "0506"
    keys = "c41c" + "6b" * 16 + "07000000" + "0800000000000000"
    batches = "c414" + "0b000000" + "0c000000" + "0d000000" + "0e00000000000000"
    sent = "0000005e" + "9903" + address + "07" + "98" + "01020304" + "92919205069007" + keys + "9193090a" + batches
    assert b"".join(encode(frame, OLDEST_VERSION)).hex() == sent
    assert decode(bytes.fromhex(sent), OLDEST_VERSION) == frame


@pytest.mark.parametrize("batches", [b"", b"x" * 19])
def test_a_producer_of_the_oldest_version_has_its_last_batches(batches: bytes) -> None:
    values = (3, b"t" * 16, 2, 3, 4, 5, 6, 7, (1, 2, 3, 4, ((), ()), 7, b"", ((9, 10, batches),)))
    head = msgpack.packb(values)
    with pytest.raises(BadFrame, match="last batches"):
        decode(struct.pack(">I", len(head)) + head, OLDEST_VERSION)
