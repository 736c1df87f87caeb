"""Frames of the Raft core as bytes.

    head length  4
    head         msgpack: an array of a tag and the frame's values in order
    batches      the bytes of the entries, one after the other; their lengths are in the head

Batches stay outside of the msgpack part, so that they are not copied when a frame is encoded. Decoding builds exactly
what was encoded or raises `BadFrame`: every value has the type that the core expects.
Anything that changes these bytes needs a new `VERSION` in the handshake. A broker of the oldest version gets frames
as it knows them, so that brokers can be upgraded one at a time.
"""

import dataclasses
import struct
from collections.abc import Callable
from functools import lru_cache
from operator import attrgetter, is_
from typing import Any, Final
from uuid import UUID

import msgpack

from broker.peers.entry_codec import Batches, entry_of, entry_values, snapshot_of, snapshot_values
from broker.peers.handshake import OLDEST_VERSION, VERSION
from broker.peers.msgpack_values import BadFrame, array, array_of, flag, number, number_or_none, unpacked
from broker.raft.configuration import GroupId, MemberId
from broker.raft.entry import LogEntry
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

MAX_FRAME_BYTES: Final = 6 << 20

_HEAD_LENGTH = struct.Struct(">I")


def is_known(frame: Frame, version: int) -> bool:
    """Whether a broker of that version knows this kind of frame. Nothing depends on the others: they are not sent."""
    return version > OLDEST_VERSION or not (isinstance(frame, Envelope) and isinstance(frame.message, AppendRefused))


class PackedEntries:
    """The entries that were encoded last: a leader sends the same ones to each of its followers."""

    __slots__ = ("_entries", "_packed")

    def __init__(self) -> None:
        self._entries: tuple[LogEntry, ...] = ()
        self._packed: tuple[bytes, list[bytes]] = (b"", [])

    def of(self, entries: tuple[LogEntry, ...]) -> tuple[bytes, list[bytes]]:
        """The array of them, and their batches."""
        last = self._entries
        if len(last) != len(entries) or not entries or not all(map(is_, last, entries)):
            batches: list[bytes] = []
            self._packed = msgpack.packb([entry_values(entry, batches) for entry in entries]), batches
            self._entries = entries
        return self._packed


def encode(frame: Frame, version: int = VERSION, packed: PackedEntries | None = None) -> list[bytes]:
    """The pieces of a frame in the order they are sent. Batches are the entries' own bytes, not copies."""
    batches: list[bytes] = []
    try:
        if isinstance(frame, Envelope) and isinstance(frame.message, Append):
            entries, batches = (packed or PackedEntries()).of(frame.message.entries)
            # The array of all values: as many as before the entries and one more, then the entries.
            head = _APPEND_START + msgpack.packb(_append_values(frame, frame.message))[1:] + entries
        else:
            head = msgpack.packb(_values_of(frame, version))
    except (ValueError, OverflowError, TypeError, struct.error) as error:
        raise BadFrame(f"cannot be encoded: {error}") from error
    pieces = [_HEAD_LENGTH.pack(len(head)) + head, *batches]
    if (size := sum(map(len, pieces))) > MAX_FRAME_BYTES:
        raise BadFrame(f"{size} bytes are more than a frame may have")
    return pieces


def decode(data: bytes | bytearray | memoryview, version: int = VERSION) -> Frame:
    """Keeps no reference to `data`."""
    view = memoryview(data)
    if not _HEAD_LENGTH.size <= len(view) <= MAX_FRAME_BYTES:
        raise BadFrame(f"a frame of {len(view)} bytes")
    batches_at = _HEAD_LENGTH.size + _HEAD_LENGTH.unpack_from(view)[0]
    if batches_at > len(view):
        raise BadFrame("the head is cut off")
    values = unpacked(view[_HEAD_LENGTH.size : batches_at])
    batches = Batches(view[batches_at:])
    frame = _frame_of(values, batches, version)
    batches.finish()
    return frame


def _group(topic: Any, partition: Any) -> GroupId:
    if type(topic) is not bytes or len(topic) != 16:
        raise BadFrame("a topic's UUID is missing")
    return _known_group(topic, number(partition))


@lru_cache(maxsize=4096)
def _known_group(topic: bytes, partition: int) -> GroupId:
    """Frames name the same few groups, and making a UUID is the most expensive part of a small frame."""
    return GroupId(UUID(bytes=topic), partition)


# Messages whose fields are all numbers and flags: their order in the frame is that of the class.

_CHECKS: dict[Any, Callable[[Any], Any]] = {int: number, bool: flag, int | None: number_or_none}


class PlainMessage:
    def __init__(self, tag: int, build: Callable[..., Message]) -> None:
        fields = dataclasses.fields(build)  # type: ignore[arg-type]
        names = [field.name for field in fields]
        self.tag = tag
        self.build = build
        self.checks = tuple(_CHECKS[field.type] for field in fields)
        # attrgetter of one name gives the bare value
        self.values: Callable[[Message], tuple[Any, ...]] = (
            attrgetter(*names) if len(names) > 1 else lambda message: (getattr(message, names[0]),)
        )

    def message(self, values: tuple[Any, ...]) -> Message:
        if len(values) != len(self.checks):
            raise BadFrame("too many or too few values")
        return self.build(*[check(value) for check, value in zip(self.checks, values, strict=True)])


_HEARTBEAT, _HEARTBEAT_REPLY, _APPEND, _INSTALL_SNAPSHOT = range(4)
_PLAIN_BY_TAG = {
    tag: PlainMessage(tag, build)
    for tag, build in (
        (4, PreVote),
        (5, PreVoteReply),
        (6, Vote),
        (7, VoteReply),
        (8, AppendReply),
        (9, ReadProbe),
        (10, ReadReply),
        (11, TimeoutNow),
        (12, AppendRefused),
    )
}
_PLAIN_BY_TYPE: dict[Any, PlainMessage] = {plain.build: plain for plain in _PLAIN_BY_TAG.values()}


_APPEND_START = b"\x9c"  # an array of 12


def _append_values(frame: Envelope, message: Append) -> tuple[Any, ...]:
    """Those before the entries."""
    place = (message.term, message.previous_index, message.previous_term, message.commit)
    return (_APPEND, frame.group.topic.bytes, frame.group.partition, *frame.sender, *frame.to, *place)


def _values_of(frame: Frame, version: int) -> tuple[Any, ...]:
    if isinstance(frame, Envelope):
        message = frame.message
        address = (frame.group.topic.bytes, frame.group.partition, *frame.sender, *frame.to)
        if isinstance(message, InstallSnapshot):
            return (_INSTALL_SNAPSHOT, *address, message.term, snapshot_values(message.snapshot, version))
        plain = _PLAIN_BY_TYPE[type(message)]
        return (plain.tag, *address, *plain.values(message))
    if isinstance(frame, Heartbeat):
        rows = [(*_key_values(key), *(row or ())) for key, row in frame.rows]
        return (_HEARTBEAT, frame.broker_id, frame.session, frame.sent_at, frame.base, frame.version, rows)
    refused = [(*_key_values(key), term) for key, term in frame.refused]
    sessions = (frame.broker_id, frame.session, frame.to_session)
    reply = (_HEARTBEAT_REPLY, *sessions, frame.sent_at, frame.version, refused)
    if version == OLDEST_VERSION:
        return reply
    return (*reply, frame.disk_low, [_key_values(key) for key in frame.barred])


def _frame_of(values: Any, batches: Batches, version: int) -> Frame:
    values = array(values)
    tag = values[0] if values else None
    if tag in (_HEARTBEAT, _HEARTBEAT_REPLY) and type(tag) is int:
        has_rest = tag == _HEARTBEAT_REPLY and version > OLDEST_VERSION
        _, first, second, third, fourth, fifth, rows, *rest = array_of(values, 9 if has_rest else 7)
        numbers = (number(first), number(second), number(third), number(fourth), number(fifth))
        if tag == _HEARTBEAT:
            return Heartbeat(*numbers, tuple(map(_row, array(rows))))
        disk_low, barred = rest or (False, ())
        return HeartbeatReply(
            *numbers, tuple(map(_refusal, array(rows))), flag(disk_low), tuple(map(_key, array(barred)))
        )
    if len(values) < 7:
        raise BadFrame("an envelope is cut off")
    topic, partition, sender, sender_incarnation, to, to_incarnation = values[1:7]
    return Envelope(
        _group(topic, partition),
        MemberId(number(sender), number(sender_incarnation)),
        MemberId(number(to), number(to_incarnation)),
        _message(number(tag), values[7:], batches, version),
    )


def _message(tag: int, values: tuple[Any, ...], batches: Batches, version: int) -> Message:
    plain = _PLAIN_BY_TAG.get(tag)
    if plain is not None:
        return plain.message(values)
    if tag == _INSTALL_SNAPSHOT:
        term, snapshot = array_of(values, 2)
        return InstallSnapshot(number(term), snapshot_of(snapshot, version))
    if tag != _APPEND:
        raise BadFrame("an unknown kind of frame")
    term, previous_index, previous_term, commit, entries = array_of(values, 5)
    message = Append(
        number(term),
        number(previous_index),
        number(previous_term),
        tuple([entry_of(entry, batches) for entry in array(entries)]),
        number(commit),
    )
    for index, entry in enumerate(message.entries, message.previous_index + 1):
        if entry.index != index:
            raise BadFrame("entries do not follow each other")
    return message


def _key_values(key: RowKey) -> tuple[bytes, int, int]:
    return key.group.topic.bytes, key.group.partition, key.incarnation


def _key(values: Any) -> RowKey:
    topic, partition, incarnation = array_of(values, 3)
    return RowKey(_group(topic, partition), number(incarnation))


def _row(values: Any) -> tuple[RowKey, Row | None]:
    if len(array(values)) == 3:
        return _key(values), None
    topic, partition, incarnation, leader_incarnation, term, commit = array_of(values, 6)
    key = RowKey(_group(topic, partition), number(incarnation))
    return key, Row(number(leader_incarnation), number(term), number(commit))


def _refusal(values: Any) -> tuple[RowKey, int]:
    topic, partition, incarnation, term = array_of(values, 4)
    return RowKey(_group(topic, partition), number(incarnation)), number(term)
