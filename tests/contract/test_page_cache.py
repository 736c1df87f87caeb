"""The kernel's cache of a partition's files: what is given up, and that nothing but the cache is."""

import ctypes
import mmap
import os
from pathlib import Path

import pytest

from broker.storage.open_files import OpenFiles
from broker.storage.partition_log import PartitionLog
from broker.storage.real_disk import RealDisk
from tests.logs import GROUP, append, plain_all

PAGE = mmap.PAGESIZE
MIB = 1 << 20


def cached_pages(path: Path) -> list[bool]:
    """As the kernel says, page by page."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        count = len(mapped) // PAGE
        resident = (ctypes.c_ubyte * count)()
        address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        assert ctypes.CDLL(None).mincore(ctypes.c_void_p(address), ctypes.c_size_t(len(mapped)), resident) == 0
        return [bool(value & 1) for value in resident]


def written(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        os.fsync(file.fileno())


def can_give_up(folder: Path) -> bool:
    """Not in memory, say: there the cache is all there is."""
    path = folder / "tried"
    written(path, bytes(32 << 20))
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return not all(cached_pages(path))


def test_old_pages_are_given_up_and_the_newest_kept(tmp_path: Path) -> None:
    if not can_give_up(tmp_path):
        pytest.skip("this file system cannot give up cached pages")
    disk = RealDisk(tmp_path / "data")
    log = PartitionLog(OpenFiles(disk), GROUP, segment_bytes=16 * MIB)
    log.recover(None, None)
    written = [append(log, [os.urandom(MIB)])[0] for _ in range(32)]  # the kernel may keep a few megabytes together
    log.drop_cache(8 * MIB)
    log.sync()
    log.drop_cache(8 * MIB)
    cached = [page for path in sorted((tmp_path / "data").rglob("*.log")) for page in cached_pages(path)]
    eighth = len(cached) // 8
    assert all(cached[-eighth:])
    assert sum(cached[: 4 * eighth]) < eighth
    assert plain_all(log.from_index(1, 64 * MIB)) == plain_all(written)
    log.close()
    disk.close()
