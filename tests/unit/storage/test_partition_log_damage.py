"""Bits that changed, files that were cut or lost: noticed, or without effect."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from broker.storage.disk import DiskError
from broker.storage.entry import Corrupted, Entry
from broker.storage.group import LogPosition
from broker.storage.log_view import LogView
from broker.storage.open_files import OpenFiles
from broker.storage.partition_log import PartitionLog
from tests.fault_disk import FaultDisk
from tests.logs import GROUP, append, cut_before, messages, noop, plain, plain_all, use_view_once, write

SEGMENT_BYTES = 300


def stored_log(first: bytes = b"first") -> tuple[FaultDisk, LogPosition, list[Entry]]:
    """Three files, synced."""
    disk = FaultDisk()
    log = PartitionLog(OpenFiles(disk), GROUP, segment_bytes=SEGMENT_BYTES)
    log.recover(None, None)
    entries: list[Entry] = []
    for number in range(8):
        tail = log.tail
        made = noop(tail, term=2) if number == 3 else messages(tail, first + b"%d" % number * 3, term=2, time=number)
        entries.append(replace(made, head=made.head[:10], dedup_records=b"d" * (number % 2)))
        write(log, entries[-1:])
    position = log.sync()
    assert len(file_names(disk)) == 6
    return disk, position, entries


def file_names(disk: FaultDisk) -> list[str]:
    return [f"partitions/7/{name}" for name in disk.names("partitions/7")]


def started(disk: FaultDisk, position: LogPosition) -> PartitionLog:
    log = PartitionLog(OpenFiles(disk), GROUP, segment_bytes=SEGMENT_BYTES)
    log.recover(position, None)
    return log


def check_reads(log: PartitionLog, entries: list[Entry]) -> int:
    """Every read is right or says that it cannot be; how many could not."""
    failed = 0
    end_bytes = 0
    for entry in entries:
        end_bytes += entry.size_bytes
        fields = (entry.term, entry.append_time, entry.base_offset, end_bytes)
        for read, expected in (
            (lambda entry=entry: plain(log.at_index(entry.index)), entry),
            (lambda entry=entry: log.fields(entry.index), fields),
            (lambda entry=entry: plain(log.at_offset(entry.base_offset)), entry if entry.count else None),
            (lambda entry=entry: log.first_ending_beyond(log.tail_at(entry.index).end_bytes - 1, 9), entry.index),
        ):
            if expected is None:
                continue
            try:
                found = read()
            except Corrupted:
                failed += 1
            else:
                if expected is not entry.index or entry.size_bytes:
                    assert found == expected
    try:
        assert plain_all(list(log.stream(1, 1))) == entries
    except Corrupted:
        failed += 1
    return failed


def scrub(log: PartitionLog) -> None:
    at: int | None = 1
    while at is not None:
        at = log.scrub(at, 100)


def noticed(disk: FaultDisk, position: LogPosition, entries: list[Entry]) -> bool:
    """Whether a start or the scrubber notices; what is read is right in any case."""
    try:
        log = started(disk, position)
    except Corrupted:
        return True
    check_reads(log, entries)
    try:
        scrub(log)
    except Corrupted:
        return True
    return False


EVERY_BIT = [pytest.param(9, id="a bit of most bytes"), pytest.param(1, id="every bit", marks=pytest.mark.exhaustive)]


@pytest.mark.parametrize("step", EVERY_BIT)
def test_every_bit_of_a_segment_is_covered(step: int) -> None:
    disk, position, entries = stored_log()
    assert not noticed(disk.copy(), position, entries)
    for name in file_names(disk):
        if name.endswith(".log"):
            for bit in range(0, 8 * len(disk.contents(name)), step):
                copy = disk.copy()
                copy.flip(name, bit)
                assert noticed(copy, position, entries), f"bit {bit} of {name}"


@pytest.mark.parametrize("step", EVERY_BIT)
def test_no_bit_of_an_index_does_harm(step: int) -> None:
    disk, position, entries = stored_log()
    for name in file_names(disk):
        if name.endswith(".idx"):
            for bit in range(0, 8 * len(disk.contents(name)), step):
                copy = disk.copy()
                copy.flip(name, bit)
                log = started(copy, position)
                assert check_reads(log, entries) == 0
                scrub(log)


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_a_file_that_is_cut_short_is_noticed_or_without_effect(step: int) -> None:
    disk, position, entries = stored_log()
    for name in file_names(disk):
        for size in range(0, len(disk.contents(name)), step):
            copy = disk.copy()
            copy.open(name).truncate(size)
            was_noticed = noticed(copy, position, entries)
            assert was_noticed == name.endswith(".log")


def test_a_missing_file_is_noticed_or_without_effect() -> None:
    disk, position, entries = stored_log()
    for name in file_names(disk):
        copy = disk.copy()
        copy.remove(name)
        assert noticed(copy, position, entries) == name.endswith(".log")


def test_the_file_of_another_group_is_noticed() -> None:
    disk, position, _ = stored_log()
    disk.rename("partitions/7", "partitions/8")
    log = PartitionLog(OpenFiles(disk), replace(GROUP, group_id=8), segment_bytes=SEGMENT_BYTES)
    with pytest.raises(Corrupted):
        log.recover(position, None)


def test_an_index_of_another_time_is_made_again() -> None:
    """Its entries are sound, but of entries that were replaced: as after a power failure."""
    disk = FaultDisk()
    log = PartitionLog(OpenFiles(disk), GROUP)
    log.recover(None, None)
    append(log, [bytes(20_000)] * 10)
    log.sync()
    name = next(name for name in file_names(disk) if name.endswith(".idx"))
    old = disk.contents(name)
    tail = log.tail_before(2)
    write(log, [messages(tail, b"other" * 5000, term=3)])
    append(log, [bytes(19_000)] * 12, term=3)
    position = log.sync()
    expected = plain_all(list(log.stream(1, 1)))
    assert disk.contents(name) != old
    disk.overwrite(name, old)
    log = PartitionLog(OpenFiles(disk), GROUP)
    log.recover(position, None)
    assert [plain(log.at_index(entry.index)) for entry in expected] == expected
    assert [plain(log.at_offset(entry.base_offset)) for entry in expected] == expected
    append(log, [b"more"])
    position = log.sync()
    assert plain(started(disk, position).at_index(5)) == expected[4]


def test_an_io_error_is_not_damage() -> None:
    disk, position, _ = stored_log()
    log = started(disk, position)

    def fail(at: int, size: int) -> bytes:
        raise DiskError("the disk does not answer")

    with log._files.pinned(file_names(disk)[0]) as file:
        file.read = fail  # type: ignore[method-assign]
    with pytest.raises(DiskError):
        log.at_index(1)


def test_a_cut_during_a_search_is_not_damage() -> None:
    disk, position, _ = stored_log()
    log = started(disk, position)
    view = log._view()
    cut_before(log, 8)
    log.remove_below()
    for read, expected in (
        (lambda: log.fields(2), None),
        (lambda: log.first_appended_since(1, 9), 8),
        (lambda: log.from_index(2, 1000), []),
        (lambda: log.at_offset(1), None),
        (lambda: log.place_of(1), None),
        (lambda: log.tail_at(2), log.group.start),
    ):
        use_view_once(log, view)
        assert read() == expected


def test_a_read_that_began_before_a_suffix_was_replaced_is_repeated() -> None:
    log = started(FaultDisk(), LogPosition(0, 0, GROUP.start, ()))
    append(log, [b"old" * 50] * 12)
    log.flush(1 << 20)
    view = log._view()
    other = messages(log.tail_before(3), b"new" * 49, term=2)
    write(log, [other])
    log.flush(1 << 20)
    append(log, [b"newer"] * 12, term=2)
    log.flush(1 << 20)
    use_view_once(log, view)
    assert plain_all(log.from_index(3, 0)) == [other]
    use_view_once(log, view)
    assert [entry.term for entry in log.from_index(3, 1 << 20)] == [2] * 13


def test_a_run_does_not_mix_what_was_there_before_and_after_a_replacement() -> None:
    log = started(FaultDisk(), LogPosition(0, 0, GROUP.start, ()))
    append(log, [b"o" * 60] * 9)
    log.flush(1 << 20)
    following = log._view().segments[1].first_index
    source = log._source
    places: list[int] = []

    def replaced_before(view: LogView, index: int, end_index: int, max_bytes: int) -> Iterable[Entry]:
        if index == following and following not in places:
            write(log, [messages(log.tail_before(following - 1), b"n" * 60, term=2)])
            append(log, [b"n" * 60] * 5, term=2)
            log.flush(1 << 20)
        places.append(index)
        return source(view, index, end_index, max_bytes)

    log._source = replaced_before  # type: ignore[method-assign]
    found = log.from_index(following - 1, 1 << 20)
    assert {entry.term for entry in found} == {2}
    assert places.count(following) == 2


def test_files_of_another_history_are_noticed() -> None:
    """They are sound, but not what was synced."""
    disk, _, _ = stored_log()
    other, position, _ = stored_log(first=b"other")
    assert [len(disk.contents(name)) for name in file_names(disk)] == [
        len(other.contents(n)) for n in file_names(other)
    ]
    with pytest.raises(Corrupted):
        started(disk, position)
