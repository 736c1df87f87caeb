"""What the log of a partition promises on every disk."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from broker.storage.disk import Disk
from broker.storage.entry import Entry
from broker.storage.memory_disk import MemoryDisk
from broker.storage.open_files import OpenFiles
from broker.storage.partition_log import PartitionLog
from broker.storage.real_disk import RealDisk
from tests.logs import GROUP, append, cut_before, messages, noop, plain, plain_all, write

MakeLog = Callable[..., PartitionLog]


@pytest.fixture(params=["real", "memory"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    if request.param == "memory":
        yield MemoryDisk(None)
        return
    real = RealDisk(tmp_path / "data")
    yield real
    real.close()


@pytest.fixture
def files(disk: Disk) -> Iterator[OpenFiles]:
    opened = OpenFiles(disk, limit=8)
    yield opened
    opened.close()


@pytest.fixture(params=["in memory", "flushed", "flushed in part", "started again"])
def make_log(request: pytest.FixtureRequest, files: OpenFiles) -> MakeLog:
    """A log with these entries, wherever they are stored."""

    def make(entries: list[Entry], *, segment_bytes: int = 1000) -> PartitionLog:
        log = PartitionLog(files, GROUP, segment_bytes=segment_bytes)
        assert log.recover(None, None) == 1
        for entry in entries:
            write(log, [entry])
        if request.param == "flushed":
            while log.flush(500):
                pass
        elif request.param == "flushed in part":
            log.flush(sum(entry.size_bytes + 64 for entry in entries) // 2)
        elif request.param == "started again":
            position = log.sync()
            log.close()
            log = PartitionLog(files, GROUP, segment_bytes=segment_bytes)
            log.recover(position, None)
        return log

    return make


def some_entries(count: int, size: int = 50) -> list[Entry]:
    entries: list[Entry] = []
    tail = GROUP.start
    for number in range(count):
        if number % 5 == 3:
            entries.append(noop(tail, term=1 + number // 10))
        else:
            entries.append(
                messages(tail, b"%d" % number * size, count=1 + number % 3, term=1 + number // 10, time=100 * number)
            )
        tail = tail.after(entries[-1])
    return entries


def test_entries_are_found_by_index(make_log: MakeLog) -> None:
    entries = some_entries(40)
    log = make_log(entries)
    tail = GROUP.start
    for entry in entries:
        tail = tail.after(entry)
        assert plain(log.at_index(entry.index)) == entry
        assert log.tail_at(entry.index) == tail
        assert log.fields(entry.index) == (entry.term, entry.append_time, entry.base_offset, tail.end_bytes)
    assert log.tail == tail
    assert log.tail_at(0) == GROUP.start
    assert log.at_index(0) is None
    assert log.at_index(41) is None
    assert log.fields(41) is None


def test_entries_are_found_by_offset(make_log: MakeLog) -> None:
    entries = some_entries(40)
    log = make_log(entries)
    end_bytes = 0
    for entry in entries:
        for offset in range(entry.base_offset, entry.end_offset):
            assert plain(log.at_offset(offset)) == entry
            assert log.place_of(offset) == (end_bytes, entry.append_time)
            following = [later for later in entries[entry.index - 1 :] if later.count]
            assert plain_all(log.from_offset(offset, 40, 1 << 20)) == following
            assert plain_all(log.from_offset(offset, entry.index, 1 << 20)) == [entry]
        end_bytes += entry.size_bytes


def test_a_run_ends_with_the_size(make_log: MakeLog) -> None:
    entries = some_entries(40)
    log = make_log(entries)
    for first in (1, 2, 17, 39, 40):
        for size in (0, 1, 150, 400, 3000, 1 << 20):
            found = log.from_index(first, size)
            assert plain_all(found) == entries[first - 1 : first - 1 + len(found)]
            assert found
            assert len(found) == 1 or sum(entry.size_bytes for entry in found) <= size
        assert plain_all(log.from_index(first, 1 << 20)) == entries[first - 1 :]
    assert log.from_index(41, 1 << 20) == []


def test_entries_are_found_by_time_and_size(make_log: MakeLog) -> None:
    entries = some_entries(40)
    log = make_log(entries)
    end_bytes = [log.tail_at(entry.index).end_bytes for entry in entries]
    for timestamp in range(-50, 4100, 50):
        later = [entry.index for entry in entries if entry.append_time >= timestamp]
        assert log.first_appended_since(timestamp, 41) == (later[0] if later else 41)
        assert log.first_appended_since(timestamp, 7) == min(later[0] if later else 7, 7)
    for size in range(0, end_bytes[-1] + 200, 37):
        beyond = [index for index, end in enumerate(end_bytes, 1) if end > size]
        assert log.first_ending_beyond(size, 41) == (beyond[0] if beyond else 41)


def test_terms_are_runs(make_log: MakeLog) -> None:
    log = make_log(some_entries(40))
    assert log.terms(40) == ((1, 1), (11, 2), (21, 3), (31, 4))
    assert log.terms(11) == ((1, 1), (11, 2))
    assert log.terms(10) == ((1, 1),)
    assert log.terms(0) == ()
    cut_before(log, 15)
    assert log.terms(40) == ((15, 2), (21, 3), (31, 4))


def test_the_stream_has_the_bodies_that_are_wanted(make_log: MakeLog) -> None:
    entries = some_entries(40)
    log = make_log(entries)
    for first, bodies_from in ((1, 1), (1, 41), (5, 20), (40, 1)):
        found = list(log.stream(first, bodies_from))
        assert [entry.index for entry in found] == list(range(first, 41))
        for entry in found:
            wanted = entries[entry.index - 1]
            if entry.index >= bodies_from or entry.body:
                assert plain(entry) == wanted
            else:
                assert entry == replace(wanted, body=b"")


def test_large_and_small_entries_mix(make_log: MakeLog) -> None:
    tail = GROUP.start
    entries: list[Entry] = []
    for number in range(30):
        size = (10, 200_000, 40_000, 3)[number % 4]
        dedup = bytes([number]) * (100_000 if number == 10 else 0)
        entries.append(messages(tail, bytes([number]) * size, dedup=dedup))
        tail = tail.after(entries[-1])
    log = make_log(entries, segment_bytes=1 << 20)
    assert plain_all(list(log.stream(1, 1))) == entries
    assert [entry.index for entry in log.stream(1, 100)] == list(range(1, 31))
    for entry in entries:
        assert plain(log.at_index(entry.index)) == entry
        assert plain(log.from_offset(entry.base_offset, 30, 1 << 20)[0]) == entry
        assert log.tail_at(entry.index).next_index == entry.index + 1


@pytest.mark.parametrize("first", [40, 21, 12, 1])
def test_a_conflicting_suffix_is_replaced(make_log: MakeLog, first: int) -> None:
    entries = some_entries(40)
    log = make_log(entries)
    tail = log.tail_before(first)
    other = messages(tail, b"other", term=9)
    write(log, [other], segment=2)
    expected = [*entries[: first - 1], other]
    assert plain_all(list(log.stream(1, 1))) == expected
    log.flush(1 << 20)
    log.flush(1 << 20)
    assert log.unflushed_bytes == 0
    assert plain_all(list(log.stream(1, 1))) == expected
    assert log.tail_at(first - 1) == tail
    assert log.terms(first)[-1] == (first, 9)
    assert log.at_index(first + 1) is None
    append(log, [b"more"] * 10)
    position = log.sync()
    log.recover(position, None)
    assert plain_all(list(log.stream(1, 1)))[: len(expected)] == expected
    assert log.tail.next_index == first + 11
