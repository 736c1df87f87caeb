"""The layout of a frame: what one round of the driver owes the disk, in one write and one sync.

    magic           4
    flags           4    HEAD: the first frame of a segment, with the state of all groups;
                         RESUMED: a head after damage, there is a gap before its sequence
    salt            8    random, of the segment's generation: a file is used again and again
    segment         8    ordinal of the segment; a later one has a greater ordinal
    sequence        8    of the frame
    replay from     8    in a head: ordinal of the oldest segment with entries that partition files may lack
    starts          4    how often the broker has started
    length          4    of the records
    records         4    how many
    previous        4    CRC of the frame before, by its header
    headers CRC     4    CRC32C of the headers of all records, one after the other
    CRC             4    CRC32C of the above
    records

A frame begins at a page. What follows its last record up to the end of the page is never read. There is no end mark:
the next frame, with the next sequence, says that this one was synced.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from crc32c import crc32c

from broker.storage.disk import PAGE_BYTES
from broker.storage.entry import Corrupted
from broker.storage.record import RECORD_BYTES, Buffer, Record, RecordKind, parse

MAGIC = b"MQJ1"
HEAD = 1
RESUMED = 2
_FIELDS = struct.Struct("<4sIQQQQIIIII")
_CRC = struct.Struct("<I")
_HEADER = struct.Struct("<4sIQQQQIIIIII")
HEADER_BYTES = _HEADER.size
_JOINED_BYTES = 4096  # pieces below are copied together: an iovec each would cost more
_ZEROS = bytes(PAGE_BYTES)


class FrameHeader(NamedTuple):
    magic: bytes
    flags: int
    salt: int
    segment: int
    sequence: int
    replay_from: int
    starts: int
    length: int
    records: int
    previous: int
    headers_crc: int
    crc: int = 0

    @property
    def is_head(self) -> bool:
        return bool(self.flags & HEAD)

    @property
    def is_resumed(self) -> bool:
        return bool(self.flags & RESUMED)

    @property
    def size_bytes(self) -> int:
        return HEADER_BYTES + self.length

    @property
    def pages_bytes(self) -> int:
        return in_pages(HEADER_BYTES + self.length)


class Frame(NamedTuple):
    """As read. The records are views of the segment."""

    sequence: int
    segment: int
    is_head: bool
    records: list[Record]


class FrameContents(NamedTuple):
    """The records of a frame, before it is known where it goes."""

    pieces: list[Buffer]  # header and body of each in turn
    sizes: list[int]
    length: int
    records: int
    entries: int
    headers_crc: int

    @property
    def pages_bytes(self) -> int:
        return in_pages(HEADER_BYTES + self.length)


class Encoded(NamedTuple):
    parts: list[Buffer]
    crc: int


def in_pages(size_bytes: int) -> int:
    """Up to the end of the page."""
    return -(-size_bytes // PAGE_BYTES) * PAGE_BYTES


def contents_of(records: Sequence[Record]) -> FrameContents:
    headers = [record[2] for record in records]
    pieces: list[Buffer] = headers * 2
    pieces[::2] = headers
    pieces[1::2] = [record[3] for record in records]
    sizes = list(map(len, pieces))
    entries = [record[0] for record in records].count(RecordKind.ENTRY)
    headers_crc = crc32c(headers[0] if len(headers) == 1 else b"".join(headers))
    return FrameContents(pieces, sizes, sum(sizes), len(headers), entries, headers_crc)


def encode_frame(
    contents: FrameContents,
    *,
    flags: int,
    salt: int,
    segment: int,
    sequence: int,
    replay_from: int,
    starts: int,
    previous: int,
) -> Encoded:
    fields = _FIELDS.pack(
        *(MAGIC, flags, salt, segment, sequence, replay_from, starts),
        *(contents.length, contents.records, previous, contents.headers_crc),
    )
    crc = crc32c(fields)
    small: list[Buffer] = [fields, _CRC.pack(crc)]
    parts: list[Buffer] = []
    if max(contents.sizes, default=0) < _JOINED_BYTES:
        small += contents.pieces
    else:
        for piece, size in zip(contents.pieces, contents.sizes, strict=True):
            if size < _JOINED_BYTES:
                small.append(piece)
            else:
                parts.append(b"".join(small))
                parts.append(piece)
                small = []
    # A page that is written as a whole need not be read first.
    small.append(_ZEROS[: -(HEADER_BYTES + contents.length) % PAGE_BYTES])
    parts.append(b"".join(small))
    return Encoded(parts, crc)


def header_at(data: bytes, at: int) -> FrameHeader | None:
    """None: no frame begins here, or its header was damaged."""
    if data[at : at + 4] != MAGIC or len(data) - at < HEADER_BYTES:
        return None
    header = FrameHeader._make(_HEADER.unpack_from(data, at))
    return header if crc32c(data[at : at + HEADER_BYTES - 4]) == header.crc else None


def headers_in(data: bytes, at: int = 0) -> Iterator[tuple[int, FrameHeader]]:
    """Every header at a page from `at` on, of whatever generation."""
    for page in range(in_pages(at), len(data), PAGE_BYTES):
        if data[page : page + 4] == MAGIC and (header := header_at(data, page)) is not None:
            yield page, header


def records_of(data: bytes, at: int, header: FrameHeader, *, with_bodies: bool) -> list[Record]:
    """Checks the headers of the records and the bodies of all that are no entries; `with_bodies`: of entries too.

    Raises Corrupted.
    """
    end = at + header.size_bytes
    if end > len(data):
        raise Corrupted("a frame is cut off")
    view = memoryview(data)
    records: list[Record] = []
    at += HEADER_BYTES
    for _ in range(header.records):
        if end - at < RECORD_BYTES:
            raise Corrupted("the records of a frame do not fill it")
        parsed = parse(data, at)
        body_at = at + parsed.header_bytes
        next_at = at + parsed.size_bytes
        if next_at > end:
            raise Corrupted("the records of a frame do not fill it")
        body = view[body_at:next_at]
        if (with_bodies or parsed.kind != RecordKind.ENTRY) and crc32c(body) != parsed.body_crc:
            raise Corrupted("a record's body does not match its checksum")
        records.append(Record(RecordKind(parsed.kind), parsed.group, view[at:body_at], body))
        at = next_at
    if at != end:
        raise Corrupted("the records of a frame do not fill it")
    if crc32c(b"".join([record.header for record in records])) != header.headers_crc:
        raise Corrupted("the headers of the records do not match their checksum")
    return records
