"""What was synced once and is not readable any more is damage, and is found. For a bad head there is the one before."""

import random
from collections.abc import Iterator

import pytest

from broker.storage.disk import PAGE_BYTES, DiskError
from broker.storage.journal_frame import FrameHeader, header_at, headers_in
from broker.storage.journal_slots import ASIDE
from tests.fault_disk import Fault, FaultDisk, PowerLoss
from tests.unit.storage.journal_rounds import (
    SMALL_SEGMENT_BYTES,
    Held,
    begin,
    recovered,
    small_journal,
    small_round,
    started,
)


def frames_in(disk: FaultDisk) -> list[tuple[str, int, FrameHeader]]:
    found = [(name, at, header) for name in disk.names() for at, header in headers_in(disk.contents(name))]
    return sorted(found, key=lambda place: (place[2].sequence, place[2].segment))


def written_bits(disk: FaultDisk) -> Iterator[tuple[str, int]]:
    """Of all frames but the last, of older generations too, and some of the padding behind each."""
    for name, at, header in frames_in(disk)[:-1]:
        end = at + header.size_bytes
        yield from ((name, bit) for bit in range(at * 8, end * 8))
        yield from ((name, byte * 8) for byte in range(end, at + PAGE_BYTES, 509))


def journals() -> Iterator[tuple[FaultDisk, Held]]:
    """Young and old, with one start and several, entries synced and not."""
    for rounds, sync_every in ((1, 100), (9, 3), (30, 4), (31, 1)):
        disk = FaultDisk()
        yield disk, small_journal(disk, rounds, sync_every).held
    disk = FaultDisk()
    store = small_journal(disk, 6, 2)
    for number in range(40, 43):
        store = started(disk, SMALL_SEGMENT_BYTES)
        store.append(small_round(number))
    yield disk, store.held


@pytest.mark.parametrize("every", [29, pytest.param(1, marks=[pytest.mark.exhaustive, pytest.mark.timeout(600)])])
def test_every_single_bit_is_noticed_or_harmless(every: int) -> None:
    flips = noticed = 0
    for disk, held in journals():
        for number, (name, bit) in enumerate(written_bits(disk)):
            if number % every:
                continue
            disk.flip(name, bit)
            found, _ = recovered(disk, SMALL_SEGMENT_BYTES)
            disk.flip(name, bit)
            assert found.damage is not None or held.is_given_back_by(found), (name, divmod(bit, 8))
            flips += 1
            noticed += found.damage is not None
    assert flips > 40_000 / every
    assert noticed > flips / 4


@pytest.mark.parametrize("what", ["zeros", "noise"])
def test_every_page_lost_is_noticed_or_harmless(what: str) -> None:
    chance = random.Random(3)
    noticed = 0
    for disk, held in journals():
        for name, at, _ in frames_in(disk)[:-1]:
            copy = disk.copy()
            copy.overwrite(name, bytes(PAGE_BYTES) if what == "zeros" else chance.randbytes(PAGE_BYTES), at)
            found, recovery = recovered(copy, SMALL_SEGMENT_BYTES)
            assert found.damage is not None or held.is_given_back_by(found)
            noticed += found.damage is not None
            if recovery.damage is not None:
                shows_again(copy)
    assert noticed > 10


def shows_again(disk: FaultDisk) -> None:
    """A start after damage goes on behind it; should its first head be lost, the damage is not forgotten."""
    store, recovery = recovered(disk, SMALL_SEGMENT_BYTES)
    places = dict(store.places)
    begin(store, recovery)
    store.append(small_round(50))
    found, recovery = recovered(disk, SMALL_SEGMENT_BYTES)
    assert recovery.damage is None
    assert store.held.is_given_back_by(found)
    assert places.items() <= found.places.items()
    again = started(disk, SMALL_SEGMENT_BYTES)
    again.append(small_round(51))
    found, recovery = recovered(disk, SMALL_SEGMENT_BYTES)
    assert recovery.damage is None
    assert again.held.is_given_back_by(found)
    if places:
        name, _ = header_of_head(disk, store.journal.segment)
        disk.flip(name, 0)
        _, recovery = recovered(disk, SMALL_SEGMENT_BYTES)
        assert recovery.damage is not None


def test_every_file_lost_is_noticed_or_harmless() -> None:
    noticed = 0
    for disk, held in journals():
        for name in disk.names():
            copy = disk.copy()
            copy.remove(name)
            found, recovery = recovered(copy, SMALL_SEGMENT_BYTES)
            is_alone = len({header.segment for _, _, header in frames_in(disk)}) == 1
            last = frames_in(disk)[-1]
            assert recovery.damage or held.is_given_back_by(found) or is_alone or last[0] == name
            noticed += recovery.damage is not None
    assert noticed


def test_a_bad_head_falls_back_to_the_one_before() -> None:
    disk = FaultDisk()
    store = small_journal(disk, 30, 1)
    store.append(small_round(31))
    segment = store.journal.segment
    while header_of_head(disk, segment)[1].sequence == store.journal.sequence:
        store.append(small_round(32))
    name, head = header_of_head(disk, segment)
    for at in (0, 5, 12, 60, 70, head.size_bytes - 1):
        copy = disk.copy()
        copy.flip(name, at * 8)
        found, recovery = recovered(copy, SMALL_SEGMENT_BYTES)
        assert recovery.damage is None
        assert store.held.is_given_back_by(found)
        begin(found, recovery)
        found.append(small_round(33))
        again, recovery = recovered(copy, SMALL_SEGMENT_BYTES)
        assert recovery.damage is None
        assert found.held.is_given_back_by(again)


def header_of_head(disk: FaultDisk, segment: int) -> tuple[str, FrameHeader]:
    found = ((name, header_at(disk.contents(name)[:PAGE_BYTES], 0)) for name in disk.names())
    return next((name, header) for name, header in found if header is not None and header.segment == segment)


def test_the_head_of_a_start_may_turn_bad() -> None:
    """What the start itself added is not lost with it."""
    disk = FaultDisk()
    small_journal(disk, 7, 100)
    store, recovery = recovered(disk, SMALL_SEGMENT_BYTES)
    store.held.values[77] = b"new with this start"
    begin(store, recovery)
    name, _ = header_of_head(disk, store.journal.segment)
    disk.flip(name, 100)
    found, recovery = recovered(disk, SMALL_SEGMENT_BYTES)
    assert recovery.damage is None
    assert recovery.starts == store.journal.starts
    assert found.held.values[77] == b"new with this start"
    assert store.held.is_given_back_by(found)


def test_a_header_that_follows_is_enough_to_call_it_damage() -> None:
    """The frame after it was torn, but it was begun: so the one before had been synced."""
    disk = FaultDisk()
    store = small_journal(disk, 1)
    disk.faults = {disk.calls + 1: Fault.POWER_LOSS}
    with pytest.raises(PowerLoss):
        store.append(small_round(2, b"x" * 40))
    first_sector = min(sector for _, sector in disk.unsynced())
    lost = disk.after_power_loss(lambda _, sector: sector == first_sector)
    found, recovery = recovered(lost, SMALL_SEGMENT_BYTES)
    assert recovery.damage is None
    assert store.held.is_given_back_by(found)
    name, at, header = frames_in(lost)[-2]
    assert header.sequence == store.journal.sequence
    lost.flip(name, (at + 70) * 8)
    found, recovery = recovered(lost, SMALL_SEGMENT_BYTES)
    assert recovery.damage is not None
    assert f"frame {header.sequence} " in recovery.damage


def test_an_unreadable_sector_is_not_damage() -> None:
    class Unreadable(FaultDisk):
        def check(self) -> None:
            if self.calls > calls:
                raise DiskError("input/output error")

    disk = Unreadable()
    calls = 1 << 30
    small_journal(disk, 5)
    calls = 0
    with pytest.raises(DiskError):
        recovered(disk, SMALL_SEGMENT_BYTES)


def test_nothing_is_written_over_after_damage() -> None:
    disk = FaultDisk()
    store = small_journal(disk, 20, 1)
    segment = store.journal.segment
    while store.journal.segment == segment or frames_in(disk)[-2][2].is_head:
        store.append(small_round(21))
    store.append(small_round(22))
    name, at, _ = frames_in(disk)[-2]
    disk.flip(name, (at + 70) * 8)
    before = {name: disk.contents(name) for name in disk.names()}
    found, recovery = recovered(disk, SMALL_SEGMENT_BYTES)
    assert recovery.damage is not None
    begin(found, recovery)
    for number in range(60, 80):
        found.append(small_round(number))
        found.sync()
        found.journal.prepare()
    kept = [disk.contents(f"{ASIDE}/{name}") for name in disk.names(ASIDE)]
    assert sorted(kept) == sorted(data for data in before.values() if any(data))
    assert len(kept) >= 3
    again, recovery = recovered(disk, SMALL_SEGMENT_BYTES)
    assert recovery.damage is None
    assert found.held.is_given_back_by(again)
