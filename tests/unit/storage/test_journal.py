"""What was appended to the journal is there again after a start, in order."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.storage.disk import Disk, NoSpace
from broker.storage.journal import Journal, JournalFull
from broker.storage.memory_disk import MemoryDisk
from broker.storage.real_disk import RealDisk
from tests.fault_disk import FaultDisk
from tests.unit.storage.journal_rounds import SEGMENT_BYTES, entry, plain, recovered, started, state


@pytest.fixture(params=["real", "memory", "fault"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    made: RealDisk | MemoryDisk | FaultDisk
    if request.param == "real":
        made = RealDisk(tmp_path / "data")
    else:
        made = MemoryDisk() if request.param == "memory" else FaultDisk()
    yield made
    made.close()


def test_a_new_journal_is_empty(disk: Disk) -> None:
    journal = Journal(disk)
    recovery = journal.recover()
    assert (recovery.empty, recovery.damage, recovery.starts, recovery.sequence) == (True, None, 0, 0)
    assert list(recovery.frames) == []


def test_frames_come_back_as_they_were_written(disk: Disk) -> None:
    store = started(disk, segment_bytes=1 << 20)
    sent = [
        [state(1, b"one")],
        [entry(1, 1, b""), entry(1, 2, b"x" * 10), entry(2, 1, b"y" * 5000, b"dedup" * 10)],
        [],
        [entry(1, index, os.urandom(index)) for index in range(3, 600)],
        [entry(1, index, os.urandom(4096), b"d" * 5000) for index in range(600, 610)],
        [entry(1, 700, os.urandom(store.journal.max_frame_bytes - 64))],
    ]
    sequences = [store.append(records) for records in sent]
    assert sequences == list(range(3, 9)), "after the head and the frame that repeats it"
    store.journal.close()
    journal = Journal(disk, segment_bytes=1 << 20)
    recovery = journal.recover()
    frames = list(recovery.frames)
    assert [plain(frame.records) for frame in frames] == [[], [], *map(plain, sent)]
    assert [frame.is_head for frame in frames] == [True, *[False] * 7]
    assert [frame.sequence for frame in frames] == list(range(1, 9))
    assert (recovery.empty, recovery.damage, recovery.starts, recovery.sequence) == (False, None, 1, 8)
    journal.close()


def test_a_frame_that_is_too_large_is_refused(disk: Disk) -> None:
    store = started(disk)
    with pytest.raises(ValueError, match="is the most"):
        store.append([entry(1, 1, bytes(store.journal.max_frame_bytes - 63))])
    store.journal.close()


def test_segments_are_written_over_when_they_were_released(disk: Disk) -> None:
    store = started(disk)
    for index in range(1, 200):
        assert store.journal.has_room(7000)
        store.append([entry(1, index, bytes([index]) * 7000), state(index % 5, b"%d" % index)])
        store.sync()
        while store.journal.prepare():
            """As upkeep does."""
    assert len([name for name in disk.names() if name.startswith("journal")]) == 4
    store.append([entry(1, 200, b"last")])
    store.journal.close()
    again, recovery = recovered(disk)
    assert again.held.values == {index % 5: b"%d" % index for index in range(195, 200)}
    assert again.held.entries[1, 200] == b"last"
    assert recovery.damage is None
    assert recovery.sequence == store.journal.sequence
    again.journal.close()


@pytest.mark.parametrize("max_segments", [3, 4, 6])
def test_a_journal_that_is_not_released_is_full_and_heals(disk: Disk, max_segments: int) -> None:
    store = started(disk, max_segments=max_segments)
    for _ in range(3):
        index = 1
        while store.journal.has_room(7000):
            store.append([entry(1, index, bytes([index]) * 7000)])
            store.journal.prepare()
            index += 1
        with pytest.raises(JournalFull):
            store.append([entry(1, index, bytes(7000))])
        assert store.journal.spare_segments == 1
        assert len([name for name in disk.names() if name.startswith("journal")]) == max_segments
        again, recovery = recovered(disk, max_segments=max_segments)
        assert recovery.damage is None
        assert again.held.entries | store.held.entries == again.held.entries, "what was synced may come too"
        again.journal.close()
        store.sync()
        assert store.journal.has_room(7000)
        store.append([entry(1, index, bytes(7000))])
        store.sync()
        store.journal.prepare()
    store.journal.close()


def test_entries_of_a_segment_are_bounded(disk: Disk) -> None:
    store = started(disk, max_segment_entries=10)
    first = store.journal.segment
    for index in range(1, 12):
        store.append([entry(1, index, b"x")])
        store.sync()
        store.journal.prepare()
    assert store.journal.segment == first + 1
    store.journal.close()


@pytest.mark.parametrize("syncs", [False, True])
def test_starts_one_after_the_other(disk: Disk, syncs: bool) -> None:
    """Without a sync of partition files in between, everything is there each time, in ever more segments."""
    expected: dict[tuple[int, int], bytes] = {}
    for number in range(1, 12):
        store = started(disk)
        assert store.journal.starts == number
        assert store.held.entries | expected == store.held.entries
        if syncs:
            store.sync()
            expected.clear()
        store.append([entry(1, number, b"%d" % number)])
        expected[1, number] = b"%d" % number
        store.journal.prepare()
        store.journal.close()
    assert (len([name for name in disk.names() if name.startswith("journal")]) <= 4) == syncs


def test_a_full_disk_is_met_at_the_same_position() -> None:
    disk = MemoryDisk(3 * SEGMENT_BYTES)
    store = started(disk)
    assert store.journal.prepare()
    assert store.journal.spare_segments == 2
    index = 1
    while store.journal.spare_segments == 2:
        store.append([entry(1, index, bytes(7000))])
        index += 1
    with pytest.raises(NoSpace):
        store.journal.prepare()
    assert sorted(disk.names()) == ["journal-0", "journal-1", "journal-2"]
    store.append([entry(1, index, b"x")])
    store.journal.close()
    again, _ = recovered(disk)
    assert again.held.entries == store.held.entries
    again.journal.close()


def test_zeros_go_to_what_was_never_written(disk: Disk) -> None:
    store = started(disk)
    store.append([entry(1, 1, b"x" * 5000)])
    store.journal.prepare()
    pieces = 0
    while store.journal.prefill(16 << 10):
        pieces += 1
    assert pieces == (2 * 4 if disk.prefills else 0)
    store.journal.close()
    again, recovery = recovered(disk)
    assert (again.held.entries, recovery.damage) == ({(1, 1): b"x" * 5000}, None)
    again.journal.close()


def test_the_size_of_segments_may_change_between_starts(disk: Disk) -> None:
    values: dict[int, bytes] = {}
    for number, size in enumerate((SEGMENT_BYTES, 2 * SEGMENT_BYTES, SEGMENT_BYTES // 2, SEGMENT_BYTES)):
        store = started(disk, size)
        assert store.held.values == values
        for index in range(40):
            values[index % 3] = b"%d %d" % (number, index)
            store.append([entry(1, index, b"x" * 3000), state(index % 3, values[index % 3])])
            store.sync()
            while store.journal.prepare():
                """As upkeep does."""
        store.journal.close()
        files = [disk.open(name) for name in disk.names() if name.startswith("journal")]
        assert {file.size_bytes for file in files} == {size}
        for file in files:
            file.close()
