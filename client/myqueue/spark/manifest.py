"""The manifest of a micro-batch: every batch that its tasks have staged, in the order of publishing. Pure.

Small batches are staged in the manifest itself: they follow its compressed part, one after the other.

Exactly one manifest of a micro-batch is ever stored; what it names is what the micro-batch is, whatever a repetition
of it may compute. It rests as a fixed number of messages of one batch, so that sequences behind it are known:

    sequence 0 to 3   the manifest, in pieces
             4        DONE: everything is published
             5        ASKED: stored only behind DONE, so it answers whether that is there
"""

import json
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from myqueue.protocol.batch import HEADER_BYTES, Header, decode_header
from myqueue.protocol.errors import TooLarge
from myqueue.protocol.limits import MAX_BATCH_BYTES, MAX_MESSAGE_BYTES

PIECES = 4
DONE, ASKED = PIECES, PIECES + 1
PIECE_BYTES = min(MAX_MESSAGE_BYTES, MAX_BATCH_BYTES // PIECES) - (4 << 10)  # the rest: header, schema

_FORMAT = 2
_FORMATS = (1, _FORMAT)  # the first one had all batches in the staging topic
_SIZES = struct.Struct("<BI")  # format, size of the JSON that follows
_ENTRY = struct.Struct("<HHIIHQH")
_EPOCHS = 1 << 16


class StagedBatch(NamedTuple):
    """A batch to publish, and where it is staged: consecutive messages hold its pieces, or the manifest has it."""

    topic: str
    topic_id: UUID
    staging_id: UUID  # of the topic in which it is staged
    partition: int
    messages: int
    crc: int  # of the body
    staging_partition: int
    offset: int  # of the first piece
    pieces: int  # none, if the manifest has it
    data: bytes = b""  # header and body, if the manifest has it

    @classmethod
    def inline(cls, topic: str, topic_id: UUID, header: Header, body: bytes) -> "StagedBatch":
        nowhere = UUID(int=0)
        data = header.pack() + body
        return cls(topic, topic_id, nowhere, header.partition, header.count, header.body_crc, 0, 0, 0, data)


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Publishes under a producer epoch of its own, so that each of its batches is stored once."""

    query: str
    number: int

    @property
    def producer(self) -> str:
        """No other client opens a producer of this name: an epoch of the write manager would fence it."""
        return f"spark:{self.query}:{self.number // _EPOCHS}"

    @property
    def epoch(self) -> int:
        return self.number % _EPOCHS

    @property
    def text(self) -> str:
        return f"{self.query}/{self.number}"

    @classmethod
    def parse(cls, text: str) -> "MicroBatch":
        query, _, number = text.rpartition("/")
        return cls(query, int(number))

    def __str__(self) -> str:
        return f"micro-batch {self.number} of query {self.query}"


def encode(entries: Iterable[StagedBatch]) -> bytes:
    topics: dict[tuple[str, UUID, UUID], int] = {}
    packed, contents = bytearray(), []
    for entry in entries:
        topic = topics.setdefault((entry.topic, entry.topic_id, entry.staging_id), len(topics))
        packed += _ENTRY.pack(
            topic,
            entry.partition,
            entry.messages,
            entry.crc,
            entry.staging_partition,
            entry.offset,
            entry.pieces,
        )
        contents.append(entry.data)
    names = json.dumps([[name, *map(str, ids)] for name, *ids in topics]).encode()
    return b"".join([zlib.compress(_SIZES.pack(_FORMAT, len(names)) + names + packed), *contents])


def decode(data: bytes) -> list[StagedBatch]:
    compressed = zlib.decompressobj()
    plain = compressed.decompress(data)
    form, size = _SIZES.unpack_from(plain)
    if form not in _FORMATS:
        raise ValueError(f"manifest of format {form}, this library knows {_FORMAT}: use a newer one")
    start = _SIZES.size
    topics = [(name, *map(UUID, ids)) for name, *ids in json.loads(plain[start : start + size])]
    entries = [StagedBatch(*topics[topic], *rest) for topic, *rest in _ENTRY.iter_unpack(plain[start + size :])]
    contents = _batches(compressed.unused_data)
    return [entry if entry.pieces else entry._replace(data=next(contents)) for entry in entries]


def _batches(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        end = at + HEADER_BYTES + decode_header(data[at : at + HEADER_BYTES]).body_size
        yield data[at:end]
        at = end


def in_pieces(data: bytes) -> list[bytes]:
    if len(data) > PIECES * PIECE_BYTES:
        raise TooLarge(
            f"the manifest of the micro-batch has {len(data)} bytes, the limit is {PIECES * PIECE_BYTES}: write with"
            " fewer tasks (coalesce) or read less at a time (maxOffsetsPerTrigger)"
        )
    return [data[at : at + PIECE_BYTES] for at in range(0, PIECES * PIECE_BYTES, PIECE_BYTES)]
