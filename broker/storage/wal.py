"""The WAL as a file: room for it beforehand, and whether SQLite dropped transactions from its end.

A process or machine that dies leaves at most one transaction half written, and SQLite drops that one: nobody was told
of it. A damaged frame further in front looks the same to SQLite, and it silently drops everything behind it too. But
frames behind a complete transaction were only ever written after that transaction was synced: where one of those is
whole, something before it was lost.

    WAL header    32 bytes   magic, version, page size, sequence, salt 1, salt 2, checksum 1, checksum 2
    frame header  24 bytes   page number, pages after commit or 0, salt 1, salt 2, checksum 1, checksum 2; then the page
"""

import os
import struct
from pathlib import Path
from typing import BinaryIO, NamedTuple

_HEADER = struct.Struct(">8I")
_FRAME = struct.Struct(">6I")
_BIG_ENDIAN_SUMS = 0x377F0683
_MASK = 0xFFFFFFFF
_STEP_BYTES = 1 << 20


def prepare(wal: Path, size_bytes: int) -> None:
    """Zeros up to that size, which SQLite ignores: a commit that makes the file longer takes several times as long
    to sync as one that writes over what is there. Nothing may be written to the database meanwhile."""
    descriptor = os.open(wal, os.O_RDWR)
    try:
        size = os.fstat(descriptor).st_size
        try:
            for at in range(size, size_bytes, _STEP_BYTES):
                os.pwrite(descriptor, bytes(min(_STEP_BYTES, size_bytes - at)), at)
        except OSError:  # no room: it will do without
            os.ftruncate(descriptor, size)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _Frame(NamedTuple):
    page: int
    pages_after_commit: int
    salts: tuple[int, int]
    checksum: tuple[int, int]


def lost_transactions(wal: Path, valid: int) -> bool:
    """Asked after SQLite has opened the file and taken `valid` frames for good, and before anything is written."""
    if not wal.exists() or wal.stat().st_size < _HEADER.size:
        return False
    with wal.open("rb") as file:
        return _lost_behind(file, valid)


def _lost_behind(file: BinaryIO, valid: int) -> bool:
    header = file.read(_HEADER.size)
    magic, _, page_bytes, _, salt1, salt2, *checksum = _HEADER.unpack(header)
    order = ">" if magic == _BIG_ENDIAN_SUMS else "<"
    salts = (salt1, salt2)
    if not magic or _sum(header[:24], (0, 0), order) != tuple(checksum):
        # The header itself is damaged: frames that agree with each other are what it stood for.
        page_bytes, valid = _likely_page_bytes(page_bytes), 0
        first = _first_written(file, page_bytes)
        if first is None:
            return False
        salts = first.salts
    committed = False
    previous = _frame(file, valid, page_bytes) if valid else None
    number = valid + 1
    while (frame := _frame(file, number, page_bytes)) is not None:
        if frame.salts == salts:
            if committed and previous is not None and _is_whole(file, number, frame, previous, page_bytes, order):
                return True
            committed = committed or frame.pages_after_commit > 0
        previous = frame
        number += 1
    return False


def _first_written(file: BinaryIO, page_bytes: int) -> _Frame | None:
    """A file that was prepared and not used yet has none."""
    number = 1
    while (frame := _frame(file, number, page_bytes)) is not None:
        if frame.page:
            return frame
        number += 1
    return None


def _likely_page_bytes(claimed: int) -> int:
    return claimed if claimed in {1 << n for n in range(9, 17)} else 16384


def _frame(file: BinaryIO, number: int, page_bytes: int) -> _Frame | None:
    file.seek(_HEADER.size + (number - 1) * (_FRAME.size + page_bytes))
    data = file.read(_FRAME.size)
    if len(data) < _FRAME.size:
        return None
    page, pages_after_commit, salt1, salt2, sum1, sum2 = _FRAME.unpack(data)
    return _Frame(page, pages_after_commit, (salt1, salt2), (sum1, sum2))


def _is_whole(file: BinaryIO, number: int, frame: _Frame, previous: _Frame, page_bytes: int, order: str) -> bool:
    """Each checksum goes on from the one before it, as that one is written there."""
    file.seek(_HEADER.size + (number - 1) * (_FRAME.size + page_bytes))
    head = file.read(_FRAME.size)
    page = file.read(page_bytes)
    if len(page) < page_bytes:
        return False
    return _sum(page, _sum(head[:8], previous.checksum, order), order) == frame.checksum


def _sum(data: bytes, start: tuple[int, int], order: str) -> tuple[int, int]:
    one, two = start
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for position in range(0, len(words), 2):
        one = (one + words[position] + two) & _MASK
        two = (two + words[position + 1] + one) & _MASK
    return one, two
