"""The disks behind storage: the same files on each, and what only one of them has."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker.storage.disk import Disk, DiskError, NoSpace, StorageRefused
from broker.storage.memory_disk import MemoryDisk
from broker.storage.real_disk import RealDisk, file_system_of
from tests.fault_disk import SIZE, Fault, FaultDisk, PowerLoss


@pytest.fixture(params=["real", "memory", "fault"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    made = RealDisk(tmp_path / "data") if request.param == "real" else _in_memory(request.param)
    yield made
    made.close()


def _in_memory(kind: str) -> MemoryDisk | FaultDisk:
    return MemoryDisk() if kind == "memory" else FaultDisk()


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("parts", [1, 3, 1024, 1025, 5000])
def test_all_parts_are_written_at_their_place(disk: Disk, parts: int, sync: bool) -> None:
    file = disk.open("a", create=True)
    data = [bytes([number % 251]) * (number % 7) for number in range(parts)]
    file.write([b"before"], 0)
    file.write(data, 3, sync=sync)
    assert file.read(0, 100_000) == b"bef" + (b"".join(data) or b"ore")
    assert file.read(4, 2) == (b"bef" + (b"".join(data) or b"ore"))[4:6]
    assert file.read(100_000, 5) == b""
    file.close()
    file.close()


@pytest.mark.parametrize("disk", ["real", "memory"], indirect=True)
def test_short_writes_are_continued(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwritev
    calls: list[int] = []

    def short(descriptor: int, parts: list[memoryview], at: int, flags: int = 0) -> int:
        calls.append(flags)
        return real(descriptor, [memoryview(b"".join(parts))[:1000]], at, flags)

    monkeypatch.setattr(os, "pwritev", short)
    file = disk.open("a", create=True)
    data = [os.urandom(number) for number in range(150)]
    file.write(data, 5, sync=True)
    assert len(calls) > 10
    assert file.read(5, 100_000) == b"".join(data)
    file.close()


def test_files_are_made_named_moved_and_removed(disk: Disk) -> None:
    with pytest.raises(FileNotFoundError):
        disk.open("a")
    with pytest.raises(FileNotFoundError):
        disk.rename("a", "b")
    disk.remove("a")
    assert disk.names("folder") == []
    for name in ("x/1/log", "x/1/index", "x/2/log"):
        file = disk.open(name, create=True)
        file.write([name.encode()], 0)
        file.close()
    disk.sync_folder("x/1")
    assert sorted(disk.names("x/1")) == ["index", "log"]
    disk.rename("x/1", "aside/1")
    assert (disk.names("x"), sorted(disk.names("aside/1"))) == (["2"], ["index", "log"])
    disk.rename("aside/1/log", "x/2/log")
    kept = disk.open("x/2/log")
    assert kept.read(0, 20) == b"x/1/log"
    disk.remove("x")
    assert disk.names("x") == []
    assert kept.read(0, 20) == b"x/1/log", "a file that is open outlives its name"
    kept.close()


def test_truncate_and_allocate(disk: Disk) -> None:
    file = disk.open("a", create=True)
    file.allocate(10_000)
    assert file.size_bytes == 10_000
    file.write([b"abc"], 0)
    file.truncate(2)
    assert (file.size_bytes, file.read(0, 10)) == (2, b"ab")
    file.sync()
    file.drop_cache(0, 4096)
    assert file.read(0, 10) == b"ab"
    file.close()


@pytest.mark.parametrize("make", [MemoryDisk, lambda limit: FaultDisk(limit_bytes=limit)])
def test_a_disk_in_memory_ends_where_its_limit_is(make: Callable[[int], MemoryDisk | FaultDisk]) -> None:
    disk = make(10_000)
    file = disk.open("a", create=True)
    file.write([bytes(9_000)], 0)
    with pytest.raises(NoSpace):
        file.write([bytes(2_000)], 9_000)
    assert disk.free_bytes() == 1_000
    with pytest.raises(NoSpace):
        disk.open("b", create=True).allocate(2_000)
    file.write([b"x" * 2_000], 8_000)
    file.truncate(5_000)
    assert disk.free_bytes() == 5_000
    disk.remove("a")
    file.close()
    assert disk.free_bytes() == 10_000


@pytest.mark.parametrize(
    ("number", "raised"), [(errno.ENOSPC, NoSpace), (errno.EDQUOT, NoSpace), (errno.EIO, DiskError)]
)
def test_errors_of_the_system_have_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, raised: type[Exception]
) -> None:
    def fail(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    disk = RealDisk(tmp_path)
    file = disk.open("a", create=True)
    with monkeypatch.context() as broken:
        for name in ("pwritev", "pread", "fdatasync", "ftruncate", "posix_fallocate"):
            broken.setattr(os, name, fail)
        for call in (
            lambda: file.write([b"x"], 0, sync=True),
            lambda: file.read(0, 1),
            file.sync,
            lambda: file.truncate(0),
            lambda: file.allocate(1),
        ):
            with pytest.raises(raised, match=os.strerror(number)):
                call()
    file.close()
    disk.close()


def test_a_folder_belongs_to_one_disk_at_a_time(tmp_path: Path) -> None:
    first = RealDisk(tmp_path / "data")
    with pytest.raises(StorageRefused, match="in use"):
        RealDisk(tmp_path / "data")
    first.close()
    first.close()
    RealDisk(tmp_path / "data").close()


def test_the_kernel_names_the_file_system(tmp_path: Path) -> None:
    assert file_system_of(Path("/proc/self")) == "proc"
    assert file_system_of(tmp_path)


def test_power_loss_reverts_any_unsynced_sectors() -> None:
    disk = FaultDisk()
    file = disk.open("a", create=True)
    disk.sync_folder()
    file.write([b"1" * 2048], 0, sync=True)
    file.write([b"2" * 2048], 1024)
    assert disk.unsynced() == [("a", SIZE), *(("a", sector) for sector in range(2, 6))]
    assert disk.after_power_loss().contents("a") == b"1" * 2048
    kept = disk.after_power_loss(lambda _, sector: sector in (SIZE, 3, 5))
    assert kept.contents("a") == b"1" * 1536 + b"2" * 512 + bytes(512) + b"2" * 512
    assert disk.after_power_loss(lambda _, sector: sector in (3, 5)).contents("a") == b"1" * 1536 + b"2" * 512
    file.write([b"3"], 100, sync=True)
    assert disk.after_power_loss().contents("a")[:512] == b"1" * 100 + b"3" + b"1" * 411
    assert len(disk.after_power_loss().contents("a")) == 3072, "a sync stores the length"
    file.sync()
    assert disk.unsynced() == []
    file.truncate(10)
    assert len(disk.after_power_loss().contents("a")) == 3072
    assert len(disk.after_power_loss(lambda *_: True).contents("a")) == 10


def test_power_loss_keeps_the_first_changes_of_names() -> None:
    disk = FaultDisk()
    disk.open("a", create=True).write([b"a"], 0, sync=True)
    disk.sync_folder()
    disk.rename("a", "b")
    disk.open("a", create=True).write([b"new"], 0, sync=True)
    disk.remove("b")
    found = [disk.after_power_loss(name_changes=count) for count in range(4)]
    assert [{name: each.contents(name) for name in each.names()} for each in found] == [
        {"a": b"a"},
        {"b": b"a"},
        {"b": b"a", "a": b"new"},
        {"a": b"new"},
    ]


def test_a_failed_sync_leaves_the_page_cache_behind() -> None:
    disk = FaultDisk()
    file = disk.open("a", create=True)
    disk.sync_folder()
    file.write([b"1" * 512], 0, sync=True)
    disk.faults = {4: Fault.ERROR}
    with pytest.raises(DiskError):
        file.write([b"2" * 512], 0, sync=True)
    file.sync()
    assert file.read(0, 512) == b"2" * 512
    assert disk.after_power_loss().contents("a") == b"1" * 512, "the second sync said that all is well"
    disk.after_cache_loss()
    assert file.read(0, 512) == b"1" * 512


def test_nothing_happens_after_power_loss() -> None:
    disk = FaultDisk(faults={3: Fault.POWER_LOSS})
    file = disk.open("a", create=True)
    file.write([b"x"], 0)
    with pytest.raises(PowerLoss):
        file.sync()
    for call in (lambda: file.read(0, 1), file.sync, lambda: disk.open("b"), disk.names, disk.sync_folder):
        with pytest.raises(PowerLoss):
            call()
