"""A frame over one of an earlier generation, of which some sectors are left: no record of the old one is taken."""

from itertools import product

import pytest

from broker.storage.entry import Corrupted
from broker.storage.journal_frame import contents_of, encode_frame, header_at, records_of
from broker.storage.record import Record, RecordKind, value_record
from tests.fault_disk import SECTOR_BYTES
from tests.unit.storage.journal_rounds import plain

RECORDS = 12
BODY_BYTES = 48  # with it, a record begins where the second sector does


def state(letter: bytes) -> list[Record]:
    return [value_record(RecordKind.GROUP, number, letter * BODY_BYTES) for number in range(RECORDS)]


def frame(records: list[Record], sequence: int, salt: int) -> bytes:
    encoded = encode_frame(
        contents_of(records),
        flags=0,
        salt=salt,
        segment=sequence,
        sequence=sequence,
        replay_from=0,
        starts=1,
        previous=0,
    )
    return b"".join(encoded.parts)


def test_the_frame_tells_records_with_other_values_apart() -> None:
    assert contents_of(state(b"a")).headers_crc != contents_of(state(b"b")).headers_crc


def test_sectors_of_an_earlier_generation_are_noticed() -> None:
    old, new = frame(state(b"a"), 5, 1), frame(state(b"b"), 9, 2)
    sectors = range(0, len(new), SECTOR_BYTES)
    used = 3
    for kept in product((False, True), repeat=used - 1):
        pieces = (old, new)
        choice = [True, *kept, *([True] * (len(sectors) - used))]
        data = b"".join(pieces[is_new][at : at + SECTOR_BYTES] for at, is_new in zip(sectors, choice, strict=True))
        header = header_at(data, 0)
        assert header is not None
        if all(kept):
            assert plain(records_of(data, 0, header, with_bodies=True)) == plain(state(b"b"))
        else:
            with pytest.raises(Corrupted):
                records_of(data, 0, header, with_bodies=True)
